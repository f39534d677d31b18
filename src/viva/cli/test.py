"""`viva test`: run cases against an agent."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from msgspec import structs

from viva.cli.history import history_here
from viva.cli.options import DURATION, person_here, private_stdout
from viva.errors import BadInput
from viva.formats.sources import Words, understood
from viva.protocols import Sink
from viva.session.loop import run_loop
from viva.session.options import RunOptions, kept_again
from viva.session.prepare import prepare
from viva.session.resuming import past_of, refuse_changes, still_right
from viva.session.run import RunResult, examine, retell
from viva.stats.sequential import SequentialTest

EPILOG = """\b
Examples:
  viva test -i tests/expense.jsonl                 run a suite against the default agent
  viva test -i tests/ -n assistants.expense -v     a folder, another agent, all turns
  viva test -i tests/ -o report.xml -o report.md   reports, by extension
  viva test -i tests/ -k '^refund' --fail-fast     some cases; stop at the first failure
  viva test -i "Hello" -n python:./agent.py:agent  send one message and see the answer
  viva test -n assistants.expense --interactive    talk with it; what was said can be saved as a case
  viva test -i tests/ --runs 10 --min-pass 0.8     repeats: a case passes if 8 of 10 trials do
  viva test -i tests/ --until-decided --min-pass 0.9   only as many trials as it takes to know
  viva test --resume latest                        go on with a run that was cut off
  viva test -i tests/ --record talk.cassette       keep every reply; --replay talk.cassette needs no network
  cat cases.jsonl | viva test -i - -n http://localhost:8000/chat

\b
Exit codes: 0 passed, 1 failed, 2 interrupted, 3 a bug in Viva, 4 bad input, 5 nothing ran or nothing was checked.
"""
_CHANCE = click.FloatRange(0, 1, min_open=True, max_open=True)
_WITH_RESUME = frozenset(
    {"resume", "force", "outputs", "parallel", "max_cost", "verbose", "quiet", "as_json", "config"}
)
"""What may be said anew when a run goes on: what is shown, how fast, and how much more it may cost."""


@click.command(epilog=EPILOG)
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    metavar="INPUT",
    help="A file, folder, glob, `-` for standard input, `scripts:module`, `agents:name`, or a message. Repeatable.",
)
@click.option(
    "-n",
    "--name",
    "agent",
    metavar="AGENT",
    help="The agent under test: a name from viva.toml, python:..., or http://...",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Write a report: .jsonl, .json, .xml (JUnit) or .md. Repeatable.",
)
@click.option("-c", "--connector", metavar="NAME", help="Another connector for the agent under test.")
@click.option("-v", "--verbose", is_flag=True, help="Show all turns.")
@click.option("-q", "--quiet", is_flag=True, help="Show only what did not pass, and one line of summary.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON, for machines.")
@click.option("--timeout", type=DURATION, help="Time for a case, over what it says itself (5m).")
@click.option("--turn-timeout", type=DURATION, help="Time for one reply.")
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="So many cases at once (4).")
@click.option("--runs", type=click.IntRange(1), default=1, metavar="N", help="Run each case N times.")
@click.option(
    "--min-pass",
    type=click.FloatRange(0, 1),
    metavar="P",
    help="With --runs: a case passes if this share of its judged trials does.",
)
@click.option(
    "--until-decided",
    is_flag=True,
    help="Run each case until it is clear whether it passes in a share of --min-pass or more (a sequential test).",
)
@click.option(
    "--max-runs",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="But so often at most; then it is undecided, and the run fails.",
)
@click.option(
    "--alpha",
    type=_CHANCE,
    default=0.05,
    show_default=True,
    metavar="P",
    help="How often a case may pass that is worse by --margin.",
)
@click.option(
    "--beta",
    type=_CHANCE,
    default=0.1,
    show_default=True,
    metavar="P",
    help="How often a case may fail that is good enough.",
)
@click.option(
    "--margin",
    type=_CHANCE,
    metavar="P",
    help="How much worse than --min-pass is too bad (0.2; half of a --min-pass below 0.4).",
)
@click.option(
    "--max-cost",
    type=click.FloatRange(0, min_open=True),
    metavar="USD",
    help="Stop the run when its model calls have cost so much.",
)
@click.option(
    "--simulator", metavar="AGENT", help="Who plays the user in cases that have checkpoints but no simulator."
)
@click.option(
    "-r",
    "--reporter",
    metavar="AGENT",
    help="An agent that writes the reports of -o; without -o its words are printed.",
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first case that fails or breaks.")
@click.option("--dry-run", is_flag=True, help="Check and list the cases, run nothing; -o FILE.jsonl writes them.")
@click.option("-k", "--run", "only", metavar="REGEX", help="Only cases whose id matches.")
@click.option("--tag", "tags", multiple=True, help="Only cases with this tag. Repeatable: any of them.")
@click.option(
    "--on-missing-input",
    type=click.Choice(["skip", "fail", "end"]),
    help="When the agent still waits but turns are used up, or a person does not answer.",
)
@click.option(
    "--interactive",
    is_flag=True,
    help="Take part: see each line before it is said, change it, answer when the agent waits. Without -i: just talk.",
)
@click.option("--skip-interactive", is_flag=True, help="Skip cases that want a person (interactive.enabled).")
@click.option("--update-snapshots", is_flag=True, help="Write what snapshot assertions compare with.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["native", "playbook", "openwop"]),
    help="The format of the input, if its keys do not tell.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another config than the nearest viva.toml.",
)
@click.option(
    "--env-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="NAME=value lines to add to the environment.",
)
@click.option(
    "--before",
    metavar="MODULE:FUNCTION",
    help="Called with (ctx, cases) before the run; a dict it returns sets variables.",
)
@click.option("--after", metavar="MODULE:FUNCTION", help="Called with (ctx, results, data) after the run.")
@click.option(
    "--retry-faults",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Run a trial again, whole, if its error was not the agent's fault.",
)
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Keep every reply on a cassette.")
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Answer from a cassette, not from the network.",
)
@click.option(
    "--replay-missing",
    type=click.Choice(["error", "live", "skip"]),
    default="error",
    show_default=True,
    help="What to do where the cassette has no answer.",
)
@click.option(
    "--resume",
    metavar="RUN",
    help="Go on with a run that was cut off (its id, or latest), or tell again of one that was not.",
)
@click.option("--force", is_flag=True, help="With --resume: go on although suites, agents or Viva have changed.")
@click.option("--last-failed", is_flag=True, help="Only cases that did not pass in the latest run.")
@click.option("--no-history", is_flag=True, help="Leave nothing in .viva.")
@click.pass_context
def command(ctx: click.Context, **flags: Any) -> int:
    """Run cases against an agent, and say what holds."""
    for_machines = flags["as_json"] and not flags["dry_run"]
    flags["out"] = ctx.with_resource(private_stdout()) if for_machines else sys.stdout
    if flags["resume"]:
        _check_resume(ctx)
        return run_loop(_resume(flags))
    if flags["force"]:
        raise click.UsageError("--force belongs to --resume")
    if flags["interactive"]:
        _check_interactive(flags)
    if not flags["inputs"]:
        if flags["interactive"]:
            from viva.cli.conversation import talk_freely

            return run_loop(talk_freely(flags))
        raise click.UsageError("what shall be run? Give -i FILE, -i FOLDER, or -i 'a message'")
    if words := _direct_messages(flags["inputs"]):
        if flags["interactive"]:
            raise click.UsageError("to talk with the agent leave out -i, and type the message")
        from viva.cli.direct import send_messages

        return run_loop(send_messages(words, flags))
    return run_loop(_run(flags))


def _direct_messages(inputs: tuple[str, ...]) -> list[str]:
    """The inputs, if all of them are messages. What is wrong with the others is said when they are loaded."""
    words: list[str] = []
    for text in inputs:
        try:
            found = understood(text, Path())
        except BadInput:
            return []
        if not isinstance(found, Words):
            return []
        words.append(found.text)
    return words


def _check_interactive(flags: dict[str, Any]) -> None:
    for flag, name in (("skip_interactive", "--skip-interactive"), ("as_json", "--json"), ("quiet", "-q")):
        if flags[flag]:
            raise click.UsageError(f"--interactive and {name} cannot both be meant")
    if not flags["inputs"] and not person_here():
        raise click.UsageError("--interactive without -i is a conversation: it needs a terminal")


def _check_resume(ctx: click.Context) -> None:
    """A run goes on with the settings that it had: what cannot change is refused, not ignored."""
    given = [
        parameter.opts[0]
        for parameter in ctx.command.params
        if ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        and parameter.name not in _WITH_RESUME
    ]
    if given:
        raise click.UsageError(f"--resume goes on with the settings that the run had; leave out {', '.join(given)}")


async def _run(flags: dict[str, Any]) -> int:
    options = options_from(flags)
    asking = None
    if person_here() and not (flags["as_json"] or flags["quiet"]):
        from viva.cli.interactive import Terminal

        asking = Terminal()
        options = structs.replace(options, asking=asking)
    prepared = await prepare(options)
    if asking is not None:
        asking.redact = prepared.redactor.text
    if flags["dry_run"]:
        from viva.cli.dry_run import list_cases

        return await list_cases(prepared)
    result = await examine(prepared, [_voice(flags, prepared.parallel, person=prepared.with_person)])
    return _ended(result, flags)


async def _resume(flags: dict[str, Any]) -> int:
    """A run that was cut off, with the settings that it had, in the folder where it was started."""
    past = past_of(history_here(flags["config"]), flags["resume"])
    options = kept_again(past.settings["options"])
    asked = {
        "outputs": tuple(path.absolute() for path in flags["outputs"]),
        "parallel": flags["parallel"],
        "max_cost_usd": flags["max_cost"],
    }
    options = structs.replace(options, **{name: value for name, value in asked.items() if value})
    os.chdir(options.folder)
    if past.end is not None:
        return retell(past, past.end, options.outputs, [_voice(flags)])
    prepared = await prepare(structs.replace(options, folder=Path()), past)
    if flags["force"]:
        past = await still_right(past, prepared.plan())
    else:
        refuse_changes(past.settings["fingerprint"], prepared.fingerprint)
    result = await examine(prepared, [_voice(flags, prepared.parallel)], past)
    return _ended(result, flags)


def _ended(result: RunResult, flags: dict[str, Any]) -> int:
    """The exit code, after what an agent as reporter has to say; machines that read events do not get it among them."""
    if result.said is not None:
        from viva.reporters.visible import visible_lines

        print(visible_lines(result.said), file=sys.stderr if flags["as_json"] else sys.stdout)
    return result.exit_code


def _sequential(flags: dict[str, Any]) -> SequentialTest | None:
    """The test of --until-decided; a test that no case could ever pass is refused before anything runs."""
    if not flags["until_decided"]:
        return None
    if flags["min_pass"] is None:
        raise click.UsageError("--until-decided needs --min-pass: which share has to pass?")
    for name, flag in (("--runs", flags["runs"] != 1), ("--fail-fast", flags["fail_fast"])):
        if flag:
            raise click.UsageError(f"--until-decided and {name} cannot both be meant")
    least: float = flags["min_pass"]
    margin = flags["margin"] if flags["margin"] is not None else min(0.2, least / 2)
    try:
        test = SequentialTest(
            min_pass=least, max_runs=flags["max_runs"], alpha=flags["alpha"], beta=flags["beta"], margin=margin
        )
    except ValueError as wrong:
        raise click.UsageError(f"--until-decided: {wrong}") from wrong
    if test.fewest_to_pass > test.max_runs:
        raise click.UsageError(
            f"to tell {least:g} from {test.too_low:g} takes {test.fewest_to_pass} passes in a row, more than --max-runs "
            f"{test.max_runs}; raise --max-runs, --margin or --alpha"
        )
    return test


def options_from(flags: dict[str, Any]) -> RunOptions:
    sequential = _sequential(flags)
    return RunOptions(
        inputs=flags["inputs"],
        before=flags["before"],
        after=flags["after"],
        agent=flags["agent"],
        connector=flags["connector"],
        outputs=flags["outputs"],
        config=flags["config"],
        env_file=flags["env_file"],
        format=flags["format_"],
        timeout_s=flags["timeout"],
        turn_timeout_s=flags["turn_timeout"],
        parallel=flags["parallel"],
        runs=sequential.max_runs if sequential else flags["runs"],
        sequential=sequential,
        fail_fast=flags["fail_fast"],
        only=flags["only"],
        tags=flags["tags"],
        on_missing_input=flags["on_missing_input"],
        update_snapshots=flags["update_snapshots"],
        history=not flags["no_history"],
        dry_run=flags["dry_run"],
        simulator=flags["simulator"],
        reporter=flags["reporter"],
        max_cost_usd=flags["max_cost"],
        min_pass=flags["min_pass"],
        retry_faults=flags["retry_faults"],
        record=flags["record"],
        replay=flags["replay"],
        replay_missing=flags["replay_missing"],
        last_failed=flags["last_failed"],
        interactive=flags["interactive"],
        skip_interactive=flags["skip_interactive"],
    )


def _voice(flags: dict[str, Any], parallel: int = 0, *, person: bool = False) -> Sink:
    """Who speaks on standard output: events for machines, or the console for people."""
    if flags["as_json"]:
        from viva.reporters.events import EventLines

        return EventLines(flags["out"])
    from viva.reporters.console import Console

    terminal = sys.stdout.isatty()
    return Console(
        sys.stdout,
        verbose=flags["verbose"] or person,
        quiet=flags["quiet"],
        colour=terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        terminal=terminal and not person,
        width=shutil.get_terminal_size((100, 24)).columns if terminal else 100,
        parallel=parallel,
        whole=person,
    )

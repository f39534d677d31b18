"""`viva test`: run cases against an agent."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from viva.cli import test_options
from viva.cli.eval_options import eval_fields, eval_suites
from viva.cli.given import WITH_HOST, WITH_MESSAGE, WITH_RESUME, WITH_TALK, refuse_alone, refuse_others
from viva.cli.history import history_here, tell_cut_off
from viva.cli.options import colour_wanted, person_here, private_stdout, terminable
from viva.errors import BadInput
from viva.formats.sources import Words, understood
from viva.protocols import Sink
from viva.record.journal import Journal
from viva.session.filters import why_nothing
from viva.session.interrupts import stopping
from viva.session.loop import run_loop
from viva.session.options import REFERENCES, RunOptions, kept_again, with_secrets
from viva.session.prepare import Prepared, prepare
from viva.session.resuming import Past, open_again, refuse_changes, still_right
from viva.session.run import RunResult, examine, retell
from viva.stats.sequential import SequentialTest

EPILOG = """\b
Examples:
  viva test tests/expense.jsonl                    run a suite against the default agent; -i FILE is the same
  viva test -i tests/ -n assistants.expense -v     a folder, another agent, all turns
  viva test -i tests/ -o report.xml -o report.md   reports, by extension
  viva test -i tests/ -k '^refund' --fail-fast     some cases; stop at the first failure
  viva test -i "Hello" -n python:./agent.py:agent  send one message and see the answer
  viva test -n assistants.expense --interactive    talk with it; what was said can be saved as a case
  viva test -i tests/ --runs 10 --min-pass 0.8     repeats: a case passes if 8 of 10 trials do
  viva test -i tests/ --until-decided --min-pass 0.9   only as many trials as it takes to know
  viva test -i playbooks/ --evaluator judge        playbooks, against the Gemini CLI or the agent of -n
  viva test -i suite.json --eval-summary eval.json --baseline latest   an OpenWOP eval suite, and is it worse than before?
  viva test --resume latest                        go on with a run that was cut off
  viva test -i tests/ --record talk.cassette       keep every reply; --replay talk.cassette needs no network
  cat cases.jsonl | viva test -i - -n http://localhost:8000/chat

\b
Exit codes: 0 passed, 1 failed, 2 interrupted, 3 a bug in Viva, 4 bad input, 5 nothing ran or nothing was checked.
"""


@click.command(epilog=EPILOG)
@test_options.what_is_run
@test_options.what_is_shown
@test_options.limits
@test_options.repeats
@test_options.taking_part
@test_options.in_a_folder
@eval_suites
@test_options.what_is_kept
@click.pass_context
def command(ctx: click.Context, **flags: Any) -> int:
    """Run cases against an agent, and say what holds."""
    ctx.with_resource(terminable())
    for_machines = flags["as_json"] and not flags["dry_run"]
    flags["out"] = ctx.with_resource(private_stdout()) if for_machines else sys.stdout
    flags["inputs"] = _all_inputs(flags["inputs"], flags["paths"])
    if flags["host"]:
        from viva.cli.remote import run_remote

        refuse_others(ctx, WITH_HOST, "--host: the suite runs over there")
        return run_loop(run_remote(flags))
    if flags["resume"]:
        refuse_others(ctx, WITH_RESUME, "--resume goes on with the settings that the run had")
        return run_loop(_resume(flags))
    refuse_alone(ctx)
    tell_cut_off(history_here(flags["config"]))
    if flags["interactive"] and not flags["inputs"]:
        refuse_others(ctx, WITH_TALK, "--interactive without an input is a conversation by hand, without cases")
    if flags["interactive"]:
        _check_interactive(flags)
    if not flags["inputs"]:
        if flags["interactive"]:
            from viva.cli.conversation import talk_freely

            return run_loop(talk_freely(flags))
        raise click.UsageError("No input given. Pass a suite, a folder or a message: viva test -i tests/")
    if words := _direct_messages(flags["inputs"]):
        if flags["interactive"]:
            raise click.UsageError("to talk with the agent leave out -i, and type the message")
        refuse_others(
            ctx,
            WITH_MESSAGE,
            "a message is sent as it is: it is no case, has no verdict and no report, and is not kept",
        )
        from viva.cli.direct import send_messages

        return run_loop(send_messages(words, flags))
    return run_loop(_run(flags))


def _all_inputs(named: tuple[str, ...], paths: tuple[str, ...]) -> tuple[str, ...]:
    """Those of -i, and those without it. Several words without quotes are no message."""
    if len(named) + len(paths) > 1:
        for text in paths:
            if text in _direct_messages((text,)):
                raise click.UsageError(f"there is no file {text!r}; put a message in quotes: viva test 'Hello there'")
    return (*named, *paths)


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


async def _run(flags: dict[str, Any]) -> int:
    options = options_from(flags)
    asking = None
    if person_here() and not (flags["as_json"] or flags["quiet"]):
        from viva.cli.interactive import Terminal

        asking = Terminal()
        options = structs.replace(options, asking=asking)
    prepared = await _prepared(options)
    if asking is not None:
        asking.redact = prepared.redactor.text
    if not prepared.cases and prepared.options.is_filtered:
        print(await why_nothing(prepared.options, prepared.suites), file=sys.stderr)
        return 5
    if flags["dry_run"]:
        from viva.cli.dry_run import list_cases

        return await list_cases(prepared)
    result = await examine(prepared, [_voice(flags, prepared.parallel, person=prepared.with_person)])
    return _ended(result, flags)


async def _prepared(options: RunOptions, past: Past | None = None) -> Prepared:
    """A generator may take its time: Ctrl-C and SIGTERM end it too."""
    task = asyncio.current_task()
    try:
        with stopping(lambda: task and task.cancel()):
            return await prepare(options, past)
    except asyncio.CancelledError:
        raise click.Abort from None


async def _resume(flags: dict[str, Any]) -> int:
    """A run that was cut off, with the settings that it had, in the folder where it was started."""
    history = history_here(flags["config"])
    journal, past = open_again(history, flags["resume"])
    try:
        tell_cut_off(history)
        return await _resume_locked(journal, past, flags)
    finally:
        journal.end()  # also where it is refused: who reads that needs no reminder


async def _resume_locked(journal: Journal, past: Past, flags: dict[str, Any]) -> int:
    options = kept_again(past.settings["options"])
    asked = {
        "outputs": tuple(path.absolute() for path in flags["outputs"]),
        "parallel": flags["parallel"],
        "max_cost_usd": flags["max_cost"],
        "eval_summary": flags["eval_summary"] and flags["eval_summary"].absolute(),
    }
    options = structs.replace(options, **{name: value for name, value in asked.items() if value})
    os.chdir(options.folder)
    if past.end is not None:
        if given := [flag for name, flag in REFERENCES.items() if flags[name]]:
            raise BadInput.of(
                f"the run is complete: only its reports are written again; leave out {', '.join(given)}"
            )
        return retell(past, past.end, journal, options.outputs, [_voice(flags)], options.eval_summary)
    options = with_secrets(options, {name: flags[name] for name in REFERENCES})
    prepared = await _prepared(structs.replace(options, folder=Path()), past)
    if flags["force"]:
        past = await still_right(past, prepared.plan())
    else:
        refuse_changes(past.settings["fingerprint"], prepared.fingerprint)
    result = await examine(prepared, [_voice(flags, prepared.parallel)], past, journal=journal)
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
    try:
        test = SequentialTest(
            min_pass=least,
            max_runs=flags["max_runs"] or 0,
            alpha=flags["alpha"],
            beta=flags["beta"],
            margin=flags["margin"],
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
        evaluator=flags["evaluator"],
        agent_model=flags["agent_model"],
        workspace=flags["workspace"],
        link_mode=flags["link_mode"],
        keep_workspace=flags["keep_workspace"],
        sandbox=flags["sandbox"],
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
        **eval_fields(flags),
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
        colour=colour_wanted(terminal=terminal),
        terminal=terminal and not person,
        width=shutil.get_terminal_size((100, 24)).columns,  # COLUMNS, where there is no terminal
        parallel=parallel,
        whole=person,
    )

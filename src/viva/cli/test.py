"""`viva test`: run cases against an agent."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from viva.cli.options import DURATION
from viva.formats.sources import Words, understood
from viva.protocols import Sink
from viva.session.run import Prepared, RunOptions, examine, prepare, run_loop

EPILOG = """\b
Examples:
  viva test -i tests/expense.jsonl                 run a suite against the default agent
  viva test -i tests/ -n assistants.expense -v     a folder, another agent, all turns
  viva test -i tests/ -o report.xml -o report.md   reports, by extension
  viva test -i tests/ -k '^refund' --fail-fast     some cases; stop at the first failure
  viva test -i "Hello" -n python:./agent.py:agent  send one message and see the answer
  cat cases.jsonl | viva test -i - -n http://localhost:8000/chat

\b
Exit codes: 0 passed, 1 failed, 2 interrupted, 3 a bug in Viva, 4 bad input, 5 nothing ran or nothing was checked.
"""


@click.command(epilog=EPILOG)
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    metavar="INPUT",
    help="A file, folder, glob, `-` for standard input, or a message. Repeatable.",
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
    help="When turns are used up and the agent still waits.",
)
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
@click.option("--no-history", is_flag=True, help="Leave nothing in .viva.")
def command(**flags: Any) -> int:
    """Run cases against an agent, and say what holds."""
    if not flags["inputs"]:
        raise click.UsageError("what shall be run? Give -i FILE, -i FOLDER, or -i 'a message'")
    if words := _direct_messages(flags["inputs"]):
        from viva.cli.direct import send_messages

        return run_loop(send_messages(words, flags))
    return run_loop(_run(flags))


def _direct_messages(inputs: tuple[str, ...]) -> list[str]:
    found = [understood(text, Path()) for text in inputs if text != "-"]
    words = [each.text for each in found if isinstance(each, Words)]
    return words if len(words) == len(inputs) else []


async def _run(flags: dict[str, Any]) -> int:
    options = options_from(flags)
    prepared = await prepare(options)
    if flags["dry_run"]:
        from viva.cli.dry_run import list_cases

        return await list_cases(prepared)
    result = await examine(prepared, [_voice(flags, prepared)])
    return result.exit_code


def options_from(flags: dict[str, Any]) -> RunOptions:
    return RunOptions(
        inputs=flags["inputs"],
        agent=flags["agent"],
        connector=flags["connector"],
        outputs=flags["outputs"],
        config=flags["config"],
        env_file=flags["env_file"],
        format=flags["format_"],
        timeout_s=flags["timeout"],
        turn_timeout_s=flags["turn_timeout"],
        parallel=flags["parallel"],
        runs=flags["runs"],
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
    )


def _voice(flags: dict[str, Any], prepared: Prepared) -> Sink:
    """Who speaks on standard output: events for machines, or the console for people."""
    if flags["as_json"]:
        from viva.reporters.events import EventLines

        return EventLines(sys.stdout)
    from viva.reporters.console import Console

    terminal = sys.stdout.isatty()
    return Console(
        sys.stdout,
        verbose=flags["verbose"],
        quiet=flags["quiet"],
        colour=terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        terminal=terminal,
        width=shutil.get_terminal_size((100, 24)).columns if terminal else 100,
        parallel=prepared.parallel,
    )

"""`viva shrink`: a failing conversation, made smaller."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from viva.cli.history import open_history, report_crashed_runs
from viva.cli.options import handle_sigterm
from viva.errors import BadInput
from viva.model.record import TrialRecord
from viva.reporters.numbers import format_count
from viva.session.loop import run_coroutine
from viva.session.options import RunOptions, restore_options, restore_secrets
from viva.session.resume import PreviousRun, load_previous_run
from viva.session.run_plan import build_run_plan

if TYPE_CHECKING:
    from viva.api.shrink import ShrinkResult

EPILOG = """\b
Examples:
  viva shrink latest T001                         fewer turns, fewer words, less that came along, as long as it fails
  viva shrink latest T001 -o small.jsonl          the file that the smaller case is added to
  viva shrink latest T001 --runs 5 --fails 3      accept only what fails in 3 of 5 trials

\b
The smaller conversation fails by the same checks and for the same reason. It is held three times before and after, to see
how often it fails. An agent that does not always do the same is noticed, and each candidate then tried five times.
A check that asks for something to happen fails the more easily the less is said: shrink what must not happen.
Exit codes: 0 a smaller case is written (or it is as small as can be), 4 there is nothing to shrink.
"""

_ALONG = "thing"  # that came along: prior messages, attachments, memory, canned tools


@click.command(epilog=EPILOG)
@click.argument("run")
@click.argument("case")
@click.option("--trial", type=click.IntRange(1), help="Which trial of the case; else the first that failed.")
@click.option(
    "--runs",
    type=click.IntRange(1),
    metavar="N",
    help="Try each candidate N times (once, or 5 times if it does not always fail).",
)
@click.option("--fails", type=click.IntRange(1), metavar="K", help="Accept a candidate if K of its trials fail (all).")
@click.option(
    "--max-trials",
    type=click.IntRange(1),
    default=300,
    show_default=True,
    metavar="N",
    help="Hold no more trials than this.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="shrunk.jsonl",
    show_default=True,
    help="The .jsonl file that the smaller case is added to.",
)
@click.option("-n", "--name", "agent", help="The agent once more, if the run named it with a secret: runs keep none.")
def command(
    run: str,
    case: str,
    trial: int | None,
    runs: int | None,
    fails: int | None,
    max_trials: int,
    output: Path,
    agent: str | None,
) -> int:
    """Make the failing conversation of CASE in RUN smaller by holding it again and again with the real agent."""
    if fails is not None and fails > (runs or 1):
        raise click.UsageError(f"--fails {fails} of --runs {runs or 1} cannot be")
    if output.suffix != ".jsonl":
        raise BadInput.of(f"-o {output}: a case is written as .jsonl")
    history = open_history()
    report_crashed_runs(history)
    past = load_previous_run(history, run)
    record = _failed(past, case, trial)
    kept = restore_secrets(structs.replace(restore_options(past.settings["options"]), reporter=None), {"agent": agent})
    wanted = (fails or runs, runs) if runs else None
    with handle_sigterm():
        return run_coroutine(_shrink(past, kept, record, wanted, max_trials, output.absolute()))


def _failed(past: PreviousRun, case: str, trial: int | None) -> TrialRecord:
    held = [event.record for event in past.ended_trials if event.record.id == case]
    if not held:
        known = ", ".join(sorted({event.record.id for event in past.ended_trials})[:20])
        raise BadInput.of(f"run {past.run_id} has no case {case!r}; it has {known}")
    failed = [each for each in held if each.status == "failed" and each.turns and trial in (None, each.trial)]
    if not failed:
        raise BadInput.of(f"case {case!r} of run {past.run_id} has no {'such ' if trial else ''}trial that failed")
    return min(failed, key=lambda each: each.trial)


async def _shrink(
    past: PreviousRun, kept: RunOptions, record: TrialRecord, wanted: tuple[int, int] | None, most: int, output: Path
) -> int:
    from viva.api.shrink import FailedConversation, FailureRate, Shrinker, find_case

    os.chdir(kept.folder)
    options = structs.replace(
        kept, outputs=(), record=None, replay=None, selected_cases=None, last_failed=False, only=None, tags=(), folder=Path()
    )
    prepared = await build_run_plan(options, past)
    try:
        case = await find_case(prepared, record)
        shrinker = Shrinker(
            prepared,
            FailedConversation(case, record),
            required=FailureRate(*wanted) if wanted else None,
            max_trials=most,
        )
        shrunk = await shrinker.shrink(output.parent)
    finally:
        await prepared.http.close()
    from viva.formats.case_writer import append_case

    case_id = append_case(output, shrunk.case)
    before, after = (
        ", ".join(format_count(size[at], what) for size, what in _sizes(shrunk) if size[0] or what != _ALONG)
        for at in (0, 1)
    )
    print(f"{before} → {after}", end="")
    print(f", in {format_count(shrunk.trials, 'trial')}")
    print(
        f"fails {shrunk.failures} (before: {shrunk.original_failures})"
        if shrunk.failures.total
        else "not confirmed: no trial left"
    )
    if not shrunk.is_minimal:
        print("it may become smaller still: --max-trials was used up, or what is smaller fails too seldom")
    for at, turn in enumerate(shrunk.case["turns"], 1):
        print(f"  {at}. {_shown(turn['input'])}")
    agent = f" -n {shlex.quote(prepared.agent.name)}" if prepared.agent.name else ""
    print(f"written as {case_id!r}; run it with: viva test -i {shlex.quote(str(output))}{agent}")
    return 0


def _sizes(shrunk: "ShrinkResult") -> tuple[tuple[tuple[int, int], str], ...]:
    return (shrunk.turns, "turn"), (shrunk.words, "word"), (shrunk.extras, _ALONG)


def _shown(said: object) -> str:
    from viva.reporters.formatting import fit_line
    from viva.state.trial_state import to_text

    return fit_line(to_text(said), 160)

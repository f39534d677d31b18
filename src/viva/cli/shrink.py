"""`viva shrink`: reduces a failing conversation to a small case that still fails."""

import shlex
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from viva.cli.history import open_history, report_crashed_runs
from viva.errors import BadInput
from viva.formats.case_writer import append_case
from viva.model.record import TrialRecord
from viva.reporters.formatting import fit_line, format_count
from viva.session.loop import run_coroutine
from viva.session.options.run_options import AllRunOptions
from viva.session.options.saved import restore_agents_with_secrets, restore_options
from viva.session.resume import PreviousRun, enter_run_folder, load_own_run
from viva.session.run_plan import build_run_plan
from viva.state.trial_state import to_text

if TYPE_CHECKING:
    from viva.api.shrink import ShrinkResult

EPILOG = """\b
Examples:
  viva shrink latest T001                       remove turns, words and extras while the case still fails
  viva shrink latest T001 -o small.jsonl        append the smaller case to this file
  viva shrink latest T001 --runs 5 --fails 3    accept a candidate that fails in 3 of 5 trials

\b
The smaller conversation fails by the same checks and for the same reason. The failure rate is measured with three trials
before and after. If the agent is not deterministic, each candidate is tried five times.
An assertion that something must happen fails more easily with a shorter input; shrink works best on what must not happen.
Exit codes: 0 a smaller case is written (or it is minimal already), 4 there is nothing to shrink.
"""

_EXTRA_NOUN = "extra"  # prior messages, attachments, memory, stubbed tools


@click.command(epilog=EPILOG)
@click.argument("run")
@click.argument("case")
@click.option("--trial", type=click.IntRange(1), help="Trial of the case (default: the first that failed).")
@click.option(
    "--runs",
    type=click.IntRange(1),
    metavar="N",
    help="Trials per candidate (default: 1, or 5 if the case does not always fail).",
)
@click.option(
    "--fails", type=click.IntRange(1), metavar="K", help="Accept a candidate if K of its trials fail (default: all)."
)
@click.option(
    "--max-trials",
    type=click.IntRange(1),
    default=300,
    show_default=True,
    metavar="N",
    help="Maximum number of trials.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="shrunk.jsonl",
    show_default=True,
    help="Append the smaller case to this .jsonl file.",
)
@click.option("-n", "--name", "agent", help="The agent, if the run named it with a secret, which is not saved.")
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
    """Reduce the failing conversation of CASE in RUN by repeating it with the real agent."""
    if fails is not None and fails > (runs or 1):
        raise click.UsageError(f"--fails {fails} is more than --runs {runs or 1}; lower --fails or raise --runs")
    if output.suffix != ".jsonl":
        raise BadInput.of(f"-o {output}: unknown extension; a case is written as .jsonl")
    history = open_history()
    report_crashed_runs(history)
    previous_run = load_own_run(history, run)
    record = _find_failed_trial(previous_run, case, trial)
    options = restore_agents_with_secrets(
        structs.replace(restore_options(previous_run.settings["options"]), reporter=None),
        {"agents": (agent,) if agent else ()},
    )
    required = (fails or runs, runs) if runs else None
    return run_coroutine(_shrink_case(previous_run, options, record, required, max_trials, output.absolute()))


def _find_failed_trial(previous_run: PreviousRun, case: str, trial: int | None) -> TrialRecord:
    records = [event.record for event in previous_run.ended_trials if event.record.id == case]
    if not records:
        cases = ", ".join(sorted({event.record.id for event in previous_run.ended_trials})[:20])
        raise BadInput.of(f"run {previous_run.run_id} has no case {case!r}; it has {cases}")
    failed = [
        record for record in records if record.status == "failed" and record.turns and trial in (None, record.trial)
    ]
    if not failed:
        raise BadInput.of(
            f"case {case!r} of run {previous_run.run_id} has no {'such ' if trial else ''}failed trial; nothing to shrink"
        )
    return min(failed, key=lambda record: record.trial)


async def _shrink_case(
    previous_run: PreviousRun,
    options: AllRunOptions,
    record: TrialRecord,
    required: tuple[int, int] | None,
    max_trials: int,
    output: Path,
) -> int:
    from viva.api.shrink import FailedConversation, FailureRate, Shrinker, find_recorded_case

    enter_run_folder(options.folder)
    options = structs.replace(
        options,
        outputs=(),
        record=None,
        replay=None,
        selected_cases=None,
        last_failed=False,
        only=None,
        tags=(),
        folder=Path(),
    )
    async with aclosing(await build_run_plan(options, previous_run)) as plan:
        case = await find_recorded_case(plan, record)
        shrinker = Shrinker(
            plan,
            FailedConversation(case, record),
            required=FailureRate(*required) if required else None,
            max_trials=max_trials,
        )
        result = await shrinker.shrink(output.parent)
    case_id = append_case(output, result.case)
    before, after = (
        ", ".join(
            format_count(size[at], noun) for size, noun in _list_size_changes(result) if size[0] or noun != _EXTRA_NOUN
        )
        for at in (0, 1)
    )
    print(f"{before} → {after}, in {format_count(result.trials, 'trial')}")
    print(
        f"fails {result.failures} (before: {result.original_failures})"
        if result.failures.total
        else "not confirmed: no trials left; raise --max-trials"
    )
    if not result.is_minimal:
        print("it may not be minimal: --max-trials is used up, or smaller candidates fail too rarely")
    for at, turn in enumerate(result.case["turns"], 1):
        print(f"  {at}. {_format_message(turn['input'])}")
    agent = f" -n {shlex.quote(record.agent)}" if record.agent else ""
    print(f"written as {case_id!r}; run it with viva test -i {shlex.quote(str(output))}{agent}")
    return 0


def _list_size_changes(result: "ShrinkResult") -> tuple[tuple[tuple[int, int], str], ...]:
    return (result.turns, "turn"), (result.words, "word"), (result.extras, _EXTRA_NOUN)


def _format_message(message: object) -> str:
    return fit_line(to_text(message), 160)

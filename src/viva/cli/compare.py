"""`viva compare`: compares two runs, or two agents of a run, case by case; a matrix compares more than two."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import click
from msgspec import Struct

from viva.cli.history import find_run, open_history, report_crashed_runs
from viva.errors import BadInput
from viva.history.columns import RunColumn, RunResults, compare_columns, split_columns
from viva.history.comparison import (
    ALPHA,
    CHANGE_ORDER,
    CaseChange,
    ChangeKind,
    Comparison,
    Gate,
    Metric,
    TrialCounts,
    compare_runs,
)
from viva.history.index import History, ResultRow
from viva.history.trends import find_known_flaky
from viva.model import codec
from viva.model.record import Status, TrialRecord
from viva.record.atomic_files import replace_file
from viva.reporters.formatting import (
    escape_controls,
    fit_line,
    format_count,
    format_ms,
    format_rounded_cost,
    wrap_text,
)
from viva.reporters.matrix import format_matrix, format_matrix_markdown, make_case_labeller
from viva.reporters.table import Column, format_table, get_output_width
from viva.stats.matrix import Matrix

EPILOG = """\b
Examples:
  viva compare latest~1 latest                             the two newest runs
  viva compare main.jsonl pr.jsonl -o comparison.md        two reports of `viva test -o`
  viva compare remote:latest latest                        the newest run of the team's history with that of this machine
  viva compare 20261114 latest --alpha 0.01                fewer false alarms
  viva compare latest~1 latest --fail-on pass-rate --fail-on cost
  viva compare latest                                      the agents of a run of several (`viva test -n a -n b`)
  viva compare latest~1 latest -n a                        one agent of such runs
  viva compare small.jsonl medium.jsonl large.jsonl        a matrix of three runs; the first is the base

\b
Exit codes: 0 no regression, 1 a regression by --fail-on, 4 bad input.
"""
_LISTED_CHANGES: tuple[ChangeKind, ...] = tuple(change for change in CHANGE_ORDER if change != "still passing")
_CHANGE_MARKS: dict[ChangeKind, str] = {
    "broken": "✗",
    "suspect": "?",
    "fixed": "✓",
    "maybe fixed": "?",
    "flaky": "~",
    "changed": "≠",
    "new": "+",
    "gone": "-",
}
_CASE_COLUMNS = (
    Column("", is_flexible=True, min_width=24),
    Column(""),
    Column(""),
    Column("", is_flexible=True, is_text=True, is_optional=True, min_width=20),
)
_METRIC_NAMES = {"time ms": "time", "cost USD": "cost"}
_METRIC_COLUMNS = (
    Column(""),
    *(Column(title, "right") for title in ("before", "now", "change")),
    Column("p", "right", is_optional=True),
    Column("interval", is_optional=True),
    Column("over", is_optional=True),
    Column("test"),
)
_GATES: tuple[Gate, ...] = ("pass-rate", "score", "time", "cost", "broken")


@click.command(epilog=EPILOG)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("-n", "--name", "agents", multiple=True, metavar="AGENT", help="Compare only these agents. Repeatable.")
@click.option(
    "--fail-on",
    "gates",
    type=click.Choice(_GATES),
    multiple=True,
    default=("pass-rate",),
    show_default=True,
    help=(
        "Exit with 1 if a later run is worse than the first by this. With more than two, only pass-rate. pass-rate, score, time, cost: by a paired test over all cases. broken: if one "
        "case is broken. Repeatable."
    ),
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=ALPHA,
    show_default=True,
    help="Maximum probability of a false alarm.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Write the comparison as .md (for a pull request) or .json. Repeatable.",
)
def command(
    runs: tuple[str, ...], agents: tuple[str, ...], gates: tuple[Gate, ...], alpha: float, outputs: tuple[Path, ...]
) -> int:
    """Compare the first RUN with the others, case by case. Each is a run (an id, `latest`, `latest~1`, `remote:ID`) or a .jsonl
    or .json report.

    Two runs are compared in detail. More than two, or a run of several agents, make a matrix of cases and agents: rates with
    intervals, cost, p95, and which differences from the first are more than chance.
    """
    for path in outputs:
        if path.suffix not in (".md", ".json"):
            raise BadInput.of(f"-o {path}: unknown extension; a comparison is written as .md or .json")
    history = open_history()
    report_crashed_runs(history)
    columns = split_columns([_load_results(name) for name in runs], agents)
    if len(columns) < 2:
        one = f"agent {columns[0].agent!r}" if columns[0].agent else "agent"
        raise BadInput.of(
            f"nothing to compare: {columns[0].run} has one {one}; give another run, or `viva test -n A -n B`"
        )
    if len(columns) == 2:
        return _compare_two(history, columns, gates, alpha, outputs)
    return _compare_in_matrix(columns, gates, alpha, outputs)


def _compare_two(
    history: History, columns: Sequence[RunColumn], gates: Sequence[Gate], alpha: float, outputs: Sequence[Path]
) -> int:
    before, after = columns
    flaky = find_known_flaky(history, [before.run, after.run], {before.agent, after.agent})
    base, head = (before.agent, after.agent) if before.run == after.run else (before.run, after.run)
    comparison = compare_runs((base, before.rows), (head, after.rows), alpha=alpha, gates=gates, flaky=flaky)
    failed = comparison.list_failed_gates(gates)
    print("\n".join(_format_comparison(comparison, gates, failed)))
    _write_files(outputs, comparison, lambda: _format_markdown(comparison))
    return 1 if failed else 0


def _compare_in_matrix(
    columns: Sequence[RunColumn], gates: Sequence[Gate], alpha: float, outputs: Sequence[Path]
) -> int:
    if others := [gate for gate in gates if gate != "pass-rate"]:
        raise BadInput.of(f"--fail-on {others[0]}: only for two runs; a matrix tests the pass rate of each agent")
    matrix = compare_columns(columns, alpha)
    print("\n".join(format_matrix(matrix, get_output_width())))
    worse = [column.name for column in matrix.columns if column.difference and column.difference.verdict == "worse"]
    verdict = f"worse than {matrix.columns[0].name}: {', '.join(worse)}" if worse else "no regression shown"
    print(f"\n{escape_controls(verdict)} (--fail-on pass-rate, alpha {alpha:g})")
    _write_files(outputs, matrix, lambda: "### Viva: agents\n\n" + format_matrix_markdown(matrix, _escape_markdown))
    return 1 if worse else 0


def _write_files(outputs: Sequence[Path], content: Comparison | Matrix, format_markdown: Callable[[], str]) -> None:
    for path in outputs:
        is_json = path.suffix == ".json"
        text = codec.pretty_json(codec.encode(content)).decode() if is_json else format_markdown()
        try:
            replace_file(path, f"{text.rstrip()}\n".encode())
        except OSError as error:
            raise BadInput.of(f"-o {path}: {error.strerror}") from error


def _load_results(name: str) -> RunResults:
    path = Path(name)
    if path.suffix in (".jsonl", ".json") and path.is_file():
        return RunResults(name, lambda: map(ResultRow.of, _read_report(path)))
    if path.suffix or "/" in name:
        reason = "is not a .jsonl or .json report" if path.exists() else "does not exist"
        raise BadInput.of(
            f"{name!r} {reason}; give a report of `viva test -o`, or a run: an id, latest, latest~1, remote:ID"
        )
    history = open_history()
    run = find_run(history, name)
    return RunResults(run.id, lambda: history.iter_results(run.id), run.agents)


def _read_report(path: Path) -> Iterator[TrialRecord]:
    """Yield the records of a report of `viva test -o`."""
    number = 1
    try:
        if path.suffix == ".json":
            for case in codec.decode_own(path.read_bytes(), type=_JsonReport).cases:
                yield from case.trials
            return
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007 -- used in the error below
                yield codec.decode_own(line, type=TrialRecord)
    except codec.DecodeError as error:
        raise BadInput.of(f"is not a {path.suffix} report of `viva test -o`: {error}", str(path), number) from error
    except OSError as error:
        raise BadInput.of(f"cannot be read: {error.strerror}", str(path)) from error


class _ReportCase(Struct):
    trials: list[TrialRecord]


class _JsonReport(Struct):
    """The part of a .json report that is compared."""

    cases: list[_ReportCase]


def _format_comparison(comparison: Comparison, gates: Sequence[Gate], failed: Sequence[Gate]) -> list[str]:
    lines = [escape_controls(f"{comparison.base} → {comparison.head}"), ""]
    width = get_output_width()
    groups = {change: [case for case in comparison.cases if case.change == change] for change in _LISTED_CHANGES}
    label = make_case_labeller((case.suite, case.case) for case in comparison.cases)
    rows = [_list_case_cells(case, label) for cases in groups.values() for case in cases[:50]]
    table = (f"  {line}" for line in format_table(_CASE_COLUMNS, rows, width - 2)[1:])
    for change, cases in groups.items():
        if cases:
            lines += [f"{change} ({len(cases)})", *islice(table, min(len(cases), 50))]
            lines += [f"  … and {len(cases) - 50} more"] if len(cases) > 50 else []
    if passing := comparison.count("still passing"):
        lines.append(f"still passing ({passing})")
    metrics = format_table(_METRIC_COLUMNS, [_list_metric_cells(metric) for metric in comparison.metrics], width - 2)
    lines += ["", *(f"  {line}" for line in metrics)]
    notes = [part for note in comparison.notes for part in wrap_text(note, min(width, 120) - 2, 20)]
    lines += ["", *(f"  {note}" for note in notes)] if notes else []
    verdict = f"worse by {', '.join(failed)}" if failed else "no regression shown"
    return [*lines, "", f"{verdict} (--fail-on {' --fail-on '.join(gates)}, alpha {comparison.alpha:g})"]


def _list_case_cells(case: CaseChange, label: Callable[[str, str], str]) -> list[str]:
    sides = f"{_format_case_result(case.base, case.base_trials)} → {_format_case_result(case.head, case.head_trials)}"
    has_p = case.p is not None and case.change not in ("still passing", "still failing")
    reason = fit_line(case.error, 200) if case.error and case.change in ("broken", "suspect") else ""
    mark = f"{_CHANGE_MARKS.get(case.change, '·')} {escape_controls(label(case.suite, case.case))}"
    return [mark, sides, f"p={_format_p(case.p)}" if has_p else "", reason]


def _format_p(p: float | None) -> str:
    return f"{p:.2g}" if p is not None and p >= 0.001 else "<0.001"


def _format_case_result(status: Status | None, trials: TrialCounts | None) -> str:
    """Return the status of a case in one run or, with repeats, how many trials passed."""
    if status is None or trials is None:
        return "–"
    if trials.decided + trials.errors < 2:
        return status
    return f"{trials.passed}/{trials.decided}" + (f" ({trials.errors} in error)" if trials.errors else "")


def _list_metric_cells(metric: Metric) -> list[str]:
    return [
        _METRIC_NAMES.get(metric.name, metric.name),
        _format_number(metric.name, metric.base),
        _format_number(metric.name, metric.head),
        _format_change(metric.name, metric.delta),
        "" if metric.p is None else _format_p(metric.p),
        _format_interval(metric),
        _format_case_count(metric),
        metric.verdict,
    ]


def _format_number(metric: str, value: float) -> str:
    """A rounded value in the unit of its metric."""
    if metric == "pass rate":
        return f"{value * 100:.1f} %"
    if metric == "time ms":
        return format_ms(value)
    if metric == "cost USD":
        return format_rounded_cost(value)
    return f"{value:.3f}"


def _format_change(metric: str, value: float) -> str:
    """A difference with its sign, which a rounded zero does not have: `+7.7 pts`, `-$0.002`, `$0`."""
    text = _format_number(metric, abs(value)).replace(" %", " pts")
    is_zero = not any(digit in text for digit in "123456789")
    return text if is_zero else f"{'-' if value < 0 else '+'}{text}"


def _format_interval(metric: Metric) -> str:
    if metric.low is None or metric.high is None:
        return ""
    low, high = (_format_change(metric.name, value) for value in (metric.low, metric.high))
    return f"{low.removesuffix(' pts')} to {high} ({metric.confidence * 100:.3g} %)"


def _format_case_count(metric: Metric) -> str:
    cases = format_count(metric.pairs, "case")
    if metric.base_trials == metric.head_trials == metric.pairs:
        return cases
    return f"{cases} ({metric.base_trials} and {metric.head_trials} trials)"


def _format_markdown(comparison: Comparison) -> str:
    lines = [f"### Viva: `{comparison.base}` → `{comparison.head}`", ""]
    counts = ", ".join(
        f"{comparison.count(change)} {change}"
        for change in (*_LISTED_CHANGES, "still passing")
        if comparison.count(change)
    )
    lines += [counts or "no cases", "", "| case | before | now |", "| --- | --- | --- |"]
    listed = [case for case in comparison.cases if case.change != "still passing"]
    label = make_case_labeller((case.suite, case.case) for case in comparison.cases)
    lines += [
        f"| {_CHANGE_MARKS.get(c.change, '')} {_escape_markdown(label(c.suite, c.case))} ({c.change}) | {_format_case_result(c.base, c.base_trials)} | {_format_case_result(c.head, c.head_trials)} |"
        for c in listed[:200]
    ]
    lines += ["", f"{len(listed) - 200} more cases are not listed."] if len(listed) > 200 else []
    lines += ["", "| metric | before | now | change | p | interval | over | test |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"]
    lines += [f"| {' | '.join(cell.strip() for cell in _list_metric_cells(m))} |" for m in comparison.metrics]
    lines += ["", *(f"- {note}" for note in comparison.notes)] if comparison.notes else []
    return "\n".join(lines)


def _escape_markdown(text: str) -> str:
    """Escape a case id for a Markdown table."""
    return "".join(c if c.isalnum() or c in " -_.:/" else f"&#{ord(c)};" for c in text)

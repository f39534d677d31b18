"""`viva compare`: compares two runs case by case."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from msgspec import Struct

from viva.cli.history import find_run, open_history, report_crashed_runs
from viva.errors import BadInput
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
from viva.history.index import ResultRow
from viva.history.trends import find_known_flaky
from viva.model import codec
from viva.model.record import Status, TrialRecord
from viva.record.atomic_files import replace_file
from viva.reporters.formatting import escape_controls, fit_line, format_count

EPILOG = """\b
Examples:
  viva compare latest~1 latest                             the two newest runs
  viva compare main.jsonl pr.jsonl -o comparison.md        two reports of `viva test -o`
  viva compare remote:latest latest                        the newest run of the team's history with that of this machine
  viva compare 20261114 latest --alpha 0.01                fewer false alarms
  viva compare latest~1 latest --fail-on pass-rate --fail-on cost

\b
Exit codes: 0 no regression, 1 a regression by --fail-on, 4 bad input.
"""
_SHOWN: tuple[ChangeKind, ...] = tuple(change for change in CHANGE_ORDER if change != "still passing")
_MARKS: dict[ChangeKind, str] = {
    "broken": "✗",
    "suspect": "?",
    "fixed": "✓",
    "maybe fixed": "?",
    "flaky": "~",
    "changed": "≠",
    "new": "+",
    "gone": "-",
}
_GATES: tuple[Gate, ...] = ("pass-rate", "score", "time", "cost", "broken")


@click.command(epilog=EPILOG)
@click.argument("base")
@click.argument("head")
@click.option(
    "--fail-on",
    "gates",
    type=click.Choice(_GATES),
    multiple=True,
    default=("pass-rate",),
    show_default=True,
    help=(
        "Exit with 1 if HEAD is worse by this. pass-rate, score, time, cost: by a paired test over all cases. broken: if one "
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
def command(base: str, head: str, gates: tuple[Gate, ...], alpha: float, outputs: tuple[Path, ...]) -> int:
    """Compare BASE with HEAD, case by case. Each is a run (an id, `latest`, `latest~1`, `remote:ID`) or a .jsonl or .json report."""
    for path in outputs:
        if path.suffix not in (".md", ".json"):
            raise BadInput.of(f"-o {path}: unknown extension; a comparison is written as .md or .json")
    history = open_history()
    report_crashed_runs(history)
    before, after = _load_results(base), _load_results(head)
    flaky = find_known_flaky(history, [before[0], after[0]])
    comparison = compare_runs(before, after, alpha=alpha, gates=gates, flaky=flaky)
    failed = comparison.failed_gates(gates)
    for line in _format_lines(comparison, gates, failed):
        print(line)
    for path in outputs:
        text = (
            codec.pretty_json(codec.encode(comparison)).decode()
            if path.suffix == ".json"
            else _format_markdown(comparison)
        )
        try:
            replace_file(path, f"{text}\n".encode())
        except OSError as error:
            raise BadInput.of(f"-o {path}: {error.strerror}") from error
    return 1 if failed else 0


def _load_results(name: str) -> tuple[str, Iterator[ResultRow]]:
    path = Path(name)
    if path.suffix in (".jsonl", ".json") and path.is_file():
        return name, map(ResultRow.of, _read_report(path))
    if path.suffix or "/" in name:
        reason = "is not a .jsonl or .json report" if path.exists() else "does not exist"
        raise BadInput.of(
            f"{name!r} {reason}; give a report of `viva test -o`, or a run: an id, latest, latest~1, remote:ID"
        )
    history = open_history()
    run = find_run(history, name).id
    return run, history.iter_results(run)


def _read_report(path: Path) -> Iterator[TrialRecord]:
    """Yield the records of a report of `viva test -o`."""
    number = 1
    try:
        if path.suffix == ".json":
            for case in codec.decode_kept(path.read_bytes(), type=_JsonReport).cases:
                yield from case.trials
            return
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007 -- used in the error below
                yield codec.decode_kept(line, type=TrialRecord)
    except codec.DecodeError as error:
        raise BadInput.of(f"is not a {path.suffix} report of `viva test -o`: {error}", str(path), number) from error
    except OSError as error:
        raise BadInput.of(f"cannot be read: {error.strerror}", str(path)) from error


class _ReportCase(Struct):
    trials: list[TrialRecord]


class _JsonReport(Struct):
    """The part of a .json report that is compared."""

    cases: list[_ReportCase]


def _format_lines(comparison: Comparison, gates: Sequence[Gate], failed: Sequence[Gate]) -> list[str]:
    lines = [f"{comparison.base} → {comparison.head}", ""]
    for change in _SHOWN:
        cases = [case for case in comparison.cases if case.change == change]
        if cases:
            lines.append(f"{change} ({len(cases)})")
            lines += [f"  {_MARKS.get(change, '·')} {_format_case(case)}" for case in cases[:50]]
            lines += [f"  … and {len(cases) - 50} more"] if len(cases) > 50 else []
    lines += [f"still passing ({comparison.count('still passing')})", ""]
    lines += [f"  {_format_metric(metric)}" for metric in comparison.metrics]
    lines += ["", *(f"  {note}" for note in comparison.notes)] if comparison.notes else []
    verdict = f"worse by {', '.join(failed)}" if failed else "no regression shown"
    return [*lines, "", f"{verdict} (--fail-on {' --fail-on '.join(gates)}, alpha {comparison.alpha:g})"]


def _format_case(case: CaseChange) -> str:
    text = f"{escape_controls(case.case)}  {_format_side(case.base, case.base_trials)} → {_format_side(case.head, case.head_trials)}"
    if case.p is not None and case.change not in ("still passing", "still failing"):
        text += f"  p={case.p:.3g}"
    return text + (f"  {fit_line(case.error, 200)}" if case.error and case.change in ("broken", "suspect") else "")


def _format_side(status: Status | None, trials: TrialCounts | None) -> str:
    """Return the status of a case in one run or, with repeats, how many trials passed."""
    if status is None or trials is None:
        return "–"
    if trials.judged + trials.errors < 2:
        return status
    return f"{trials.passed}/{trials.judged}" + (f" ({trials.errors} in error)" if trials.errors else "")


def _format_metric(metric: Metric) -> str:
    change = f"{metric.name:10} {metric.base:.4g} → {metric.head:.4g}  Δ {metric.delta:+.4g}"
    return f"{change}{_format_interval(metric)} over {_format_count(metric)}  {_format_test(metric)}"


def _format_interval(metric: Metric) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f" [{metric.low:+.4g}, {metric.high:+.4g}] ({metric.confidence * 100:.4g} %)"


def _format_count(metric: Metric) -> str:
    cases = format_count(metric.pairs, "case")
    if metric.base_trials == metric.head_trials == metric.pairs:
        return cases
    return f"{cases} ({metric.base_trials} and {metric.head_trials} trials)"


def _format_test(metric: Metric) -> str:
    return metric.verdict if metric.p is None else f"p={metric.p:.3g}: {metric.verdict}"


def _format_markdown(comparison: Comparison) -> str:
    lines = [f"### Viva: `{comparison.base}` → `{comparison.head}`", ""]
    counts = ", ".join(
        f"{comparison.count(change)} {change}" for change in (*_SHOWN, "still passing") if comparison.count(change)
    )
    lines += [counts or "no cases", "", "| case | before | now |", "| --- | --- | --- |"]
    listed = [case for case in comparison.cases if case.change != "still passing"]
    lines += [
        f"| {_MARKS.get(c.change, '')} {_escape_markdown(c.case)} ({c.change}) | {_format_side(c.base, c.base_trials)} | {_format_side(c.head, c.head_trials)} |"
        for c in listed[:200]
    ]
    lines += ["", f"{len(listed) - 200} more cases are not listed."] if len(listed) > 200 else []
    lines += ["", "| metric | before | now | change | test |", "| --- | ---: | ---: | ---: | --- |"]
    lines += [
        f"| {m.name} ({_format_count(m)}) | {m.base:.4g} | {m.head:.4g} | {m.delta:+.4g}{_format_interval(m)} | {_format_test(m)} |"
        for m in comparison.metrics
    ]
    lines += ["", *(f"- {note}" for note in comparison.notes)] if comparison.notes else []
    return "\n".join(lines)


def _escape_markdown(text: str) -> str:
    """Escape a case id for a Markdown table."""
    return "".join(c if c.isalnum() or c in " -_.:/" else f"&#{ord(c)};" for c in text)

"""`viva compare`: two runs side by side."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from msgspec import Struct

from viva.cli.history import open_history, report_crashed_runs
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
  viva compare latest~1 latest
  viva compare main.jsonl pr.jsonl -o comparison.md        reports as written by -o
  viva compare 20261114 latest --alpha 0.01
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
        "Exit 1 if HEAD is worse by this. pass-rate, score, time, cost: the paired test says so. broken: a single case is "
        "broken. Repeatable."
    ),
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=ALPHA,
    show_default=True,
    help="How often an alarm may be raised where nothing changed.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Write it as .md (for a pull request) or .json. Repeatable.",
)
def command(base: str, head: str, gates: tuple[Gate, ...], alpha: float, outputs: tuple[Path, ...]) -> int:
    """Compare BASE with HEAD: runs (an id, `latest`, `latest~1`) or .jsonl and .json reports, case by case."""
    for path in outputs:
        if path.suffix not in (".md", ".json"):
            raise BadInput.of(f"-o {path}: a comparison is written as .md or .json")
    history = open_history()
    report_crashed_runs(history)
    before, after = _results(base), _results(head)
    flaky = find_known_flaky(history, [before[0], after[0]])
    comparison = compare_runs(before, after, alpha=alpha, gates=gates, flaky=flaky)
    failed = comparison.failed_gates(gates)
    for line in _lines(comparison, gates, failed):
        print(line)
    for path in outputs:
        text = codec.pretty_json(codec.encode(comparison)).decode() if path.suffix == ".json" else _markdown(comparison)
        try:
            replace_file(path, f"{text}\n".encode())
        except OSError as wrong:
            raise BadInput.of(f"-o {path}: {wrong.strerror}") from wrong
    return 1 if failed else 0


def _results(name: str) -> tuple[str, list[ResultRow]]:
    path = Path(name)
    if path.suffix in (".jsonl", ".json") and path.is_file():
        return name, [ResultRow.of(record) for record in _reported(path)]
    if path.suffix or "/" in name:
        report = ".jsonl or .json report"
        raise BadInput.of(f"{name!r} is no {report}" if path.exists() else f"there is no {report} {name!r}")
    history = open_history()
    run = history.find_run(name).id
    return run, history.list_results(run)


def _reported(path: Path) -> Iterator[TrialRecord]:
    """The records of a report that `-o` has written."""
    number = 1
    try:
        raw = path.read_bytes()
        if path.suffix == ".json":
            for case in codec.decode_kept(raw, type=_Whole).cases:
                yield from case.trials
            return
        for number, line in enumerate(raw.splitlines(), 1):  # noqa: B007 -- the error below says it
            yield codec.decode_kept(line, type=TrialRecord)
    except codec.DecodeError as wrong:
        raise BadInput.of(f"is no {path.suffix} report: {wrong}", str(path), number) from wrong
    except OSError as wrong:
        raise BadInput.of(f"cannot be read: {wrong.strerror}", str(path)) from wrong


class _Case(Struct):
    trials: list[TrialRecord]


class _Whole(Struct):
    """As much of a .json report as is compared."""

    cases: list[_Case]


def _lines(comparison: Comparison, gates: Sequence[Gate], failed: Sequence[Gate]) -> list[str]:
    lines = [f"{comparison.base} → {comparison.head}", ""]
    for change in _SHOWN:
        found = [case for case in comparison.cases if case.change == change]
        if found:
            lines.append(f"{change} ({len(found)})")
            lines += [f"  {_MARKS.get(change, '·')} {_case(case)}" for case in found[:50]]
            lines += [f"  … and {len(found) - 50} more"] if len(found) > 50 else []
    lines += [f"still passing ({comparison.count('still passing')})", ""]
    lines += [f"  {_metric(metric)}" for metric in comparison.metrics]
    lines += ["", *(f"  {note}" for note in comparison.notes)] if comparison.notes else []
    verdict = f"worse by {', '.join(failed)}" if failed else "no regression shown"
    return [*lines, "", f"{verdict} (--fail-on {' --fail-on '.join(gates)}, alpha {comparison.alpha:g})"]


def _case(case: CaseChange) -> str:
    text = f"{escape_controls(case.case)}  {_side(case.base, case.base_trials)} → {_side(case.head, case.head_trials)}"
    if case.p is not None and case.change not in ("still passing", "still failing"):
        text += f"  p={case.p:.3g}"
    return text + (f"  {fit_line(case.error, 200)}" if case.error and case.change in ("broken", "suspect") else "")


def _side(status: Status | None, trials: TrialCounts | None) -> str:
    """A case in one run: its status or, with repeats, how many of its trials passed."""
    if status is None or trials is None:
        return "–"
    if trials.judged + trials.errors < 2:
        return status
    return f"{trials.passed}/{trials.judged}" + (f" ({trials.errors} in error)" if trials.errors else "")


def _metric(metric: Metric) -> str:
    change = f"{metric.name:10} {metric.base:.4g} → {metric.head:.4g}  Δ {metric.delta:+.4g}"
    return f"{change}{_interval(metric)} over {_denominator(metric)}  {_tested(metric)}"


def _interval(metric: Metric) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f" [{metric.low:+.4g}, {metric.high:+.4g}] ({metric.confidence * 100:.4g} %)"


def _denominator(metric: Metric) -> str:
    cases = format_count(metric.pairs, "case")
    if metric.base_trials == metric.head_trials == metric.pairs:
        return cases
    return f"{cases} ({metric.base_trials} and {metric.head_trials} trials)"


def _tested(metric: Metric) -> str:
    return metric.verdict if metric.p is None else f"p={metric.p:.3g}: {metric.verdict}"


def _markdown(comparison: Comparison) -> str:
    lines = [f"### Viva: `{comparison.base}` → `{comparison.head}`", ""]
    counts = ", ".join(
        f"{comparison.count(change)} {change}" for change in (*_SHOWN, "still passing") if comparison.count(change)
    )
    lines += [counts or "no cases", "", "| case | before | now |", "| --- | --- | --- |"]
    listed = [case for case in comparison.cases if case.change != "still passing"]
    lines += [
        f"| {_MARKS.get(c.change, '')} {_safe(c.case)} ({c.change}) | {_side(c.base, c.base_trials)} | {_side(c.head, c.head_trials)} |"
        for c in listed[:200]
    ]
    lines += ["", f"{len(listed) - 200} more cases are not listed here."] if len(listed) > 200 else []
    lines += ["", "| metric | before | now | change | test |", "| --- | ---: | ---: | ---: | --- |"]
    lines += [
        f"| {m.name} ({_denominator(m)}) | {m.base:.4g} | {m.head:.4g} | {m.delta:+.4g}{_interval(m)} | {_tested(m)} |"
        for m in comparison.metrics
    ]
    lines += ["", *(f"- {note}" for note in comparison.notes)] if comparison.notes else []
    return "\n".join(lines)


def _safe(text: str) -> str:
    """A case's id in a table: no markup, no cell of its own."""
    return "".join(c if c.isalnum() or c in " -_.:/" else f"&#{ord(c)};" for c in text)

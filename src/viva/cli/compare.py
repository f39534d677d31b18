"""`viva compare`: two runs side by side."""

from collections.abc import Iterator
from pathlib import Path

import click
from msgspec import Struct

from viva.cli.history import history_here, tell_cut_off
from viva.errors import BadInput
from viva.history.comparison import Change, Comparison, FailOn, Metric, compare
from viva.history.index import ResultRow
from viva.model import codec
from viva.model.record import TrialRecord
from viva.record.files import replace_file
from viva.reporters.visible import one_line, visible

EPILOG = """\b
Examples:
  viva compare latest~1 latest
  viva compare main.jsonl pr.jsonl -o comparison.md        reports as written by -o
  viva compare 20261114 latest --fail-on significant --alpha 0.01

\b
Exit codes: 0 no regression, 1 a regression by --fail-on, 4 bad input.
"""
_SHOWN: tuple[Change, ...] = ("broken", "fixed", "flaky", "still failing", "not judged", "changed", "new", "gone")
_MARKS: dict[Change, str] = {"broken": "✗", "fixed": "✓", "flaky": "~", "changed": "≠", "new": "+", "gone": "-"}


@click.command(epilog=EPILOG)
@click.argument("base")
@click.argument("head")
@click.option(
    "--fail-on",
    type=click.Choice(["broken", "significant", "any"]),
    default="broken",
    show_default=True,
    help="broken: a case that passed fails now. significant: a metric is worse beyond chance. any: either, however small.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="How often chance alone may look significant.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Write it as .md (for a pull request) or .json. Repeatable.",
)
def command(base: str, head: str, fail_on: FailOn, alpha: float, outputs: tuple[Path, ...]) -> int:
    """Compare BASE with HEAD: runs (an id, `latest`, `latest~1`) or .jsonl and .json reports, case by case."""
    for path in outputs:
        if path.suffix not in (".md", ".json"):
            raise BadInput.saying(f"-o {path}: a comparison is written as .md or .json")
    tell_cut_off(history_here())
    comparison = compare(_results(base), _results(head))
    for line in _lines(comparison, alpha):
        print(line)
    for path in outputs:
        text = (
            codec.pretty(codec.encode(comparison)).decode() if path.suffix == ".json" else _markdown(comparison, alpha)
        )
        try:
            replace_file(path, f"{text}\n".encode())
        except OSError as wrong:
            raise BadInput.saying(f"-o {path}: {wrong.strerror}") from wrong
    return 1 if comparison.is_regression(fail_on, alpha) else 0


def _results(name: str) -> tuple[str, list[ResultRow]]:
    path = Path(name)
    if path.suffix in (".jsonl", ".json") and path.is_file():
        return name, [ResultRow.of(record) for record in _reported(path)]
    if path.suffix or "/" in name:
        raise BadInput.saying(f"there is no .jsonl or .json report {name!r}")
    history = history_here()
    run = history.find(name).id
    return run, history.results(run)


def _reported(path: Path) -> Iterator[TrialRecord]:
    """The records of a report that `-o` has written."""
    number = 1
    try:
        raw = path.read_bytes()
        if path.suffix == ".json":
            for case in codec.decode(raw, type=_Whole).cases:
                yield from case.trials
            return
        for number, line in enumerate(raw.splitlines(), 1):  # noqa: B007 -- the error below says it
            yield codec.decode(line, type=TrialRecord)
    except (codec.DecodeError, codec.ValidationError) as wrong:
        raise BadInput.saying(f"is no {path.suffix} report: {wrong}", str(path), number) from wrong
    except OSError as wrong:
        raise BadInput.saying(f"cannot be read: {wrong.strerror}", str(path)) from wrong


class _Case(Struct):
    trials: list[TrialRecord]


class _Whole(Struct):
    """As much of a .json report as is compared."""

    cases: list[_Case]


def _lines(comparison: Comparison, alpha: float) -> list[str]:
    lines = [f"{comparison.base} → {comparison.head}", ""]
    for change in _SHOWN:
        found = [case for case in comparison.cases if case.change == change]
        if found:
            lines.append(f"{change} ({len(found)})")
            lines += [
                f"  {_MARKS.get(change, '·')} {visible(c.case)}  {c.base or '–'} → {c.head or '–'}"
                + (f"  {one_line(c.why, 200)}" if c.why and change == "broken" else "")
                for c in found[:50]
            ]
            lines += [f"  … and {len(found) - 50} more"] if len(found) > 50 else []
    lines += [f"still passing ({comparison.count('still passing')})", ""]
    lines += [f"  {_metric(metric, alpha)}" for metric in comparison.metrics]
    return lines


def _metric(metric: Metric, alpha: float) -> str:
    interval = f" [{metric.low:+.4g}, {metric.high:+.4g}]" if metric.low is not None and metric.high is not None else ""
    verdict = "worse" if metric.worse else "better" if metric.delta else "same"
    beyond = (
        "" if not metric.delta else f"{verdict}, p={metric.p:.3g}" + ("" if metric.p <= alpha else " (may be chance)")
    )
    return f"{metric.name:10} {metric.base:.4g} → {metric.head:.4g}  Δ {metric.delta:+.4g}{interval} over {metric.pairs} cases  {beyond}".rstrip()


def _markdown(comparison: Comparison, alpha: float) -> str:
    lines = [f"### Viva: `{comparison.base}` → `{comparison.head}`", ""]
    counts = ", ".join(
        f"{comparison.count(change)} {change}" for change in (*_SHOWN, "still passing") if comparison.count(change)
    )
    lines += [counts or "no cases", "", "| case | before | now |", "| --- | --- | --- |"]
    lines += [
        f"| {_MARKS.get(c.change, '')} {_safe(c.case)} ({c.change}) | {c.base or ''} | {c.head or ''} |"
        for c in comparison.cases
        if c.change != "still passing"
    ][:200]
    lines += ["", "| metric | before | now | change | p |", "| --- | ---: | ---: | ---: | ---: |"]
    lines += [
        f"| {m.name} ({m.pairs} cases) | {m.base:.4g} | {m.head:.4g} | {m.delta:+.4g} | {m.p:.3g}{'' if m.p <= alpha else ' (may be chance)'} |"
        for m in comparison.metrics
    ]
    return "\n".join(lines)


def _safe(text: str) -> str:
    """A case's id in a table: no markup, no cell of its own."""
    return "".join(c if c.isalnum() or c in " -_.:/" else f"&#{ord(c)};" for c in text)

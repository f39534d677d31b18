"""The texts of a `viva.RunResult`: a line, the failures with their reasons, a table for notebooks."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import islice
from typing import Any

from viva.model.event import RunEnded
from viva.model.record import STATUS_MARKS, Status, TrialRecord
from viva.reporters.failures import TrialFailure, explain_failure
from viva.reporters.formatting import escape_controls, escape_multiline, fit_line, format_ms, wrap_text
from viva.reporters.plain_text import format_transcript
from viva.reporters.summary import format_summary_line

_MAX_FAILURES = 20
_MAX_ROWS = 200
_MAX_LINE_WIDTH = 400
_MAX_LINES = 12
_MAX_LINE_CHARS = 120
"""pytest shows at most 240 characters of an object."""
_MAX_TEXT = 2000
_NOT_PASSED_STATUSES = frozenset({"failed", "error"})
_COLOURS: dict[Status, str] = {"passed": "#1a7f37", "failed": "#c0362c", "error": "#9a6700", "skipped": "#6e7781"}


def format_line(ended: RunEnded, first_failure: TrialRecord | None) -> str:
    summary = ended.summary
    counts = f"{summary.passed} of {summary.total} passed, exit code {ended.exit_code}, run {ended.run}"
    if first_failure is None:
        return f"<RunResult {counts}>"
    reason = fit_line(f"{first_failure.id}: {explain_failure(first_failure).headline}", _MAX_LINE_CHARS)
    return f"<RunResult {reason}; {counts}>"


def format_text(
    ended: RunEnded, records: Iterable[TrialRecord], agents: Sequence[str], empty_reason: str | None
) -> str:
    lines = [format_summary_line(ended)]
    failures = [record for record in records if record.status in _NOT_PASSED_STATUSES]
    for record in failures[:_MAX_FAILURES]:
        failure = explain_failure(record)
        agent = f" [{escape_controls(record.agent or '')}]" if len(agents) > 1 else ""
        trial = f" (trial {record.trial})" if record.trials > 1 else ""
        lines.append(f"{STATUS_MARKS[record.status]} {escape_controls(record.id)}{agent}{trial}: {failure.status_text}")
        lines += [f"    {line}" for reason in _list_reasons(failure) for line in _wrap_reason(reason)]
    if len(failures) > _MAX_FAILURES:
        lines.append(f"… and {len(failures) - _MAX_FAILURES} more")
    if empty_reason is not None:
        lines.append(escape_multiline(empty_reason))
    if ended.exit_code == 5:
        lines += _explain_no_verdict(records)
    return "\n".join(lines)


def format_html(ended: RunEnded, all_records: Iterable[TrialRecord]) -> str:
    records = sorted(all_records, key=lambda record: record.status not in _NOT_PASSED_STATUSES)
    more = f"<p>… and {len(records) - _MAX_ROWS} more</p>" if len(records) > _MAX_ROWS else ""
    rows = "".join(map(_format_html_row, records[:_MAX_ROWS]))
    verdict, colour = ("not passed", "#c0362c") if ended.exit_code else ("passed", "#1a7f37")
    head = escape(format_summary_line(ended))
    return f'<div><p><b style="color:{colour}">{verdict}</b> {head}</p>{rows}{more}</div>'


def _list_reasons(failure: TrialFailure) -> Iterator[str]:
    if failure.error:
        yield failure.error
    yield from (check.headline for check in failure.failed_checks)


def _wrap_reason(reason: str) -> list[str]:
    """The lines of a reason, such as the source of a function; those after the first are indented."""
    first, *rest = wrap_text(reason, _MAX_LINE_WIDTH, _MAX_LINES) or [""]
    return [first, *(f"    {line}" for line in rest)]


def _explain_no_verdict(records: Iterable[TrialRecord]) -> Iterator[str]:
    """Lines that say why nothing was checked, for a run with exit code 5."""
    for record in islice(records, _MAX_FAILURES):
        if record.error:
            yield f"{STATUS_MARKS[record.status]} {escape_controls(record.id)}: {fit_line(record.error, _MAX_LINE_WIDTH)}"


def build_row(record: TrialRecord) -> dict[str, Any]:
    usage = record.usage
    return {
        "suite": record.suite,
        "agent": record.agent,
        "id": record.id,
        "trial": record.trial,
        "status": record.status,
        "fault": record.fault,
        "reason": None if record.status == "passed" else explain_failure(record).headline,
        "score": record.score,
        "input": record.turns[0].input if record.turns else None,
        "output": record.turns[-1].output if record.turns else None,
        "turns": record.total_turns,
        "tools": [call.name for turn in record.turns for call in turn.tool_calls],
        "duration_ms": record.duration_ms,
        "input_tokens": usage.input_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "cost_usd": record.cost_usd,
        "tags": list(record.tags),
    }


def _format_html_row(record: TrialRecord) -> str:
    """A trial as HTML. All texts come from the agent or the suite, so all are escaped."""
    failure = None if record.status == "passed" else explain_failure(record)
    texts = ("\n".join(_wrap_reason(reason)) for reason in _list_reasons(failure)) if failure else ()
    reasons = "".join(f'<li style="white-space:pre-wrap">{escape(text)}</li>' for text in texts)
    trial = f" · trial {record.trial}" if record.trials > 1 else ""
    return (
        f'<details><summary><b style="color:{_COLOURS[record.status]}">{STATUS_MARKS[record.status]} {record.status}</b> '
        f"{escape(escape_controls(record.id))}{trial} · {format_ms(record.duration_ms)}"
        f"{' · ' + escape(fit_line(failure.headline, 160)) if failure else ''}</summary>"
        f"{f'<ul>{reasons}</ul>' if reasons else ''}"
        f'<pre style="white-space:pre-wrap">{escape(format_transcript(record, _MAX_TEXT))}</pre></details>'
    )

"""`.md`: a comment for a pull request: the outcome, the counts, cases that did not pass, and folded transcripts.

Texts of agents and cases are escaped: their markup is not rendered.
"""

import html
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from viva.model.event import RunEnded
from viva.model.record import Status
from viva.reporters.failures import explain_failure
from viva.reporters.formatting import fit_line, format_count, format_ms, shorten_id
from viva.reporters.matrix import build_run_matrix, format_matrix_markdown
from viva.reporters.plain_text import clip_text, format_failure_text, format_transcript
from viva.reporters.repeats import RepeatStatistics, explain_undetermined, format_case_rate
from viva.reporters.report import CaseTrials, Report, group_equal_texts, prefix_trial_number
from viva.reporters.summary import (
    describe_cost,
    describe_lost_reports,
    describe_retries,
    describe_stop,
    describe_suites,
    format_counts,
    format_trial_counts,
)
from viva.stats.pass_rate import pass_rate
from viva.stats.values import summarize_values

# GitHub cuts a comment at 65,536 characters. What does not fit is format_count; other reports have it.
_ROWS_ROOM = 20_000
_REPEATS_ROOM = 10_000
_FINDINGS_ROOM = 5_000
_TOTAL_ROOM = 60_000
_REASON_ROOM = 300
_TEXT_ROOM = 2_000
_DETAILS_ROOM = 10_000
_ICONS: dict[Status, str] = {"passed": "✅", "failed": "❌", "error": "⚠️", "skipped": "⏭️"}
_MARKUP = re.compile(r"[!#$&()*+.:<>\[\\\]^_`{|}~-]")


class MarkdownReport(Report):
    """Writes the Markdown report. It reads the journal once for each section."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        text = _format_overview(ended) + self._format_agents() + self._format_repeats()
        rows, left_out = _fit_cases(self._iter_not_passed(), _format_case_row, _ROWS_ROOM)
        if rows:
            text += "\n### Not passed\n\n| Case | Status | Reason |\n| --- | --- | --- |\n" + rows
        text += _format_omitted_count(left_out)
        text += self._format_findings()
        cases = (case for case in self._iter_not_passed() if case.status != "skipped")
        details, left_out = _fit_cases(
            cases, lambda case: _format_details(case, self.settings), _TOTAL_ROOM - len(text)
        )
        text += f"\n{details}" if details else ""
        if left_out:
            text += f"\n{format_count(left_out, 'more transcript')} not shown here.\n"
        out.write(text.encode())

    def _format_agents(self) -> str:
        """The matrix of a run of several agents."""
        matrix = build_run_matrix(self._started, self.cases())
        return "" if matrix is None else f"\n### Agents\n\n{format_matrix_markdown(matrix, escape_markdown)}"

    def _format_repeats(self) -> str:
        """The pass rate of each case, for runs with several trials per case."""
        if self._started is None or self._started.trials <= self._started.cases:
            return ""
        repeats = RepeatStatistics(self.rule)
        for case in self.cases():
            repeats.add(case)
        text = None if self._has_several_agents else repeats.format_rate()  # the matrix has that of each agent
        rate = f"Pass rate: {escape_markdown(text)}\n\n" if text else ""
        rows, left_out = _fit_cases(self.cases(), _format_repeated_case, _REPEATS_ROOM)
        return (
            f"\n### Repeats\n\n{rate}"
            f"| Case | Trials (95 % interval) | Turns | Time p50, p95 |\n| --- | --- | ---: | ---: |\n{rows}{_format_omitted_count(left_out)}"
        )

    def _format_findings(self) -> str:
        """The findings of safety checks, also of cases that passed."""
        cases = (case for case in self.cases() if case.findings)
        rows, left_out = _fit_cases(
            cases, lambda case: f"| {_format_title(case)} | {', '.join(case.findings)} |\n", _FINDINGS_ROOM
        )
        head = "\n### Safety findings\n\n| Case | Findings |\n| --- | --- |\n"
        return f"{head}{rows}{_format_omitted_count(left_out)}" if rows else ""

    def _iter_not_passed(self) -> Iterator[CaseTrials]:
        """Cases with a trial that did not pass."""
        return (case for case in self.cases() if {case.status, *case.statuses} != {"passed"})


def escape_markdown(text: str) -> str:
    """Escapes markup as character references, and `@` so that it mentions no user."""
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", text).replace("@", "&#64;<!-- -->")


def _format_overview(ended: RunEnded) -> str:
    summary = ended.summary
    counts = {
        "Total": summary.total,
        "Passed": summary.passed,
        "Failed": summary.failed,
        "Errors": summary.errors,
        **({"Undecided": summary.undecided} if summary.undecided else {}),
        "Skipped": summary.skipped,
        "Not run": summary.not_run,
    }
    rows = [*describe_retries(summary), *describe_cost(summary), *describe_suites(summary)]
    facts = [
        f"{summary.checks_passed:,}/{summary.checks:,} checks passed",
        f"{format_count(summary.total_turns, 'turn')} ({summary.avg_turns:.1f} per test)",
        format_ms(summary.duration_ms),
        *(f"{label.lower()}: {text}" for label, text in rows),
        *(f"{label.lower()}: {escape_markdown(text)}" for label, text in describe_lost_reports(summary)),
    ]
    if sum(summary.trials.values()) > summary.total - summary.not_run:
        facts.append(f"trials: {format_trial_counts(summary)}")
    text = (
        f"## {'✅' if ended.exit_code == 0 else '❌'} Viva: {format_counts(summary)}\n\n"
        f"| {' | '.join(counts)} |\n|{' ---: |' * len(counts)}\n"
        f"| {' | '.join(f'{count:,}' for count in counts.values())} |\n\n{' · '.join(facts)}\n"
    )
    stop = describe_stop(ended)
    return text if stop is None else f"{text}\nStopped: {escape_markdown(stop)}\n"


def _format_title(case: CaseTrials) -> str:
    """The id, shortened in the middle, and the name."""
    name = "" if case.head.name == case.head.id else case.head.name
    title = fit_line(f"{shorten_id(case.head.id, 80)} {name}".rstrip(), 120)
    return escape_markdown(f"{title} [{fit_line(case.head.agent or '', 60)}]" if case.names_agent else title)


def _format_status(case: CaseTrials) -> str:
    return "undecided" if case.rule.is_undecided(case.statuses) else case.status


def _format_case_row(case: CaseTrials) -> str:
    failure = explain_failure(case.pick_record(case.records()))
    undetermined = explain_undetermined(case.statuses, case.rule, case.missing)
    status = _format_status(case)
    if failure.status == case.status and undetermined is None:
        status = failure.status_text
    if len(case.heads) > 1:
        status += (
            f", {format_case_rate(case.statuses, case.rule, case.missing)}" if pass_rate(case.statuses).decided else ""
        )
    title, reason = _format_title(case), escape_markdown(fit_line(undetermined or failure.headline, _REASON_ROOM))
    return f"| {title} | {_ICONS[case.status]} {status} | <code>{reason}</code> |\n"


def _format_omitted_count(count: int) -> str:
    return f"\n{count:,} more are not listed here.\n" if count else ""


def _format_repeated_case(case: CaseTrials) -> str:
    turns = summarize_values(head.total_turns for head in case.heads)
    times = summarize_values(head.duration_ms for head in case.heads)
    spread = f"{turns.mean:.1f} | {format_ms(times.p50)}, {format_ms(times.p95)}" if turns and times else "|"
    return f"| {_format_title(case)} | {escape_markdown(format_case_rate(case.statuses, case.rule, case.missing))} | {spread} |\n"


def _format_details(case: CaseTrials, settings: Mapping[str, Any]) -> str:
    """Failures and one transcript, folded, as escaped text inside `<pre>`."""
    failed = [record for record in case.records() if record.status != "passed"]
    texts = group_equal_texts(
        case, ((record, format_failure_text(explain_failure(record, settings))) for record in failed)
    )
    texts += [
        prefix_trial_number(case, record, f"\n{format_transcript(record, _TEXT_ROOM)}".rstrip())
        for record in failed[:1]
    ]
    title = _format_title(case)
    body = html.escape(clip_text("\n\n".join(texts), _DETAILS_ROOM), quote=False)
    return f"<details><summary>{title}: {_format_status(case)}</summary>\n\n<pre>\n{body}\n</pre>\n\n</details>\n\n"


def _fit_cases(cases: Iterator[CaseTrials], render: Callable[[CaseTrials], str], room: int) -> tuple[str, int]:
    """The text of the cases that fit, and the number of cases that are left out."""
    text, left_out = "", 0
    for case in cases:
        piece = "" if left_out else render(case)
        if left_out or len(text) + len(piece) > room:
            left_out += 1
        else:
            text += piece
    return text, left_out

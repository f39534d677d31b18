"""`.md`: a comment for a pull request: the verdict, the counts, what did not pass and why, transcripts to unfold.

All that was said by agents or written in cases is text here: it renders as itself, whatever markup it holds.
"""

import html
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from viva.model.event import RunEnded
from viva.model.record import Status
from viva.reporters.failures import explain_failure
from viva.reporters.formatting import fit_line, shorten_id
from viva.reporters.numbers import format_count, format_ms
from viva.reporters.plain_text import clip_text, format_failure_text, format_transcript
from viva.reporters.repeats import RepeatFigures, explain_undetermined, format_case_rate
from viva.reporters.report import CaseTrials, Report, group_texts, label_trial
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

# GitHub cuts a comment at 65,536 characters: what does not fit is counted, and stands in the other reports.
_ROWS_ROOM = 20_000
_REPEATS_ROOM = 10_000
_FINDINGS_ROOM = 5_000
_WHOLE_ROOM = 60_000
_WHY_ROOM = 300
_TEXT_ROOM = 2_000
_DETAILS_ROOM = 10_000
_ICONS: dict[Status, str] = {"passed": "✅", "failed": "❌", "error": "⚠️", "skipped": "⏭️"}
_MARKUP = re.compile(r"[!#$&()*+.:<>\[\\\]^_`{|}~-]")


class MarkdownReport(Report):
    """Goes through the journal for each of its parts: what did not pass, what was found, and the transcripts."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        text = _overview(ended) + self._repeats()
        rows, left_out = _fitting(self._not_passed(), _row, _ROWS_ROOM)
        if rows:
            text += "\n### Not passed\n\n| Case | Status | Why |\n| --- | --- | --- |\n" + rows
        if left_out:
            text += f"\n{left_out:,} more are not listed here.\n"
        text += self._findings()
        told = (case for case in self._not_passed() if case.status != "skipped")
        details, left_out = _fitting(told, _details, _WHOLE_ROOM - len(text))
        text += f"\n{details}" if details else ""
        if left_out:
            text += f"\n{format_count(left_out, 'more transcript')} did not fit here.\n"
        out.write(text.encode())

    def _repeats(self) -> str:
        """How often each case passed, where cases were tried several times."""
        if self._started is None or self._started.trials <= self._started.cases:
            return ""
        whole = RepeatFigures(self.rule)
        for case in self.cases():
            whole.add(case)
        rate = f"Pass rate: {escape_markdown(text)}\n\n" if (text := whole.format_rate()) else ""
        rows, left_out = _fitting(self.cases(), _repeated, _REPEATS_ROOM)
        told = f"\n{left_out:,} more are not listed here.\n" if left_out else ""
        return (
            f"\n### Repeats\n\n{rate}"
            f"| Case | Trials (95 % interval) | Turns | Time p50, p95 |\n| --- | --- | ---: | ---: |\n{rows}{told}"
        )

    def _findings(self) -> str:
        """What safety checks found, whether or not it failed a case."""
        found = (case for case in self.cases() if case.findings)
        rows, left_out = _fitting(found, _found, _FINDINGS_ROOM)
        told = f"\n{left_out:,} more are not listed here.\n" if left_out else ""
        return f"\n### Findings\n\n| Case | Found |\n| --- | --- |\n{rows}{told}" if rows else ""

    def _not_passed(self) -> Iterator[CaseTrials]:
        """Cases that did not pass, or of which some trial did not."""
        return (case for case in self.cases() if {case.status, *case.statuses} != {"passed"})


def escape_markdown(said: str) -> str:
    """Text that Markdown and HTML leave alone: each sign of markup as a character reference; no mention calls anybody."""
    return _MARKUP.sub(lambda sign: f"&#{ord(sign[0])};", said).replace("@", "&#64;<!-- -->")


def _overview(ended: RunEnded) -> str:
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
    facts = [
        f"{summary.checks_passed:,}/{summary.checks:,} checks passed",
        f"{format_count(summary.total_turns, 'turn')} ({summary.avg_turns:.1f} a test)",
        format_ms(summary.duration_ms),
        *(
            f"{label.lower()}: {text}"
            for label, text in (*describe_retries(summary), *describe_cost(summary), *describe_suites(summary))
        ),
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


def _title(case: CaseTrials) -> str:
    """The id, whose middle is left out where it is long, and the name."""
    name = "" if case.head.name == case.head.id else case.head.name
    return escape_markdown(fit_line(f"{shorten_id(case.head.id, 80)} {name}".rstrip(), 120))


def _row(case: CaseTrials) -> str:
    found = explain_failure(case.pick_record(case.records()))
    open_ = explain_undetermined(case.statuses, case.rule, case.missing)
    verdict = "undecided" if case.rule.is_undecided(case.statuses) else case.status
    if found.status == case.status and open_ is None:
        verdict = found.status_text
    if len(case.heads) > 1:
        verdict += f", {format_case_rate(case.statuses, case.rule)}" if pass_rate(case.statuses).judged else ""
    title, reason = _title(case), escape_markdown(fit_line(open_ or found.headline, _WHY_ROOM))
    return f"| {title} | {_ICONS[case.status]} {verdict} | <code>{reason}</code> |\n"


def _found(case: CaseTrials) -> str:
    return f"| {_title(case)} | {', '.join(case.findings)} |\n"


def _repeated(case: CaseTrials) -> str:
    turns, times = (
        summarize_values(h.total_turns for h in case.heads),
        summarize_values(h.duration_ms for h in case.heads),
    )
    spread = f"{turns.mean:.1f} | {format_ms(times.p50)}, {format_ms(times.p95)}" if turns and times else "|"
    return f"| {_title(case)} | {escape_markdown(format_case_rate(case.statuses, case.rule))} | {spread} |\n"


def _details(case: CaseTrials) -> str:
    """What happened, folded. Inside `<pre>` nothing is Markdown, and nothing of the text is HTML."""
    failed = [record for record in case.records() if record.status != "passed"]
    texts = group_texts(case, ((record, format_failure_text(explain_failure(record))) for record in failed))
    texts += [label_trial(case, record, f"\n{format_transcript(record, _TEXT_ROOM)}".rstrip()) for record in failed[:1]]
    title = _title(case)
    body = html.escape(clip_text("\n\n".join(texts), _DETAILS_ROOM), quote=False)
    return f"<details><summary>{title}: {case.status}</summary>\n\n<pre>\n{body}\n</pre>\n\n</details>\n\n"


def _fitting(cases: Iterator[CaseTrials], render: Callable[[CaseTrials], str], room: int) -> tuple[str, int]:
    """As many cases as there is room for, whole ones only, and how many are left out."""
    text, left_out = "", 0
    for case in cases:
        piece = "" if left_out else render(case)
        if left_out or len(text) + len(piece) > room:
            left_out += 1
        else:
            text += piece
    return text, left_out

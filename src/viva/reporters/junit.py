"""`.xml`: JUnit for GitLab and Jenkins: a testsuite for each suite, a testcase for each case."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, BinaryIO
from xml.sax.saxutils import escape, quoteattr

from viva.model.event import RunEnded, SuiteSummary
from viva.model.message import Usage
from viva.model.record import Status, TrialRecord
from viva.reporters.commands import split_source
from viva.reporters.failures import explain_failure
from viva.reporters.formatting import escape_controls, escape_multiline, fit_line
from viva.reporters.plain_text import format_failure_text, format_transcript
from viva.reporters.repeats import explain_undetermined
from viva.reporters.report import CaseTrials, Report, group_equal_texts, prefix_trial_number

_TEXT_ROOM = 20_000
_MESSAGE_ROOM = 300
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _SuiteCounts:
    """The counts of a suite, which JUnit needs before its cases."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._statuses: Counter[Status] = Counter()
        self._ms = 0.0

    def add(self, status: Status, ms: float) -> None:
        self._statuses[status] += 1
        self._ms += ms

    def attributes(self) -> dict[str, str]:
        names: dict[str, Status] = {"failures": "failed", "errors": "error", "skipped": "skipped"}
        counts = {name: str(self._statuses[status]) for name, status in names.items()}
        total = str(self._statuses.total())
        return {"name": self._name, "tests": total, **counts, "time": _format_seconds(self._ms)}


class JunitReport(Report):
    """Writes the JUnit report. It reads the journal twice: to count, and to write."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        summaries: dict[str, list[SuiteSummary]] = {}
        for summary in ended.summary.suites:
            summaries.setdefault(summary.suite, []).append(summary)
        total, suites = self._count_cases(summaries)
        timestamp = {"timestamp": self._started.at} if self._started else {}
        out.write(b'<?xml version="1.0" encoding="UTF-8"?>\n')
        out.write(_open_tag("testsuites", total.attributes() | timestamp))
        for counts, (suite, cases) in zip(suites, groupby(self.cases(), key=lambda case: case.head.suite), strict=True):
            out.write(_open_tag("testsuite", counts.attributes() | timestamp))
            out.writelines("".join(_format_testcase(case, self.settings)).encode() for case in cases)
            for summary in summaries.get(suite, ()):
                out.write("".join(_format_threshold(summary, names_agent=self._has_several_agents)).encode())
            out.write(b"</testsuite>\n")
        out.write(b"</testsuites>\n")

    def _count_cases(self, summaries: Mapping[str, Sequence[SuiteSummary]]) -> tuple[_SuiteCounts, list[_SuiteCounts]]:
        total, suites = _SuiteCounts("viva"), list[_SuiteCounts]()
        for suite, cases in groupby(self.cases(), key=lambda case: case.head.suite):
            counts = _SuiteCounts(suite or "viva")
            for case in cases:
                ms = sum(head.duration_ms for head in case.heads)
                counts.add(case.status, ms)
                total.add(case.status, ms)
            for summary in summaries.get(suite, ()):
                status: Status = "failed" if summary.failures else "passed"
                counts.add(status, 0.0)
                total.add(status, 0.0)
            suites.append(counts)
        return total, suites


def _format_threshold(summary: SuiteSummary, *, names_agent: bool) -> Iterator[str]:
    """The threshold of a suite as a testcase, since JUnit has no exit code."""
    name = f"suite threshold [{summary.agent}]" if names_agent else "suite threshold"
    attributes = {"name": name, "classname": summary.suite, "time": _format_seconds(0.0)}
    yield f"<testcase{_format_attributes(attributes)}>\n"
    if summary.failures:
        yield f"<failure{_format_attributes({'message': '; '.join(summary.failures), 'type': 'threshold'})}/>\n"
    yield "</testcase>\n"


def _format_testcase(case: CaseTrials, settings: Mapping[str, Any]) -> Iterator[str]:
    records = case.records()
    file, line = split_source(records[0].source)
    attributes = {
        "name": case.title,
        "classname": case.head.suite or "viva",
        "time": _format_seconds(sum(record.duration_ms for record in records)),
    }
    if file is not None:
        attributes["file"] = file
    if line is not None:
        attributes["line"] = str(line)
    yield f"<testcase{_format_attributes(attributes)}>\n"
    yield from _format_properties(case, records)
    yield from _format_outcome(case, records, settings)
    output = "\n".join(_format_system_out(case, record) for record in records)
    yield f"<system-out>{_escape_text(output)}</system-out>\n</testcase>\n"


def _format_outcome(case: CaseTrials, records: list[TrialRecord], settings: Mapping[str, Any]) -> Iterator[str]:
    """A failure, an error or a skip, with all trials that did not pass."""
    status = case.status
    if status == "passed":
        return
    failure = explain_failure(case.pick_record(records))
    undetermined = explain_undetermined(case.statuses, case.rule, case.missing)
    message = fit_line(undetermined or failure.headline, _MESSAGE_ROOM)
    if status == "skipped":
        yield f"<skipped{_format_attributes({'message': message})}/>\n"
        return
    failed = (record for record in records if record.status != "passed")
    texts = group_equal_texts(
        case, ((record, format_failure_text(explain_failure(record, settings))) for record in failed)
    )
    tag = "failure" if status == "failed" else "error"
    kind = "undetermined" if undetermined else failure.fault or status
    if case.rule.is_undecided(case.statuses):
        kind = "undecided"
    yield f"<{tag}{_format_attributes({'message': message, 'type': kind})}>{_escape_text(chr(10).join(texts))}</{tag}>\n"


def _format_system_out(case: CaseTrials, record: TrialRecord) -> str:
    warnings = [f"warning: {escape_multiline(warning)}" for warning in record.warnings or ()]
    warnings += [f"note: {escape_multiline(note)}" for note in record.notes or ()]
    return prefix_trial_number(
        case, record, "\n".join([record.status, format_transcript(record, _TEXT_ROOM), *warnings])
    )


def _format_properties(case: CaseTrials, records: list[TrialRecord]) -> Iterator[str]:
    properties = [("agent", records[0].agent)] if records[0].agent else []
    properties += [("tag", tag) for tag in records[0].tags]
    properties += [("finding", finding) for finding in case.findings]
    if len(records) > 1:
        properties.append(("trials", " ".join(record.status for record in records)))
    if retried := sum(record.attempt > 1 for record in records):
        properties.append(("retried", str(retried)))
    usages = [record.usage for record in records if record.usage is not None]
    if usages:
        properties.append(("tokens", str(sum(usage.total_tokens for usage in usages))))
        properties.append(("cost_usd", _format_total_cost(usages)))
    if properties:
        yield "<properties>\n"
        yield from (f"<property{_format_attributes({'name': name, 'value': value})}/>\n" for name, value in properties)
        yield "</properties>\n"


def _format_total_cost(usages: list[Usage]) -> str:
    costs = [usage.cost_usd for usage in usages]
    known = [cost for cost in costs if cost is not None]
    return f"{sum(known):.6f}" if len(known) == len(costs) else "unknown"


def _format_seconds(ms: float) -> str:
    return f"{ms / 1000:.3f}"


def _open_tag(tag: str, attributes: Mapping[str, str]) -> bytes:
    return f"<{tag}{_format_attributes(attributes)}>\n".encode()


def _format_attributes(attributes: Mapping[str, str]) -> str:
    return "".join(
        f" {name}={quoteattr(_NOT_XML.sub('', escape_controls(value)))}" for name, value in attributes.items()
    )


def _escape_text(text: str) -> str:
    return escape(_NOT_XML.sub("", text), {"\r": "&#13;"})

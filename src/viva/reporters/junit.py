"""`.xml`: JUnit, as GitLab and Jenkins read it: a testsuite for each suite, a testcase for each case, trials in its text."""

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import BinaryIO
from xml.sax.saxutils import escape, quoteattr

from msgspec import Struct

from viva.model.event import RunEnded, SuiteSummary
from viva.model.message import Usage
from viva.model.record import Status, TrialRecord
from viva.reporters.failures import explain_failure, split_source
from viva.reporters.formatting import escape_controls, escape_multiline, fit_line
from viva.reporters.plain_text import format_failure_text, format_transcript
from viva.reporters.repeats import explain_undetermined
from viva.reporters.report import CaseTrials, Report, group_texts, label_trial

_TEXT_ROOM = 20_000
_MESSAGE_ROOM = 300
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Counts(Struct):
    """What JUnit wants to know of a suite before its cases."""

    name: str
    tests: int = 0
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    ms: float = 0.0

    def add(self, status: Status, ms: float) -> None:
        self.tests += 1
        self.failures += status == "failed"
        self.errors += status == "error"
        self.skipped += status == "skipped"
        self.ms += ms

    def attributes(self) -> dict[str, str]:
        counts = {"tests": self.tests, "failures": self.failures, "errors": self.errors, "skipped": self.skipped}
        return {"name": self.name, **{key: str(count) for key, count in counts.items()}, "time": _time(self.ms)}


class JunitReport(Report):
    """Goes through the journal twice: once to count, once to write."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        thresholds = {standing.suite: standing for standing in ended.summary.suites}
        whole, suites = self._counted(thresholds)
        stamp = {"timestamp": self._started.at} if self._started else {}
        out.write(b'<?xml version="1.0" encoding="UTF-8"?>\n')
        out.write(_open("testsuites", whole.attributes() | stamp))
        for counts, (suite, cases) in zip(suites, groupby(self.cases(), key=lambda case: case.head.suite), strict=True):
            out.write(_open("testsuite", counts.attributes() | stamp))
            out.writelines("".join(_testcase(case)).encode() for case in cases)
            if suite in thresholds:
                out.write("".join(_threshold(thresholds[suite])).encode())
            out.write(b"</testsuite>\n")
        out.write(b"</testsuites>\n")

    def _counted(self, thresholds: Mapping[str, SuiteSummary]) -> tuple[_Counts, list[_Counts]]:
        whole, suites = _Counts("viva"), list[_Counts]()
        for suite, cases in groupby(self.cases(), key=lambda case: case.head.suite):
            counts = _Counts(suite or "viva")
            for case in cases:
                ms = sum(head.duration_ms for head in case.heads)
                counts.add(case.status, ms)
                whole.add(case.status, ms)
            if suite in thresholds:
                for each in (counts, whole):
                    each.add("failed" if thresholds[suite].failures else "passed", 0.0)
            suites.append(counts)
        return whole, suites


def _threshold(standing: SuiteSummary) -> Iterator[str]:
    """What a suite has to reach as a whole is a testcase too: readers of JUnit see no exit code."""
    yield f"<testcase{_attributes({'name': 'the suite as a whole', 'classname': standing.suite, 'time': _time(0.0)})}>\n"
    if missed := standing.failures:
        yield f"<failure{_attributes({'message': '; '.join(missed), 'type': 'bar'})}/>\n"
    yield "</testcase>\n"


def _testcase(case: CaseTrials) -> Iterator[str]:
    records = case.records()
    file, line = split_source(records[0].source)
    attributes = {
        "name": case.title,
        "classname": case.head.suite or "viva",
        "time": _time(sum(record.duration_ms for record in records)),
    }
    if file is not None:
        attributes["file"] = file
    if line is not None:
        attributes["line"] = str(line)
    yield f"<testcase{_attributes(attributes)}>\n"
    yield from _properties(case, records)
    yield from _outcome(case, records)
    said = "\n".join(_system_out(case, record) for record in records)
    yield f"<system-out>{_text(said)}</system-out>\n</testcase>\n"


def _outcome(case: CaseTrials, records: list[TrialRecord]) -> Iterator[str]:
    """A failure, an error or a skip, with every trial that explains it."""
    status = case.status
    if status == "passed":
        return
    first = explain_failure(case.pick_record(records))
    open_ = explain_undetermined(case.statuses, case.rule, case.missing)
    message = fit_line(open_ or first.headline, _MESSAGE_ROOM)
    if status == "skipped":
        yield f"<skipped{_attributes({'message': message})}/>\n"
        return
    texts = group_texts(
        case,
        ((record, format_failure_text(explain_failure(record))) for record in records if record.status != "passed"),
    )
    tag = "failure" if status == "failed" else "error"
    kind = "undecided" if case.rule.is_undecided(case.statuses) else "undetermined" if open_ else first.fault or status
    yield f"<{tag}{_attributes({'message': message, 'type': kind})}>{_text(chr(10).join(texts))}</{tag}>\n"


def _system_out(case: CaseTrials, record: TrialRecord) -> str:
    warnings = [f"warning: {escape_multiline(warning)}" for warning in record.warnings or ()]
    warnings += [f"note: {escape_multiline(note)}" for note in record.notes or ()]
    return label_trial(case, record, "\n".join([record.status, format_transcript(record, _TEXT_ROOM), *warnings]))


def _properties(case: CaseTrials, records: list[TrialRecord]) -> Iterator[str]:
    found = [("tag", tag) for tag in records[0].tags]
    found += [("finding", each) for each in case.findings]
    if len(records) > 1:
        found.append(("trials", " ".join(record.status for record in records)))
    if retried := sum(record.attempt > 1 for record in records):
        found.append(("retried", str(retried)))
    usages = [record.usage for record in records if record.usage is not None]
    if usages:
        found.append(("tokens", str(sum(usage.total_tokens for usage in usages))))
        found.append(("cost_usd", _cost(usages)))
    if found:
        yield "<properties>\n"
        yield from (f"<property{_attributes({'name': name, 'value': value})}/>\n" for name, value in found)
        yield "</properties>\n"


def _cost(usages: list[Usage]) -> str:
    costs = [usage.cost_usd for usage in usages]
    known = [cost for cost in costs if cost is not None]
    return f"{sum(known):.6f}" if len(known) == len(costs) else "unknown"


def _time(ms: float) -> str:
    return f"{ms / 1000:.3f}"


def _open(tag: str, attributes: Mapping[str, str]) -> bytes:
    return f"<{tag}{_attributes(attributes)}>\n".encode()


def _attributes(attributes: Mapping[str, str]) -> str:
    return "".join(
        f" {name}={quoteattr(_NOT_XML.sub('', escape_controls(value)))}" for name, value in attributes.items()
    )


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("", text), {"\r": "&#13;"})

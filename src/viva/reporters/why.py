"""Why a trial did not pass, as data: which turn, which check, what was expected. Each reporter only lays it out."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct

from viva.errors import Fault
from viva.model.record import CheckpointRecord, Status, TrialRecord, TurnRecord
from viva.reporters.visible import literal, question

_VALUE_ROOM = 2000
_SCRIPTS = "scripts:"  # such a suite is run by its own name, not by the file that holds it
_REGEX_SIGN = re.compile(r"[\\.^$*+?{}\[\]|()]")


class Finding(Struct, frozen=True):
    """One thing that did not hold or, if `broken`, could not be found out. `turn` is None for what is no turn's."""

    place: str
    label: str = ""
    turn: TurnRecord | None = None
    broken: bool = False
    message: str = ""
    reason: str = ""
    expected: str | None = None
    actual: str | None = None
    suggestions: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The check's name and what its author has to say to its failure."""
        return " · ".join(part for part in (self.label, self.message) if part)

    @property
    def headline(self) -> str:
        """The finding in one line."""
        why = self.reason or (f"expected {self.expected}, was {self.actual}" if self.expected is not None else "")
        return ": ".join(part for part in (self.place, self.title, why) if part)


class Why(Struct, frozen=True):
    """All that explains one trial that did not pass. `asked` is the question that nobody answered."""

    status: Status
    fault: Fault | None
    findings: tuple[Finding, ...]
    error: str | None
    hint: str | None
    asked: str | None
    file: str | None
    line: int | None
    command: str | None
    workspace: str | None = None
    """Where the files are that the agent left."""

    @property
    def source(self) -> str | None:
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def verdict(self) -> str:
        """Status and fault: `error (infra)`."""
        return f"{self.status} ({self.fault})" if self.fault else self.status

    @property
    def headline(self) -> str:
        """The whole in one line."""
        first = self.findings[0].headline if self.findings else ""
        more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
        return self.error or first + more or self.status


def why(record: TrialRecord) -> Why:
    """Reads a record for the reasons behind its status."""
    findings = tuple(_findings(record))
    error = record.error
    if error and any(finding.reason and error.endswith(finding.reason) for finding in findings):
        error = None  # `judge error: ` and the reason of the check that broke: said there, with its place
    file, line = place(record.source)
    return Why(
        status=record.status,
        fault=record.fault,
        findings=findings,
        error=error,
        hint=record.hint,
        asked=unanswered(record),
        file=file,
        line=line,
        command=_command(record),
        workspace=record.workspace,
    )


def turn_status(turn: TurnRecord, record: TrialRecord | None = None) -> Status:
    """What came of one turn. Without the record a turn that broke counts as the agent's failure."""
    if any(each.get("passed") is False for each in turn.assertions):
        return "failed"
    if any(each.get("passed") is None for each in turn.assertions):
        return "error"
    if turn.error is not None:
        return "error" if record is not None and record.status == "error" else "failed"
    return "passed"


def turn_error(turn: TurnRecord, record: TrialRecord) -> str | None:
    """What broke a turn, in the words of the record where that says the same with more of them."""
    if turn.error is None or record.error is None or not record.error.endswith(turn.error):
        return turn.error
    return record.error


def claims_status(assertions: list[dict[str, Any]]) -> Status:
    """What came of the final assertions together: a failure beats an error."""
    verdicts = [each.get("passed") for each in assertions]
    return "failed" if False in verdicts else "error" if None in verdicts else "passed"


def unanswered(record: TrialRecord) -> str | None:
    """What the agent asked last, if the trial ended because nobody answered."""
    if not record.hint or record.status == "passed" or not record.turns or record.turns_not_run:
        return None
    last = record.turns[-1]
    if not last.awaiting_input or turn_status(last, record) != "passed":
        return None
    return last.input_hint or question(last.output)


def name_of(assertion: Mapping[str, Any]) -> str:
    """How a check is called in a report."""
    return str(assertion.get("label") or assertion.get("type") or "check")


def place(source: str | None) -> tuple[str | None, int | None]:
    """`tests/a.jsonl:12` as file and line."""
    if not source:
        return None, None
    file, colon, line = source.rpartition(":")
    return (file, int(line)) if colon and line.isascii() and line.isdecimal() else (source, None)


def finding(assertion: Mapping[str, Any], place: str, turn: TurnRecord | None = None) -> Finding:
    """What an assertion of a record says of itself; a reason that only repeats expected and actual is left out."""
    expected, actual = _value(assertion, "expected"), _value(assertion, "actual")
    reason = str(assertion.get("reason") or "")
    if expected is not None and actual is not None and reason.startswith("expected "):
        reason = ""
    return Finding(
        place=place,
        label=name_of(assertion),
        turn=turn,
        broken=assertion.get("passed") is None,
        message=str(assertion.get("message") or ""),
        reason=reason,
        expected=expected,
        actual=actual,
        suggestions=_suggestions(assertion),
    )


def _findings(record: TrialRecord) -> Iterator[Finding]:
    found = False
    for turn in record.turns:
        for assertion in turn.assertions:
            if assertion.get("passed") is not True:
                found = True
                yield finding(assertion, f"turn {turn.turn}", turn)
        if turn.error is not None:
            found = True
            broken = record.status == "error"
            yield Finding(f"turn {turn.turn}", turn=turn, broken=broken, reason=turn_error(turn, record) or "")
    for assertion in record.final_assertions:
        if assertion.get("passed") is not True:
            found = True
            yield finding(assertion, "final assertions")
    if record.status in ("failed", "error"):
        for checkpoint in record.checkpoints or ():
            if checkpoint.required and not checkpoint.reached:
                yield _missed(checkpoint, broken=record.status == "error")
    if not found:
        yield from (Finding("", reason=reason) for reason in record.assertion_errors or ())


def _missed(checkpoint: CheckpointRecord, *, broken: bool) -> Finding:
    assertion = checkpoint.assertion or {}
    waits = "waits for " + ", ".join(checkpoint.unmet_after) if checkpoint.unmet_after else ""
    return Finding(
        place=f"checkpoint {checkpoint.id}",
        label=name_of(assertion) if assertion else "",
        broken=broken,
        message=checkpoint.description,
        reason=checkpoint.reason or waits or "not reached",
        expected=_value(assertion, "expected"),
        actual=_value(assertion, "actual"),
        suggestions=_suggestions(assertion),
    )


def _suggestions(assertion: Mapping[str, Any]) -> tuple[str, ...]:
    """What a judge would have done better."""
    return tuple(map(str, assertion.get("suggestions") or ()))


def _value(assertion: Mapping[str, Any], key: str) -> str | None:
    value = assertion.get(key, UNSET)
    return None if value is UNSET else literal(value, _VALUE_ROOM)


def only_case(record: TrialRecord) -> tuple[str, str] | None:
    """What `-i` and `-k` take to run exactly this case; None for one that no file holds."""
    file, _ = place(record.source)
    suite = record.suite if record.suite.startswith(_SCRIPTS) else file
    return (suite, f"^{_REGEX_SIGN.sub(_escaped, record.id)}$") if suite else None


def _command(record: TrialRecord) -> str | None:
    """What to type to run exactly this case again, against the same agent."""
    found = only_case(record)
    if found is None or (record.status == "skipped" and not record.turns):
        return None
    agent = f" -n {quoted(record.agent)}" if record.agent else ""
    evaluator = _evaluator(record)
    grading = f" --evaluator {quoted(evaluator)}" if evaluator else ""
    return f"viva test -i {quoted(found[0])} -k {quoted(found[1])} -v{agent}{grading}"


def quoted(text: str) -> str:
    """A word of a command as a shell reads it, in one line: what cannot be printed is spelled out, as bash and zsh know it."""
    if text.isprintable():
        return shlex.quote(text)
    signs = (each if each.isprintable() and each not in "\\'" else _spelled(each) for each in text)
    return f"$'{''.join(signs)}'"


def _spelled(sign: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogatepass"))


def _evaluator(record: TrialRecord) -> str | None:
    """Who graded a playbook and played the user in it."""
    if "playbook" not in record.tags:
        return None
    asked = (each.get("use") for turn in record.turns for each in turn.assertions)
    return record.simulator or next((use for use in asked if isinstance(use, str)), None)


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match[0]

"""Why a trial did not pass, as data: which turn, which check, what was expected. Each reporter only lays it out."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct

from viva.errors import Fault
from viva.model.record import CheckpointRecord, Status, TrialRecord, TurnRecord
from viva.model.tracebacks import Traceback
from viva.reporters.commands import build_rerun_command, split_source
from viva.reporters.differences import list_differences
from viva.reporters.formatting import find_question, format_value

_VALUE_ROOM = 2000
_REPEATING = re.compile(r"^expected |^\".*\" (is not in|matches nothing in) \"", re.DOTALL)
_NONE: Mapping[str, Any] = {}


class FailedCheck(Struct, frozen=True):
    """One thing that did not hold or, if `broken`, could not be found out. `turn` is None for what is no turn's."""

    place: str
    label: str = ""
    turn: TurnRecord | None = None
    is_error: bool = False
    message: str = ""
    reason: str = ""
    expected: str | None = None
    actual: str | None = None
    differences: tuple[str, ...] = ()
    """Where the two differ, for values too large to see it."""
    suggestions: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The check's name and what its author has to say to its failure."""
        return " · ".join(part for part in (self.label, self.message) if part)

    @property
    def headline(self) -> str:
        """The finding in one line."""
        why = self.reason or (f"expected {self.expected}, was {self.actual}" if self.expected is not None else "")
        why = why or (f"was {self.actual}" if self.actual is not None else "")
        return ": ".join(part for part in (self.place, self.title, why) if part)


class TrialFailure(Struct, frozen=True):
    """All that explains one trial that did not pass. `asked` is the question that nobody answered."""

    status: Status
    fault: Fault | None
    failed_checks: tuple[FailedCheck, ...]
    error: str | None
    hint: str | None
    unanswered_question: str | None
    file: str | None
    line: int | None
    command: str | None
    workspace: str | None = None
    """Where the files are that the agent left."""
    tracebacks: tuple[Traceback, ...] = ()
    """Errors in the user's own Python."""

    @property
    def source(self) -> str | None:
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def status_text(self) -> str:
        """Status and fault: `error (infra)`."""
        return f"{self.status} ({self.fault})" if self.fault else self.status

    @property
    def headline(self) -> str:
        """The whole in one line."""
        first = self.failed_checks[0].headline if self.failed_checks else ""
        more = f" (and {len(self.failed_checks) - 1} more)" if len(self.failed_checks) > 1 else ""
        return self.error or first + more or self.status


def explain_failure(record: TrialRecord, settings: Mapping[str, Any] = _NONE) -> TrialFailure:
    """Reads a record for the reasons behind its status; the run's `settings` make its command complete."""
    findings = tuple(_findings(record))
    error = record.error
    if error and any(finding.reason and error.endswith(finding.reason) for finding in findings):
        error = None  # `judge error: ` and the reason of the check that broke: said there, with its place
    file, line = split_source(record.source)
    return TrialFailure(
        status=record.status,
        fault=record.fault,
        failed_checks=findings,
        error=error,
        hint=record.hint,
        unanswered_question=find_unanswered_question(record),
        file=file,
        line=line,
        command=build_rerun_command(record, settings),
        workspace=record.workspace,
        tracebacks=record.tracebacks,
    )


def get_turn_status(turn: TurnRecord, record: TrialRecord | None = None) -> Status:
    """What came of one turn. Without the record a turn that broke counts as the agent's failure."""
    if any(each.get("passed") is False for each in turn.assertions):
        return "failed"
    if any(each.get("passed") is None for each in turn.assertions):
        return "error"
    if turn.error is not None:
        return "error" if record is not None and record.status == "error" else "failed"
    return "passed"


def get_turn_error(turn: TurnRecord, record: TrialRecord) -> str | None:
    """What broke a turn, in the words of the record where that says the same with more of them."""
    if turn.error is None or record.error is None or not record.error.endswith(turn.error):
        return turn.error
    return record.error


def get_assertions_status(assertions: list[dict[str, Any]]) -> Status:
    """What came of the final assertions together: a failure beats an error."""
    verdicts = [each.get("passed") for each in assertions]
    return "failed" if False in verdicts else "error" if None in verdicts else "passed"


def find_unanswered_question(record: TrialRecord) -> str | None:
    """What the agent asked last, if the trial ended because nobody answered."""
    if not record.hint or record.status == "passed" or not record.turns or record.turns_not_run:
        return None
    last = record.turns[-1]
    if not last.awaiting_input or get_turn_status(last, record) != "passed":
        return None
    return find_question(last.output) or last.input_hint


def get_check_name(assertion: Mapping[str, Any]) -> str:
    """How a check is called in a report."""
    return str(assertion.get("label") or assertion.get("type") or "check")


def build_failed_check(assertion: Mapping[str, Any], place: str, turn: TurnRecord | None = None) -> FailedCheck:
    """What an assertion of a record says of itself, each thing once: a reason that only repeats what is expected and what was
    there is left out, and so is an expected value that stands in the label.
    """
    label, reason = get_check_name(assertion), str(assertion.get("reason") or "")
    expected, actual = _value(assertion, "expected"), _value(assertion, "actual")
    if expected is not None and actual is not None and _REPEATING.search(reason):
        reason = ""
    if expected is not None and expected in label:
        expected = None
    return FailedCheck(
        place=place,
        label=label,
        turn=turn,
        is_error=assertion.get("passed") is None,
        message=str(assertion.get("message") or ""),
        reason=reason,
        expected=expected,
        actual=actual,
        differences=tuple(list_differences(assertion.get("expected", UNSET), assertion.get("actual", UNSET))),
        suggestions=_suggestions(assertion),
    )


def _findings(record: TrialRecord) -> Iterator[FailedCheck]:
    found = False
    for turn in record.turns:
        for assertion in turn.assertions:
            if assertion.get("passed") is not True:
                found = True
                yield build_failed_check(assertion, f"turn {turn.turn}", turn)
        if turn.error is not None:
            found = True
            broken = record.status == "error"
            yield FailedCheck(
                f"turn {turn.turn}", turn=turn, is_error=broken, reason=get_turn_error(turn, record) or ""
            )
    for assertion in record.final_assertions:
        if assertion.get("passed") is not True:
            found = True
            yield build_failed_check(assertion, "final assertions")
    if record.status in ("failed", "error"):
        for checkpoint in record.checkpoints or ():
            if checkpoint.required and not checkpoint.reached:
                yield _missed(checkpoint, broken=record.status == "error")
    if not found:
        yield from (FailedCheck("", reason=reason) for reason in record.assertion_errors or ())


def _missed(checkpoint: CheckpointRecord, *, broken: bool) -> FailedCheck:
    assertion = checkpoint.assertion or {}
    waits = "waits for " + ", ".join(checkpoint.unmet_after) if checkpoint.unmet_after else ""
    return FailedCheck(
        place=f"checkpoint {checkpoint.id}",
        label=get_check_name(assertion) if assertion else "",
        is_error=broken,
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
    return None if value is UNSET else format_value(value, _VALUE_ROOM)

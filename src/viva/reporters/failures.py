"""Explains why a trial did not pass: the failed checks with their turns, expected and actual values. Reporters format this data."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from itertools import islice
from typing import Any, cast

from msgspec import UNSET, Struct, structs

from viva.errors import Fault
from viva.model import codec
from viva.model.record import CheckpointRecord, Status, TrialRecord, TurnRecord
from viva.model.turn import Traceback
from viva.reporters.commands import build_rerun_command, split_source
from viva.reporters.formatting import escape_controls, find_question, format_value

_VALUE_ROOM = 2000
_REPEATS_VALUES = re.compile(r"^(?:\$[^\n]*?: )?expected |^\".*\" (is not in|matches nothing in) \"", re.DOTALL)
_EQUALITY_CHECKS = frozenset({"equal", "equals", "golden", "json_path", "snapshot"})
"""Checks whose actual value must be the expected one. A difference from what others expect, such as a part, says nothing."""
_NO_SETTINGS: Mapping[str, Any] = {}
_MAX_DIFFERENCES = 8
_DIFFERENCE_ROOM = 100
_MAX_DIFF_LENGTH = 20_000
"""Longer texts are not compared by line: that takes quadratic time."""


class FailedCheck(Struct, frozen=True):
    """An assertion, checkpoint or turn that failed or, if `is_error`, could not be evaluated."""

    place: str
    label: str = ""
    turn: TurnRecord | None = None
    is_error: bool = False
    message: str = ""
    reason: str = ""
    expected: str | None = None
    actual: str | None = None
    differences: tuple[str, ...] = ()
    """The parts in which large expected and actual values differ."""
    suggestions: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name of the check, and the message that the case gives for it, unless the name contains that message."""
        message = "" if self.message in self.label else self.message
        return " · ".join(part for part in (self.label, message) if part)

    @property
    def headline(self) -> str:
        """Place, name and reason in one line."""
        reason = self.reason or (f"expected {self.expected}, was {self.actual}" if self.expected is not None else "")
        reason = reason or (f"was {self.actual}" if self.actual is not None else "")
        return ": ".join(part for part in (self.place, self.title, reason) if part)


class TrialFailure(Struct, frozen=True):
    """Everything that explains a trial that did not pass."""

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
    """The folder with the agent's files."""
    tracebacks: tuple[Traceback, ...] = ()
    """Exceptions in the user's Python."""
    deciding_check: FailedCheck | None = None
    """The failed check from which the status and the fault follow: an error beside a failure decides nothing."""

    @property
    def source(self) -> str | None:
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def status_text(self) -> str:
        """Status and fault: `error (infra)`."""
        return f"{self.status} ({self.fault})" if self.fault else self.status

    @property
    def headline(self) -> str:
        """The error or the deciding check, in one line."""
        reason = self.deciding_check.headline if self.deciding_check is not None else ""
        more = f" (and {len(self.failed_checks) - 1} more)" if len(self.failed_checks) > 1 else ""
        return self.error or reason + more or self.status


def explain_failure(record: TrialRecord, settings: Mapping[str, Any] = _NO_SETTINGS) -> TrialFailure:
    """Reads the reasons for a trial's status from its record. The settings of the run complete its rerun command."""
    failed_checks = tuple(_list_failed_checks(record))
    error, is_error = record.error, record.status == "error"
    deciding = next((check for check in failed_checks if check.is_error == is_error), next(iter(failed_checks), None))
    for check in failed_checks:
        if error and check.reason and error.endswith(check.reason):
            error, deciding = None, check  # it has the same text, with its place
    file, line = split_source(record.source)
    return TrialFailure(
        status=record.status,
        fault=record.fault,
        failed_checks=failed_checks,
        error=error,
        hint=record.hint,
        unanswered_question=find_unanswered_question(record),
        file=file,
        line=line,
        command=build_rerun_command(record, settings),
        workspace=record.workspace,
        tracebacks=record.tracebacks,
        deciding_check=deciding,
    )


def get_turn_status(turn: TurnRecord, record: TrialRecord | None = None) -> Status:
    """The status of one turn. A turn with an error is failed, unless the record says that the trial is in error."""
    status = get_assertions_status(turn.assertions)
    if status != "passed" or turn.error is None:
        return status
    return "error" if record is not None and record.status == "error" else "failed"


def get_turn_error(turn: TurnRecord, record: TrialRecord) -> str | None:
    """The error of a turn: the longer text of the record if that ends with the same error."""
    if turn.error is None or record.error is None or not record.error.endswith(turn.error):
        return turn.error
    return record.error


def get_assertions_status(assertions: list[dict[str, Any]]) -> Status:
    """Failed if an assertion failed, else error if one has no verdict, else passed."""
    results = [assertion.get("passed") for assertion in assertions]
    return "failed" if False in results else "error" if None in results else "passed"


def find_unanswered_question(record: TrialRecord) -> str | None:
    """The agent's last question, if the trial ended because the user had no answer."""
    if not record.hint or record.status == "passed" or not record.turns or record.turns_not_run:
        return None
    last = record.turns[-1]
    if not last.awaiting_input or get_turn_status(last, record) != "passed":
        return None
    return find_question(last.output) or last.input_hint


def get_check_name(assertion: Mapping[str, Any]) -> str:
    return str(assertion.get("label") or assertion.get("type") or "check")


def build_failed_check(assertion: Mapping[str, Any], place: str, turn: TurnRecord | None = None) -> FailedCheck:
    """A failed check from the assertion of a record.

    Leaves out a reason that only repeats the expected and actual values, and an expected value that is in the label.
    """
    label, reason = get_check_name(assertion), str(assertion.get("reason") or "")
    expected, actual = _format_field(assertion, "expected"), _format_field(assertion, "actual")
    if expected is not None and actual is not None and _REPEATS_VALUES.search(reason):
        reason = ""
    if expected is not None and (expected in label or codec.compact_json(assertion["expected"]) in label):
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
        differences=tuple(_list_value_differences(assertion)),
        suggestions=_list_suggestions(assertion),
    )


def _list_failed_checks(record: TrialRecord) -> Iterator[FailedCheck]:
    has_checks = False
    for turn in record.turns:
        for assertion in turn.assertions:
            if assertion.get("passed") is not True:
                has_checks = True
                yield build_failed_check(assertion, f"turn {turn.turn}", turn)
        if turn.error is not None:
            has_checks = True
            reason = get_turn_error(turn, record) or ""
            yield FailedCheck(f"turn {turn.turn}", turn=turn, is_error=record.status == "error", reason=reason)
    for assertion in record.final_assertions:
        if assertion.get("passed") is not True:
            has_checks = True
            yield build_failed_check(assertion, "final assertions")
    if record.status in ("failed", "error"):
        for checkpoint in record.checkpoints or ():
            if checkpoint.required and not checkpoint.reached:
                yield _build_missed_checkpoint(checkpoint, is_error=record.status == "error")
    if not has_checks:
        yield from (FailedCheck("", reason=reason) for reason in record.assertion_errors or ())


def _build_missed_checkpoint(checkpoint: CheckpointRecord, *, is_error: bool) -> FailedCheck:
    reason = checkpoint.reason or format_unmet_checkpoints(checkpoint) or "not reached"
    passed = None if is_error else False
    assertion = {**(checkpoint.assertion or {}), "reason": reason, "message": checkpoint.description, "passed": passed}
    check = build_failed_check(assertion, f"checkpoint {checkpoint.id}")
    return check if checkpoint.assertion else structs.replace(check, label="")


def format_unmet_checkpoints(checkpoint: CheckpointRecord) -> str:
    """`waits for a, b`: the checkpoints that must be reached first; empty if there are none."""
    return "waits for " + ", ".join(checkpoint.unmet_after) if checkpoint.unmet_after else ""


def _list_suggestions(assertion: Mapping[str, Any]) -> tuple[str, ...]:
    suggestions = assertion.get("suggestions")
    return tuple(map(str, cast("list[Any]", suggestions))) if isinstance(suggestions, list) else ()


def _format_field(assertion: Mapping[str, Any], key: str) -> str | None:
    value = assertion.get(key, UNSET)
    return None if value is UNSET else format_value(value, _VALUE_ROOM)


def _list_value_differences(assertion: Mapping[str, Any]) -> list[str]:
    kind = assertion.get("type")
    has_other_rule = assertion.get("strategy") == "contains" or (kind == "json_path" and "value" not in assertion)
    if kind not in _EQUALITY_CHECKS or has_other_rule:
        return []
    return list_differences(assertion.get("expected", UNSET), assertion.get("actual", UNSET))


def list_differences(expected: Any, actual: Any) -> list[str]:
    """Lines such as `$.total: expected 5, was 6`, or the changed lines of a text; nothing for short values."""
    if isinstance(expected, str) and isinstance(actual, str):
        lines = _diff_texts(expected, actual)
    elif isinstance(expected, Mapping | list | tuple) and isinstance(actual, Mapping | list | tuple):
        lines = _diff_values(expected, actual, "$")
    else:
        return []
    shown = list(islice(lines, _MAX_DIFFERENCES + 1))
    return shown if len(shown) <= _MAX_DIFFERENCES else [*shown[:_MAX_DIFFERENCES], "…"]


def _diff_texts(expected: str, actual: str) -> Iterator[str]:
    if "\n" in expected + actual and len(expected) + len(actual) <= _MAX_DIFF_LENGTH:
        diff = unified_diff(expected.splitlines(), actual.splitlines(), "expected", "actual", n=1, lineterm="")
        yield from (escape_controls(line) for line in diff if not line.startswith(("---", "+++", "@@")))


def _diff_values(expected: Any, actual: Any, path: str) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        left, right = cast("Mapping[str, Any]", expected), cast("Mapping[str, Any]", actual)
        for key in (*left, *(key for key in right if key not in left)):
            yield from _diff_values(left.get(key, UNSET), right.get(key, UNSET), f"{path}.{key}")
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        items, others = cast("Sequence[Any]", expected), cast("Sequence[Any]", actual)
        for index in range(max(len(items), len(others))):
            item = items[index] if index < len(items) else UNSET
            other = others[index] if index < len(others) else UNSET
            yield from _diff_values(item, other, f"{path}[{index}]")
    elif expected is UNSET:
        yield escape_controls(f"{path}: not expected, was {format_value(actual, _DIFFERENCE_ROOM)}")
    elif actual is UNSET:
        yield escape_controls(f"{path}: expected {format_value(expected, _DIFFERENCE_ROOM)}, missing")
    elif expected != actual or isinstance(expected, bool) is not isinstance(actual, bool):
        left, right = format_value(expected, _DIFFERENCE_ROOM), format_value(actual, _DIFFERENCE_ROOM)
        yield escape_controls(f"{path}: expected {left}, was {right}")

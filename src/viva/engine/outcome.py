"""The outcome of a trial: status, fault, message. `failed` beats `error` beats `passed`; nothing passes on zero checks."""

from collections.abc import Sequence

from msgspec import Struct

from viva.errors import AgentFailed, Fault, HelperFailed, NotRecorded, Skipped, TrialFault
from viva.model.case import Checkpoint
from viva.model.record import Status
from viva.model.turn import AssertionResult, Verdict
from viva.state.trial_state import TrialState

_AWAITING_INPUT_MESSAGE = "Agent awaiting input, no next turn defined"
UNCHECKED_MESSAGE = "nothing was checked"


class Outcome(Struct, frozen=True):
    """How a trial ended: its status and, unless it passed, whose fault that is and the message for reports.

    A `deterministic` error is not retried. An `unchecked` trial was skipped because it ran no check.
    """

    status: Status
    fault: Fault | None = None
    message: str | None = None
    hint: str | None = None
    deterministic: bool = False
    unchecked: bool = False

    @classmethod
    def failed(cls, message: str | None) -> "Outcome":
        return cls("failed", "agent", message)

    @classmethod
    def error(cls, fault: Fault, message: str, *, deterministic: bool) -> "Outcome":
        return cls("error", fault, message, deterministic=deterministic)


def outcome_of_fault(fault: TrialFault) -> Outcome:
    """The outcome of a trial in which `fault` was raised."""
    message = fault.message
    if isinstance(fault, Skipped):
        return Outcome("skipped", None, message)
    if isinstance(fault, AgentFailed):
        return Outcome.failed(message if message.startswith("timeout after") else f"agent error: {message}")
    if isinstance(fault, HelperFailed):
        message = f"{fault.role} error: {message}"
    elif fault.fault == "infra" and not isinstance(fault, NotRecorded):
        message = f"agent error: {message}"
    return Outcome.error(fault.fault, message, deterministic=fault.deterministic)


def outcome_of_missing_checkpoints(
    state: TrialState, missing: Sequence[Checkpoint], message: str | None = None
) -> Outcome:
    """Failed, unless the check of a missing checkpoint could not be evaluated: then it is that error."""
    for checkpoint_id in _find_blocking_checkpoints(state, missing):
        verdict = state.checkpoints[checkpoint_id].verdict
        if verdict is not None and verdict.status == "error":
            return outcome_of_check_error(verdict, f"checkpoint {checkpoint_id}: ")
    return Outcome.failed(message or "missing checkpoints: " + ", ".join(checkpoint.id for checkpoint in missing))


def _find_blocking_checkpoints(state: TrialState, missing: Sequence[Checkpoint]) -> list[str]:
    """The missing checkpoints and, required or not, the checkpoints that must be reached before them (`after`)."""
    after = {checkpoint.id: checkpoint.after for checkpoint in state.case.goal.checkpoints}
    blocking: list[str] = []
    pending = [checkpoint.id for checkpoint in missing]
    while pending:
        checkpoint_id = pending.pop(0)
        if checkpoint_id not in blocking and state.checkpoints[checkpoint_id].turn is None:
            blocking.append(checkpoint_id)
            pending += after[checkpoint_id]
    return blocking


def outcome_of_check_error(verdict: Verdict, place: str = "") -> Outcome:
    """The outcome of a trial in which a check could not be evaluated."""
    message = f"{place}{verdict.reason}"
    if verdict.fault == "judge":
        message = f"judge error: {message}"
    return Outcome.error(verdict.fault, message, deterministic=verdict.deterministic)


def outcome_of_missing_input(state: TrialState) -> Outcome | None:
    """Applies `on_missing_input` if the user has no more messages and the agent awaits one."""
    case, last_turn = state.case, state.last_turn
    action = case.on_missing_input
    is_unchecked = False
    if state.missing_input is not None:  # a person stopped: no failure of the agent unless the case says so
        message, hint, fault, action = state.missing_input, None, "undetermined", action or "skip"
    elif last_turn is None or not last_turn.awaits_user or case.goal.checkpoints or case.sessions != "one":
        return None
    else:
        message, hint, fault = _AWAITING_INPUT_MESSAGE, case.hints.awaiting, "agent"
        is_unchecked = not count_checks(state)
        action = action or ("skip" if is_unchecked and not case.final_assertions else "end")
    match action:
        case "skip":
            return Outcome("skipped", None, message, hint, unchecked=is_unchecked)
        case "fail":
            return Outcome("failed", fault, message, hint)
        case "end":
            return None


def all_assertion_results(state: TrialState) -> list[AssertionResult]:
    """The assertion results of all turns, then the final ones."""
    return [result for turn in state.turns for result in turn.results] + state.final_results


def outcome_of_checks(state: TrialState) -> Outcome:
    """The outcome of a conversation that ended without a fault."""
    error: Verdict | None = None
    for result in all_assertion_results(state):
        if result.verdict.status == "failed":
            return Outcome.failed(None)
        if result.verdict.status == "error" and error is None:
            error = result.verdict
    if error is not None:
        return outcome_of_check_error(error)
    if not count_checks(state):
        return Outcome("skipped", None, UNCHECKED_MESSAGE, state.case.hints.unchecked, unchecked=True)
    return Outcome("passed")


def keep_assertion_failure(state: TrialState, outcome: Outcome) -> Outcome:
    """Failed if an assertion has failed, also if an error ended the trial later; else the same outcome."""
    if outcome.status in ("passed", "failed"):
        return outcome
    has_failed = any(result.verdict.status == "failed" for result in all_assertion_results(state))
    return Outcome.failed(outcome.message) if has_failed else outcome


def count_checks(state: TrialState) -> int:
    """The number of verdicts: results of assertions and, after the first turn, checkpoints."""
    checkpoints = len(state.checkpoints) if state.turns else 0
    return sum(len(turn.results) for turn in state.turns) + len(state.final_results) + checkpoints

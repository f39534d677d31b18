"""How a trial ends: whose fault, in whose words. `failed` beats `error` beats `passed`; nothing passes on zero checks."""

from collections.abc import Sequence

from msgspec import Struct

from viva.errors import AgentFailed, Fault, HelperFailed, NotRecorded, Skipped, TrialFault
from viva.model.case import Checkpoint
from viva.model.record import Status
from viva.model.turn import Verdict
from viva.state.trial_state import TrialState

AWAITING_MESSAGE = "Agent awaiting input, no next turn defined"
AWAITING_HINT = "Add more turns, use --interactive, or configure simulator"
UNCHECKED_MESSAGE = "nothing was checked"
UNCHECKED_HINT = 'Add assertions to the case, or send a message by hand with -i "..."'
UNNOTED_HINT = "Use t.assert_ in the test: plain asserts that hold cannot be counted"


class Outcome(Struct, frozen=True):
    """A status, and for a non-pass whose fault it is and what the report says.

    An error that is `deterministic` would come again: the trial is not retried.
    """

    status: Status
    fault: Fault | None = None
    message: str | None = None
    hint: str | None = None
    deterministic: bool = False

    @classmethod
    def failed(cls, message: str | None) -> "Outcome":
        return cls("failed", "agent", message)

    @classmethod
    def error(cls, fault: Fault, message: str, *, deterministic: bool = False) -> "Outcome":
        return cls("error", fault, message, deterministic=deterministic)


def outcome_of_fault(fault: TrialFault) -> Outcome:
    """The ending behind a raised fault, in the report's words."""
    said = fault.message
    if isinstance(fault, Skipped):
        return Outcome("skipped", None, said)
    if isinstance(fault, AgentFailed):
        return Outcome.failed(said if said.startswith("timeout after") else f"agent error: {said}")
    if isinstance(fault, HelperFailed):
        return Outcome.error(fault.fault, f"{fault.role} error: {said}", deterministic=fault.deterministic)
    is_agents = fault.fault == "infra" and not isinstance(fault, NotRecorded)
    said = f"agent error: {said}" if is_agents else said
    return Outcome.error(fault.fault, said, deterministic=fault.deterministic)


def outcome_of_missing_checkpoints(
    state: TrialState, missing: Sequence[Checkpoint], said: str | None = None
) -> Outcome:
    """Not all that had to happen did. If a judge broke on one of them, nobody can say that the agent failed."""
    for checkpoint in _in_the_way(state, missing):
        verdict = state.checkpoints[checkpoint].verdict
        if verdict is not None and verdict.status == "error":
            return outcome_of_check_error(verdict, f"checkpoint {checkpoint}: ")
    return Outcome.failed(said or "missing checkpoints: " + ", ".join(checkpoint.id for checkpoint in missing))


def _in_the_way(state: TrialState, missing: Sequence[Checkpoint]) -> list[str]:
    """The checkpoints that are missing, and those that they wait for, optional ones too."""
    after = {checkpoint.id: checkpoint.after for checkpoint in state.case.goal.checkpoints}
    found: list[str] = []
    waiting = [checkpoint.id for checkpoint in missing]
    while waiting:
        name = waiting.pop(0)
        if name not in found and state.checkpoints[name].turn is None:
            found.append(name)
            waiting += after[name]
    return found


def outcome_of_check_error(verdict: Verdict, place: str = "") -> Outcome:
    """The ending that a check brings about which could not be evaluated."""
    said = f"{place}{verdict.reason}"
    said = f"judge error: {said}" if verdict.fault == "judge" else said
    return Outcome.error(verdict.fault, said, deterministic=verdict.deterministic)


def outcome_of_missing_input(state: TrialState) -> Outcome | None:
    """The user has nothing more to say, but should have: what `on_missing_input` makes of it."""
    decides = state.case.on_missing_input
    if state.missing_input is not None:  # a person is no agent: without a word of the author nobody has failed
        said, hint, fault, decides = state.missing_input, None, "undetermined", decides or "skip"
    elif (
        state.last_turn is None
        or not state.last_turn.is_unanswered
        or state.case.goal.checkpoints
        or not state.case.one_session
    ):
        return None
    else:
        said, hint, fault = AWAITING_MESSAGE, AWAITING_HINT, "agent"
        decides = decides or ("end" if count_checks(state) or state.case.final_assertions else "skip")
    match decides:
        case "skip":
            return Outcome("skipped", None, said, hint)
        case "fail":
            return Outcome("failed", fault, said, hint)
        case "end":
            return None


def outcome_of_checks(state: TrialState) -> Outcome:
    """The outcome of a conversation in which nothing went wrong on the way."""
    verdicts = [each.verdict for turn in state.turns for each in turn.results] + [
        each.verdict for each in state.final_results
    ]
    if any(verdict.status == "failed" for verdict in verdicts):
        return Outcome.failed(None)
    if in_error := next((verdict for verdict in verdicts if verdict.status == "error"), None):
        return outcome_of_check_error(in_error)
    if not count_checks(state):
        return Outcome("skipped", None, UNCHECKED_MESSAGE, UNCHECKED_HINT if state.case.one_session else UNNOTED_HINT)
    return Outcome("passed")


def keep_proven_failure(state: TrialState, outcome: Outcome) -> Outcome:
    """A proven failure of the agent stands, whatever came after it."""
    if outcome.status in ("passed", "failed"):
        return outcome
    judged = (*state.final_results, *(each for turn in state.turns for each in turn.results))
    failed = any(each.verdict.status == "failed" for each in judged)
    return Outcome.failed(outcome.message) if failed else outcome


def count_checks(state: TrialState) -> int:
    """How many verdicts there are: the denominator of everything that is said of this trial."""
    looked_for = len(state.checkpoints) if state.turns else 0
    return sum(len(turn.results) for turn in state.turns) + len(state.final_results) + looked_for

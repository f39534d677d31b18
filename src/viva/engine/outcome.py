"""How a trial ends: whose fault, in whose words. `failed` beats `error` beats `passed`; nothing passes on zero checks."""

from collections.abc import Sequence

from msgspec import Struct

from viva.errors import AgentFailed, Fault, HelperFailed, NotRecorded, Skipped, TrialFault
from viva.model.case import Checkpoint
from viva.model.record import Status
from viva.model.talk import Talk, Verdict

AWAITING = "Agent awaiting input, no next turn defined"
AWAITING_HINT = "Add more turns, use --interactive, or configure simulator"
UNCHECKED = "nothing was checked"
UNCHECKED_HINT = 'Add assertions to the case, or send a message by hand with -i "..."'
UNNOTED_HINT = "Use t.assert_ in the test: plain asserts that hold cannot be counted"


class Ending(Struct, frozen=True):
    """A status, and for a non-pass whose fault it is and what the report says.

    An error that is `deterministic` would come again: the trial is not retried.
    """

    status: Status
    fault: Fault | None = None
    said: str | None = None
    hint: str | None = None
    deterministic: bool = False

    @classmethod
    def failed(cls, said: str | None) -> "Ending":
        return cls("failed", "agent", said)

    @classmethod
    def error(cls, fault: Fault, said: str, *, deterministic: bool = False) -> "Ending":
        return cls("error", fault, said, deterministic=deterministic)


def blamed(fault: TrialFault) -> Ending:
    """The ending behind a raised fault, in the report's words."""
    said = fault.said
    if isinstance(fault, Skipped):
        return Ending("skipped", None, said)
    if isinstance(fault, AgentFailed):
        return Ending.failed(said if said.startswith("timeout after") else f"agent error: {said}")
    if isinstance(fault, HelperFailed):
        return Ending.error(fault.fault, f"{fault.role} error: {said}", deterministic=fault.deterministic)
    is_agents = fault.fault == "infra" and not isinstance(fault, NotRecorded)
    said = f"agent error: {said}" if is_agents else said
    return Ending.error(fault.fault, said, deterministic=fault.deterministic)


def missing_checkpoints(talk: Talk, missing: Sequence[Checkpoint], said: str | None = None) -> Ending:
    """Not all that had to happen did. If a judge broke on one of them, nobody can say that the agent failed."""
    for checkpoint in _in_the_way(talk, missing):
        verdict = talk.sightings[checkpoint].verdict
        if verdict is not None and verdict.status == "error":
            return broken(verdict, f"checkpoint {checkpoint}: ")
    return Ending.failed(said or "missing checkpoints: " + ", ".join(checkpoint.id for checkpoint in missing))


def _in_the_way(talk: Talk, missing: Sequence[Checkpoint]) -> list[str]:
    """The checkpoints that are missing, and those that they wait for, optional ones too."""
    after = {checkpoint.id: checkpoint.after for checkpoint in talk.case.goal.checkpoints}
    found: list[str] = []
    waiting = [checkpoint.id for checkpoint in missing]
    while waiting:
        name = waiting.pop(0)
        if name not in found and talk.sightings[name].turn is None:
            found.append(name)
            waiting += after[name]
    return found


def broken(verdict: Verdict, place: str = "") -> Ending:
    """The ending that a check brings about which could not be evaluated."""
    said = f"{place}{verdict.reason}"
    said = f"judge error: {said}" if verdict.fault == "judge" else said
    return Ending.error(verdict.fault, said, deterministic=verdict.deterministic)


def out_of_input(talk: Talk) -> Ending | None:
    """The user has nothing more to say, but should have: what `on_missing_input` makes of it."""
    decides = talk.case.on_missing_input
    if talk.input_missing is not None:  # a person is no agent: without a word of the author nobody has failed
        said, hint, fault, decides = talk.input_missing, None, "undetermined", decides or "skip"
    elif talk.last is None or not talk.last.unanswered or talk.case.goal.checkpoints or not talk.case.one_session:
        return None
    else:
        said, hint, fault = AWAITING, AWAITING_HINT, "agent"
        decides = decides or ("end" if checks_done(talk) or talk.case.finals else "skip")
    match decides:
        case "skip":
            return Ending("skipped", None, said, hint)
        case "fail":
            return Ending("failed", fault, said, hint)
        case "end":
            return None


def by_checks(talk: Talk) -> Ending:
    """The outcome of a conversation in which nothing went wrong on the way."""
    verdicts = [each.verdict for turn in talk.turns for each in turn.judged] + [each.verdict for each in talk.finals]
    if any(verdict.status == "failed" for verdict in verdicts):
        return Ending.failed(None)
    if in_error := next((verdict for verdict in verdicts if verdict.status == "error"), None):
        return broken(in_error)
    if not checks_done(talk):
        return Ending("skipped", None, UNCHECKED, UNCHECKED_HINT if talk.case.one_session else UNNOTED_HINT)
    return Ending("passed")


def standing(talk: Talk, ending: Ending) -> Ending:
    """A proven failure of the agent stands, whatever came after it."""
    if ending.status in ("passed", "failed"):
        return ending
    judged = (*talk.finals, *(each for turn in talk.turns for each in turn.judged))
    failed = any(each.verdict.status == "failed" for each in judged)
    return Ending.failed(ending.said) if failed else ending


def checks_done(talk: Talk) -> int:
    """How many verdicts there are: the denominator of everything that is said of this trial."""
    looked_for = len(talk.sightings) if talk.turns else 0
    return sum(len(turn.judged) for turn in talk.turns) + len(talk.finals) + looked_for

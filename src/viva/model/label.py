"""Labels: a person agrees or disagrees with a verdict of a run, or is unsure. A label never changes a verdict."""

from typing import Literal

from msgspec import Struct

from viva.model.record import Status

LabelValue = Literal["agree", "disagree", "unsure"]


class Label(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The opinion of one person on the verdict of a case or a check. The last label of a person on a check counts."""

    at: str
    """When, in UTC (ISO 8601)."""
    who: str
    """Who said it."""
    suite: str
    """The suite of the case."""
    case: str
    """The id of the case."""
    agent: str = ""
    """The agent under test."""
    trial: int = 1
    """Which trial of the case."""
    check: str = ""
    """Which check: `2-1` is the first one of turn 2, `end-1` the first final assertion, `checkpoint-1` the first checkpoint;
    empty for the verdict on the case."""
    name: str = ""
    """The label of the check."""
    type: str = ""
    """The type of the assertion."""
    is_judge: bool = False
    """Did a model decide?"""
    verdict: Status
    """The verdict that the label is about."""
    label: LabelValue | None
    """Null takes an earlier label back."""
    note: str = ""
    """Why."""

    @property
    def person_and_check(self) -> tuple[str, ...]:
        """The person and what the label is about. Of several labels with the same value the last one counts."""
        return (self.who, self.suite, self.case, self.agent, str(self.trial), self.check)

    @property
    def human_verdict(self) -> Status | None:
        """The verdict that the person would give; None if unsure, or if the check has no verdict."""
        if self.verdict not in ("passed", "failed") or self.label not in ("agree", "disagree"):
            return None
        is_passed = (self.verdict == "passed") is (self.label == "agree")
        return "passed" if is_passed else "failed"

"""Checks of the text that the agent wrote. What text that is, the evidence knows."""

from viva.checks.cheap import Cheap
from viva.checks.wording import around, kept, labelled, quoted
from viva.model.pattern import compile_pattern, search
from viva.model.talk import PASSED, CheckContext, Verdict


class Contains(Cheap, frozen=True, kw_only=True):
    """The text holds `value`."""

    value: str
    ignore_case: bool = False

    def __post_init__(self) -> None:
        _refuse_empty(self.value)

    @property
    def label(self) -> str:
        return labelled("contains", quoted(self.value), "(any case)" if self.ignore_case else "")

    def check(self, evidence: CheckContext) -> Verdict:
        text = evidence.text
        if self.value in text or (self.ignore_case and self.value.casefold() in text.casefold()):
            return PASSED
        return Verdict("failed", self._why_not(text), expected=self.value, actual=kept(text))

    def _why_not(self, text: str) -> str:
        if not text:
            return f"{quoted(self.value)} is not there: the text is empty"
        if not self.ignore_case and self.value.casefold() in text.casefold():
            return f"{quoted(self.value)} is there only in another case (see ignore_case): {quoted(text)}"
        return f"{quoted(self.value)} is not in {quoted(text)}"


class FlowContains(Contains, frozen=True, kw_only=True):
    """The agent's text of all turns so far, together, holds `value`."""

    @property
    def label(self) -> str:
        return labelled("flow_contains", quoted(self.value), "(any case)" if self.ignore_case else "")

    def check(self, evidence: CheckContext) -> Verdict:
        return super().check(CheckContext(evidence.state, evidence.turn, "conversation", "case"))


class NotContains(Cheap, frozen=True, kw_only=True):
    """The text does not hold `value`."""

    value: str
    ignore_case: bool = False

    def __post_init__(self) -> None:
        _refuse_empty(self.value)

    @property
    def label(self) -> str:
        return labelled("not_contains", quoted(self.value), "(any case)" if self.ignore_case else "")

    def check(self, evidence: CheckContext) -> Verdict:
        text = evidence.text
        at = text.casefold().find(self.value.casefold()) if self.ignore_case else text.find(self.value)
        if at < 0:
            return PASSED
        reason = f"{quoted(self.value)} must not be there, but is: {around(text, at, len(self.value))}"
        return Verdict("failed", reason, expected=self.value, actual=kept(text))


class Regex(Cheap, frozen=True, kw_only=True):
    """`pattern` matches somewhere in the text; flags are written into it, as in `(?i)yes`."""

    pattern: str

    def __post_init__(self) -> None:
        compile_pattern(self.pattern)

    @property
    def label(self) -> str:
        return labelled("regex", quoted(self.pattern))

    def check(self, evidence: CheckContext) -> Verdict:
        text = evidence.text
        if search(self.pattern, text):
            return PASSED
        reason = f"{quoted(self.pattern)} matches nothing in {quoted(text)}"
        return Verdict("failed", reason, expected=self.pattern, actual=kept(text))


def _refuse_empty(value: str) -> None:
    if not value:
        raise ValueError("value is empty: every text contains it; write the text to look for")

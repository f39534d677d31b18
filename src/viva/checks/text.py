"""Checks of the text that the agent wrote. What text that is, the evidence knows."""

from viva.checks.base import LocalCheck
from viva.checks.formatting import format_label, quote_context, quote_value, truncate_text
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext
from viva.text.pattern import compile_pattern, search


class Contains(LocalCheck, frozen=True, kw_only=True):
    """The text holds `value`."""

    value: str
    ignore_case: bool = False

    def __post_init__(self) -> None:
        _refuse_empty(self.value)

    @property
    def label(self) -> str:
        return format_label("contains", quote_value(self.value), "(any case)" if self.ignore_case else "")

    def check(self, context: CheckContext) -> Verdict:
        text = context.text
        if self.value in text or (self.ignore_case and self.value.casefold() in text.casefold()):
            return PASSED
        return Verdict("failed", self._why_not(text), expected=self.value, actual=truncate_text(text))

    def _why_not(self, text: str) -> str:
        if not text:
            return f"{quote_value(self.value)} is not there: the text is empty"
        if not self.ignore_case and self.value.casefold() in text.casefold():
            return f"{quote_value(self.value)} is there only in another case (see ignore_case): {quote_value(text)}"
        return f"{quote_value(self.value)} is not in {quote_value(text)}"


class FlowContains(Contains, frozen=True, kw_only=True):
    """The agent's text of all turns so far, together, holds `value`."""

    @property
    def label(self) -> str:
        return format_label("flow_contains", quote_value(self.value), "(any case)" if self.ignore_case else "")

    def check(self, context: CheckContext) -> Verdict:
        return super().check(CheckContext(context.state, context.turn, "conversation", "case"))


class NotContains(LocalCheck, frozen=True, kw_only=True):
    """The text does not hold `value`."""

    value: str
    ignore_case: bool = False

    def __post_init__(self) -> None:
        _refuse_empty(self.value)

    @property
    def label(self) -> str:
        return format_label("not_contains", quote_value(self.value), "(any case)" if self.ignore_case else "")

    def check(self, context: CheckContext) -> Verdict:
        text = context.text
        at = text.casefold().find(self.value.casefold()) if self.ignore_case else text.find(self.value)
        if at < 0:
            return PASSED
        reason = f"{quote_value(self.value)} must not be there, but is: {quote_context(text, at, len(self.value))}"
        return Verdict("failed", reason, expected=self.value, actual=truncate_text(text))


class Regex(LocalCheck, frozen=True, kw_only=True):
    """`pattern` matches somewhere in the text; flags are written into it, as in `(?i)yes`."""

    pattern: str

    def __post_init__(self) -> None:
        compile_pattern(self.pattern)

    @property
    def label(self) -> str:
        return format_label("regex", quote_value(self.pattern))

    def check(self, context: CheckContext) -> Verdict:
        text = context.text
        if search(self.pattern, text):
            return PASSED
        reason = f"{quote_value(self.pattern)} matches nothing in {quote_value(text)}"
        return Verdict("failed", reason, expected=self.pattern, actual=truncate_text(text))


def _refuse_empty(value: str) -> None:
    if not value:
        raise ValueError("value is empty: every text contains it; write the text to look for")

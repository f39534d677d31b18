"""Checks of the agent's text. The context says which text that is: of one reply, or of the conversation."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, ClassVar

from viva.checks.base_check import LocalCheck, Spelling, Validators
from viva.checks.formatting import cut_to_verdict_length, format_label, quote_value, quote_with_surroundings
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext
from viva.text.pattern import compile_pattern, has_pattern_match


class _TextCheck(LocalCheck, frozen=True, kw_only=True):
    value: str
    ignore_case: bool = False
    """Ignore upper and lower case."""

    def __post_init__(self) -> None:
        if not self.value:
            raise ValueError("value is empty: every text contains it; write the text to look for")

    def _label(self, name: str) -> str:
        return format_label(name, quote_value(self.value), "(any case)" if self.ignore_case else "")

    def _find_position(self, text: str) -> int:
        return text.casefold().find(self.value.casefold()) if self.ignore_case else text.find(self.value)


class Contains(_TextCheck, frozen=True, kw_only=True):
    """The reply's text contains a text."""

    example: ClassVar[Mapping[str, Any] | None] = {"value": "text"}
    value: str
    """The text to find."""

    @property
    def label(self) -> str:
        return self._label("contains")

    def check(self, context: CheckContext) -> Verdict:
        text = context.text
        if self._find_position(text) >= 0:
            return PASSED
        return Verdict("failed", self._explain_absence(text), expected=self.value, actual=cut_to_verdict_length(text))

    def _explain_absence(self, text: str) -> str:
        value = quote_value(self.value)
        if not text:
            return f"{value} is not there: the text is empty"
        if self.value.casefold() in text.casefold():
            return f"{value} is there only in another case (see ignore_case): {quote_value(text)}"
        return f"{value} is not in {quote_value(text)}"


class FlowContains(Contains, frozen=True, kw_only=True):
    """The agent's text of all turns so far contains a text."""

    example: ClassVar[Mapping[str, Any] | None] = None

    @property
    def label(self) -> str:
        return self._label("flow_contains")

    def check(self, context: CheckContext) -> Verdict:
        return super().check(CheckContext(context.state, context.turn, "conversation", "case"))


class NotContains(_TextCheck, frozen=True, kw_only=True):
    """The reply's text does not contain a text."""

    example: ClassVar[Mapping[str, Any] | None] = {"value": "text"}
    value: str
    """The text that must be absent."""

    @property
    def label(self) -> str:
        return self._label("not_contains")

    def check(self, context: CheckContext) -> Verdict:
        text = context.text
        start = self._find_position(text)
        if start < 0:
            return PASSED
        if self.ignore_case:
            start = _find_position_before_casefold(text, start)
        reason = f"{quote_value(self.value)} must not be there, but is: {quote_with_surroundings(text, start, len(self.value))}"
        return Verdict("failed", reason, expected=self.value, actual=cut_to_verdict_length(text))


def _find_position_before_casefold(text: str, position: int) -> int:
    """The position in a text of what is at `position` once case is ignored: some characters, such as ß, become longer."""
    ends = accumulate(len(character.casefold()) for character in text)
    return next(index for index, end in enumerate(ends) if end > position)


class Regex(LocalCheck, frozen=True, kw_only=True):
    """A regular expression matches somewhere in the reply's text."""

    spellings: ClassVar[Mapping[str, Spelling]] = {"value": Spelling("pattern")}
    validators: ClassVar[Validators] = {"pattern": compile_pattern}
    example: ClassVar[Mapping[str, Any]] = {"pattern": "..."}
    pattern: str
    """The regular expression. Flags are part of it: `(?i)yes`."""

    @property
    def label(self) -> str:
        return format_label("regex", quote_value(self.pattern))

    def check(self, context: CheckContext) -> Verdict:
        text = context.text
        if has_pattern_match(self.pattern, text):
            return PASSED
        reason = f"{quote_value(self.pattern)} matches nothing in {quote_value(text)}"
        return Verdict("failed", reason, expected=self.pattern, actual=cut_to_verdict_length(text))

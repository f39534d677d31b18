"""The three strategies of OpenWOP's golden tasks.

The output is the reply's data or, without any, its text. As text, a string stays as it is and any other value is JSON with
sorted keys and no spaces; nothing is trimmed, and case counts.
"""

from typing import Any, Literal

from msgspec import UNSET

from viva.checks.base_check import LocalCheck
from viva.checks.compare import is_same_json
from viva.checks.formatting import cut_to_verdict_length, format_label, quote_value
from viva.checks.json import JsonSchema
from viva.model import codec
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext, get_reply_output

GoldenStrategy = Literal["exact", "contains", "json-match"]


class Golden(LocalCheck, frozen=True, kw_only=True):
    """The output (the reply's data or, without data, its text) equals a value, contains it, or is the same JSON: OpenWOP's golden strategies."""

    strategy: GoldenStrategy
    """Equal as text, contained in it, or equal as JSON. As text, what is not a string is JSON with sorted keys and no spaces."""
    value: Any
    """The expected value."""

    def __post_init__(self) -> None:
        if codec.has_nan_or_infinity(self.value):
            raise ValueError("contains a number that JSON does not have: NaN or infinity")

    @property
    def label(self) -> str:
        return format_label(self.strategy, quote_value(self.value))

    def check(self, context: CheckContext) -> Verdict:
        output = get_reply_output(context.reply)
        reason = self._explain_mismatch(output)
        if reason is None:
            return Verdict("passed", score=1.0)
        actual = cut_to_verdict_length(output) if isinstance(output, str) else output
        return Verdict("failed", reason, score=0.0, expected=self.value, actual=actual)

    def _explain_mismatch(self, output: Any) -> str | None:
        if codec.has_nan_or_infinity(output):
            return "the output contains a number that JSON does not have"
        if self.strategy == "json-match":
            actual = _parse_output(output)
            if actual is UNSET:
                return f"the output is not JSON: {quote_value(output)}"
            if is_same_json(actual, self.value):
                return None
            return f"is not the same JSON as {quote_value(self.value)}: {quote_value(actual)}"
        text, expected = to_canonical_text(output), to_canonical_text(self.value)
        if self.strategy == "exact":
            return None if text == expected else f"is not {quote_value(expected)}: {quote_value(text)}"
        return None if expected in text else f"{quote_value(expected)} is not in {quote_value(text)}"


def to_canonical_text(value: Any) -> str:
    """A string as it is, any other value as JSON with sorted keys and no spaces. ValueError for NaN."""
    if isinstance(value, str):
        return value
    if codec.has_nan_or_infinity(value):
        raise ValueError("a number that JSON does not have cannot be text: NaN or infinity")
    return codec.encode_canonically(value).decode()


def _parse_output(output: Any) -> Any:
    if not isinstance(output, str):
        return output
    try:
        return codec.decode(output)
    except codec.DecodeError:
        return UNSET


class ReturnSchema(JsonSchema, frozen=True, kw_only=True):
    """The output matches the return schema of the agent. A text that is JSON counts as its value."""

    @property
    def label(self) -> str:
        return "valid by the agent's return schema"

    def check(self, context: CheckContext) -> Verdict:
        output = get_reply_output(context.reply)
        value = _parse_output(output)
        errors = self.describe_errors(output if value is UNSET else value)
        return PASSED if errors is None else Verdict("failed", errors)

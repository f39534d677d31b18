"""Is the output what was expected? The three strategies of OpenWOP's golden tasks.

The output is the reply's data or, where it has none, its text. As text, a string stands as it is and anything else is
JSON with sorted keys and no spaces; nothing is trimmed, and case counts.
"""

from typing import Any, Literal

from msgspec import UNSET

from viva.checks.base import LocalCheck
from viva.checks.compare import is_same_json
from viva.checks.formatting import format_label, quote_value, truncate_text
from viva.checks.json import JsonSchema
from viva.model import codec
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext, reply_output

Strategy = Literal["exact", "contains", "json-match"]


class Golden(LocalCheck, frozen=True, kw_only=True):
    """The output is `value`, contains it, or is the same JSON. The score is 1 or 0, nothing between."""

    strategy: Strategy
    value: Any

    def __post_init__(self) -> None:
        if codec.has_nan(self.value):
            raise ValueError("holds a number that JSON does not know: NaN or infinity")

    @property
    def label(self) -> str:
        return format_label(self.strategy, quote_value(self.value))

    def check(self, context: CheckContext) -> Verdict:
        output = reply_output(context.reply)
        why = "the output holds a number that JSON does not know" if codec.has_nan(output) else self._why_not(output)
        if why is None:
            return Verdict("passed", score=1.0)
        actual = truncate_text(output) if isinstance(output, str) else output
        return Verdict("failed", why, score=0.0, expected=self.value, actual=actual)

    def _why_not(self, output: Any) -> str | None:
        if self.strategy == "json-match":
            found = _parsed(output)
            if found is UNSET:
                return f"the output is no JSON: {quote_value(output)}"
            return (
                None
                if is_same_json(found, self.value)
                else f"is not the same JSON as {quote_value(self.value)}: {quote_value(found)}"
            )
        text, wanted = to_canonical_text(output), to_canonical_text(self.value)
        if self.strategy == "exact":
            return None if text == wanted else f"is not {quote_value(wanted)}: {quote_value(text)}"
        return None if wanted in text else f"{quote_value(wanted)} is not in {quote_value(text)}"


def to_canonical_text(value: Any) -> str:
    """A value as text: a string as it is, anything else as JSON with sorted keys and no spaces. ValueError for NaN."""
    if isinstance(value, str):
        return value
    if codec.has_nan(value):
        raise ValueError("a number that JSON does not know has no text: NaN or infinity")
    return codec.canonical_bytes(value).decode()


def _parsed(output: Any) -> Any:
    if not isinstance(output, str):
        return output
    try:
        return codec.decode(output)
    except codec.DecodeError:
        return UNSET


class ReturnSchema(JsonSchema, frozen=True, kw_only=True):
    """The output is valid by the schema that the agent promises. A text that is JSON counts as what it says."""

    @property
    def label(self) -> str:
        return "valid by the agent's return schema"

    def check(self, context: CheckContext) -> Verdict:
        output = reply_output(context.reply)
        parsed = _parsed(output)
        wrong = self.describe_errors(output if parsed is UNSET else parsed)
        return PASSED if wrong is None else Verdict("failed", wrong)

"""Values as text in labels and reasons: on one line, quoted, and of limited length."""

from typing import Any

from viva.model import codec
from viva.model.ellipsis import cut_end

MAX_LABEL_LENGTH = 80
MAX_VALUE_LENGTH = 120
_MAX_TEXT_LENGTH = 4000
_JOINERS = "\u200c\u200d"
"""Characters without a width of their own that are part of emoji and of words in many scripts."""


def quote_value(value: Any, limit: int = MAX_VALUE_LENGTH) -> str:
    """A text in quotes with its line breaks visible; any other value as compact JSON."""
    if isinstance(value, str):
        return f'"{_escape(cut_end(value, limit - 2))}"'
    return _escape(cut_end(codec.compact_json(value), limit))


def is_score_in_range(value: Any) -> bool:
    """Is the value a number that can be a score: from -10^9 to 10^9, and not NaN?"""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e9 <= value <= 1e9


def format_label(*parts: str) -> str:
    """Joins parts to a label on one line."""
    return cut_end(_escape(" ".join(filter(None, parts))), MAX_LABEL_LENGTH)


def cut_to_verdict_length(text: str) -> str:
    """A text, cut to the length that a verdict keeps."""
    return cut_end(text, _MAX_TEXT_LENGTH)


def quote_with_surroundings(text: str, start: int, length: int) -> str:
    """Quotes a part of a text with the 30 characters before and after it."""
    begin, end = max(0, start - 30), start + length + 30
    part = ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else "")
    return quote_value(part, MAX_VALUE_LENGTH + length)


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS else repr(c)[1:-1] for c in text)

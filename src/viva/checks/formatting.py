"""Values as text in labels and reasons: on one line, quoted, and of limited length."""

from typing import Any

from viva.model import codec

MAX_LABEL_LENGTH = 80
MAX_VALUE_LENGTH = 120
_MAX_TEXT_LENGTH = 4000
_JOINERS = "\u200c\u200d"
"""Characters without a width of their own that are part of emoji and of words in many scripts."""


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quote_value(value: Any, limit: int = MAX_VALUE_LENGTH) -> str:
    """A text in quotes with its line breaks visible; any other value as compact JSON."""
    if isinstance(value, str):
        return f'"{_escape(shorten(value, limit - 2))}"'
    return _escape(shorten(codec.compact_json(value), limit))


def is_score(value: Any) -> bool:
    """Whether a value is a number that can be added up: not NaN, and not one of a thousand digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e9 <= value <= 1e9


def format_label(*parts: str) -> str:
    """A label of these parts, on one line."""
    return shorten(_escape(" ".join(filter(None, parts))), MAX_LABEL_LENGTH)


def truncate_text(text: str) -> str:
    """A text, cut to the length that a verdict keeps."""
    return shorten(text, _MAX_TEXT_LENGTH)


def quote_context(text: str, start: int, length: int) -> str:
    """A part of a text, quoted, with a little of what is around it."""
    begin, end = max(0, start - 30), start + length + 30
    part = ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else "")
    return quote_value(part, MAX_VALUE_LENGTH + length)


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS else repr(c)[1:-1] for c in text)

"""How checks put values into words: on one line, quoted, and not longer than a reader wants."""

from typing import Any

from viva.model import codec

MAX_LABEL_LENGTH = 80
MAX_VALUE_LENGTH = 120
_KEPT = 4000
_JOINERS = "\u200c\u200d"
"""They join what stands around them into one sign, in emoji and in many scripts."""


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quote_value(value: Any, limit: int = MAX_VALUE_LENGTH) -> str:
    """A text in quotes with its line breaks visible; anything else as compact JSON."""
    if isinstance(value, str):
        return f'"{_visible(shorten(value, limit - 2))}"'
    return _visible(shorten(codec.compact_json(value), limit))


def is_score(value: Any) -> bool:
    """Is it a number that can be added up? NaN and one of a thousand digits cannot."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e9 <= value <= 1e9


def format_label(*parts: str) -> str:
    """A label of these parts, on one line."""
    return shorten(_visible(" ".join(part for part in parts if part)), MAX_LABEL_LENGTH)


def truncate_text(text: str) -> str:
    """As much of a text as a verdict keeps for the report."""
    return shorten(text, _KEPT)


def quote_context(text: str, start: int, length: int) -> str:
    """A stretch of text, quoted, with a little of what stands before and after it."""
    begin, end = max(0, start - 30), start + length + 30
    return quote_value(
        ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else ""), MAX_VALUE_LENGTH + length
    )


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS else repr(c)[1:-1] for c in text)

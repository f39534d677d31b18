"""How checks put values into words: on one line, quoted, and not longer than a reader wants."""

from typing import Any

from viva.model import codec

LABEL = 80
VALUE = 120
_KEPT = 4000
_JOINERS = "\u200c\u200d"
"""They join what stands around them into one sign, in emoji and in many scripts."""


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quoted(value: Any, limit: int = VALUE) -> str:
    """A text in quotes with its line breaks visible; anything else as compact JSON."""
    if isinstance(value, str):
        return f'"{_visible(shorten(value, limit - 2))}"'
    return _visible(shorten(codec.compact_json(value), limit))


def is_score(value: Any) -> bool:
    """Is it a number that can be added up? NaN and one of a thousand digits cannot."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e9 <= value <= 1e9


def labelled(*parts: str) -> str:
    """A label of these parts, on one line."""
    return shorten(_visible(" ".join(part for part in parts if part)), LABEL)


def kept(text: str) -> str:
    """As much of a text as a verdict keeps for the report."""
    return shorten(text, _KEPT)


def around(text: str, start: int, length: int) -> str:
    """A stretch of text, quoted, with a little of what stands before and after it."""
    begin, end = max(0, start - 30), start + length + 30
    return quoted(("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else ""), VALUE + length)


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS else repr(c)[1:-1] for c in text)

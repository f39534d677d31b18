"""Cuts long texts. Each cut is marked by `…`, exactly where it is: `Redactor` then also finds the part of a secret beside it."""

ELLIPSIS = "…"


def cut_end(text: str, limit: int) -> str:
    """The beginning of a text, with at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def cut_start(text: str, limit: int) -> str:
    """The end of a text, with at most `limit` characters."""
    return text if len(text) <= limit else ELLIPSIS + text[len(text) - limit + 1 :]


def decode_start(raw: bytes, limit: int) -> str:
    """The text of the first `limit` bytes."""
    return raw[:limit].decode(errors="replace") + (ELLIPSIS if len(raw) > limit else "")

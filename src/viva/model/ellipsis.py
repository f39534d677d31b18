"""Cuts long texts. Each cut is marked by `…`, exactly where it is: `Redactor` then also finds the part of a secret beside it."""

from codecs import getincrementaldecoder

ELLIPSIS = "…"
_REST_OF_CHARACTER = bytes(range(0x80, 0xC0))


def cut_end(text: str, limit: int) -> str:
    """The beginning of a text, with at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def cut_start(text: str, limit: int) -> str:
    """The end of a text, with at most `limit` characters."""
    return text if len(text) <= limit else ELLIPSIS + text[len(text) - limit + 1 :]


def decode_start(raw: bytes, limit: int) -> str:
    """The text of the first `limit` bytes, without half a character at their end."""
    if len(raw) <= limit:
        return raw.decode(errors="replace")
    return getincrementaldecoder("utf-8")("replace").decode(raw[:limit]) + ELLIPSIS


def decode_end(raw: bytes | bytearray) -> str:
    """The text of the last bytes of more, without half a character at their start."""
    return ELLIPSIS + raw.lstrip(_REST_OF_CHARACTER).decode(errors="replace")

"""Keeps secrets out of everything that is kept or shown."""

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

from viva.model import codec

R = TypeVar("R", bound=Struct)
SHOWN = "***"
SHORTEST = 6
"""Shorter values are too common to be told from ordinary text."""


class Redactor:
    """Replaces secret values. A record is decoded again only if one was really in it."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = sorted({value for value in secrets if len(value) >= SHORTEST}, key=len, reverse=True)
        self._values = values
        self._encoded = [codec.encode(value)[1:-1] for value in values]

    def __bool__(self) -> bool:
        return bool(self._values)

    def text(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, SHOWN)
        return text

    def record(self, record: R) -> R:
        raw = codec.encode(record)
        found = [value for value in self._encoded if value in raw]
        if not found:
            return record
        for value in found:
            raw = raw.replace(value, SHOWN.encode())
        return codec.decode(raw, type=type(record))

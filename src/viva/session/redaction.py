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
        self._values: list[str] = []
        self._encoded: list[bytes] = []
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """More of them may become known while agents are built."""
        self._values = sorted({*self._values, *(s for s in secrets if len(s) >= SHORTEST)}, key=len, reverse=True)
        self._encoded = [codec.encode(value)[1:-1] for value in self._values]

    def __bool__(self) -> bool:
        return bool(self._values)

    def text(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, SHOWN)
        return text

    def raw(self, raw: bytes) -> bytes:
        """JSON text without them."""
        for value in self._encoded:
            if value in raw:
                raw = raw.replace(value, SHOWN.encode())
        return raw

    def record(self, record: R) -> R:
        before = codec.encode(record)
        after = self.raw(before)
        return record if after is before else codec.decode(after, type=type(record))

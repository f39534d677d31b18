"""Splits streamed bodies: server-sent events, and lines."""

from codecs import BOM_UTF8
from typing import NamedTuple

from viva.errors import Unreachable

MAX_EVENT_BYTES = 64 * 1024 * 1024


class SseEvent(NamedTuple):
    """The data of an event, and its name if it has one."""

    name: str
    data: bytes


class SseParser:
    """Returns each complete event. An event that does not end is the provider's fault."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._buffer: list[bytes] = []  # pieces of an incomplete line
        self._data: list[bytes] = []
        self._name = ""
        self._size = 0  # of the incomplete event
        self._is_at_start = True
        self._ends_with_cr = False

    def feed_data(self, chunk: bytes) -> list[bytes]:
        """The data of each event that this chunk completes."""
        return [event.data for event in self.feed_events(chunk)]

    def feed_events(self, chunk: bytes) -> list[SseEvent]:
        if not chunk:
            return []
        if self._ends_with_cr:  # that CR ended a line; a LF here is the rest of a CRLF
            chunk = chunk.removeprefix(b"\n")
        self._ends_with_cr = chunk.endswith(b"\r")
        self._buffer.append(chunk)
        self._size += len(chunk)
        if self._size > self._max_event_bytes:
            raise Unreachable(f"it sent an event that is longer than {self._max_event_bytes} bytes")
        if b"\n" not in chunk and b"\r" not in chunk:
            return []
        text = b"".join(self._buffer)
        if self._is_at_start:
            text, self._is_at_start = text.removeprefix(BOM_UTF8), False
        lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._buffer = [lines.pop()]
        events = [event for line in lines if (event := self._add_line(line)) is not None]
        if events:
            self._size = len(self._buffer[0]) + sum(map(len, self._data))
        return events

    def feed_eof(self) -> list[bytes]:
        """The stream ended: an event without its closing empty line counts."""
        return self.feed_data(b"\n\n")

    def _add_line(self, line: bytes) -> SseEvent | None:
        if not line:
            data, self._data = self._data, []
            name, self._name = self._name, ""
            return SseEvent(name, b"\n".join(data)) if data else None
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value[1:] if value.startswith(b" ") else value)
        elif field == b"event":
            self._name = value.strip().decode(errors="replace")
        return None


class LineParser:
    """Returns each complete line that is not blank, as the data of an event without a name."""

    def __init__(self, max_line_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._buffer: list[bytes] = []
        self._size = 0
        self._is_at_start = True

    def feed_events(self, chunk: bytes) -> list[SseEvent]:
        self._buffer.append(chunk)
        self._size += len(chunk)
        if self._size > self._max_line_bytes:
            raise Unreachable(f"it sent a line that is longer than {self._max_line_bytes} bytes")
        if b"\n" not in chunk:
            return []
        text = b"".join(self._buffer)
        if self._is_at_start:
            text, self._is_at_start = text.removeprefix(BOM_UTF8), False
        *lines, rest = text.split(b"\n")
        self._buffer, self._size = [rest], len(rest)
        return [SseEvent("", line) for line in map(bytes.strip, lines) if line]

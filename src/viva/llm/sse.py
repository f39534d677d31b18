"""Server-sent events out of their bytes, however they are split. Only the data is kept: no provider needs the rest."""

from viva.errors import Unreachable

MAX_EVENT_BYTES = 64 * 1024 * 1024


class SseParser:
    """Feed it what comes; it gives the data of each event that is whole. One that does not end is the provider's fault."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._held: list[bytes] = []  # pieces of a line that has no end yet
        self._data: list[bytes] = []
        self._size = 0  # of the event that is not whole yet
        self._first = True

    def feed(self, chunk: bytes) -> list[bytes]:
        self._held.append(chunk)
        self._size += len(chunk)
        if self._size > self._max_event_bytes:
            raise Unreachable(f"it sent an event that is longer than {self._max_event_bytes} bytes")
        if b"\n" not in chunk and b"\r" not in chunk:
            return []
        text = b"".join(self._held)
        if self._first:
            text, self._first = text.removeprefix(b"\xef\xbb\xbf"), False
        # A CR at the very end may be half of a CRLF: it waits for what follows.
        waits = text.endswith(b"\r")
        lines = (text[:-1] if waits else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._held = [lines.pop() + (b"\r" if waits else b"")]
        events = [event for line in lines if (event := self._take(line)) is not None]
        if events:
            self._size = len(self._held[0]) + sum(map(len, self._data))
        return events

    def feed_eof(self) -> list[bytes]:
        """The stream is over: an event whose closing empty line is missing counts all the same."""
        return self.feed(b"\n\n")

    def _take(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        if line.startswith(b"data:"):
            value = line[5:]
            self._data.append(value[1:] if value.startswith(b" ") else value)
        elif line == b"data":
            self._data.append(b"")
        return None

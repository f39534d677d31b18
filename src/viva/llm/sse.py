"""Server-sent events out of their bytes, however they are split. Only the data is kept: no provider needs the rest."""


class Events:
    """Feed it what comes; it gives the data of each event that is whole."""

    def __init__(self) -> None:
        self._held = b""
        self._data: list[bytes] = []
        self._first = True

    def feed(self, chunk: bytes) -> list[bytes]:
        text = self._held + chunk
        if self._first and text:
            if b"\xef\xbb\xbf".startswith(text[:3]) and len(text) < 3:
                self._held = text
                return []
            text, self._first = text.removeprefix(b"\xef\xbb\xbf"), False
        # A CR at the very end may be half of a CRLF: it waits for what follows.
        waits = text.endswith(b"\r")
        lines = (text[:-1] if waits else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._held = lines.pop() + (b"\r" if waits else b"")
        return [event for line in lines if (event := self._take(line)) is not None]

    def end(self) -> list[bytes]:
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

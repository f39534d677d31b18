"""`--json`: every event as one line of JSON, as it happens, for programs that watch a run."""

from collections.abc import Sequence
from typing import BinaryIO, TextIO

from viva.model import codec
from viva.model.event import Event


class JsonEventReporter:
    """Writes to a text stream; through its bytes where it has some, since JSON is UTF-8 whatever the terminal speaks."""

    live = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bytes: BinaryIO | None = getattr(stream, "buffer", None)

    def receive(self, events: Sequence[Event]) -> None:
        lines = b"".join(codec.encode(event) + b"\n" for event in events)
        if self._bytes is None:
            self._stream.write(lines.decode())
        else:
            self._stream.flush()
            self._bytes.write(lines)
        self._stream.flush()

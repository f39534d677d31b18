"""Streams the events of a run from its journal, which another process may still write."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import monotonic

from msgspec import Struct

from viva.model import codec
from viva.viewer.runs import RunJournal

_POLL_S = 0.2
_KEEP_ALIVE_S = 15.0
_READ_BYTES = 1 << 20
STOPPED_UNEXPECTEDLY = "The run stopped unexpectedly. Continue with `viva test --resume {run}`"


class StreamEnd(Struct, frozen=True, kw_only=True):
    """The last message of a stream. `killed`: the run stopped without writing its end."""

    run: str
    killed: bool = False
    exit_code: int | None = None
    stopped: str | None = None
    stop_message: str | None = None


async def stream_journal(run: RunJournal, should_stop: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
    """Yields each event of the journal as a server-sent message, then the message `end`."""
    position = 0
    quiet_since = monotonic()
    while True:
        is_live = run.is_live  # before reading: lines written in between are read
        while lines := await asyncio.to_thread(_read_lines, run.path, position):
            position += sum(map(len, lines))
            yield b"".join(b"data: %s\n" % line for line in lines)
            quiet_since = monotonic()
        if not is_live:
            await asyncio.to_thread(run.refresh)
            yield b"event: end\ndata: %s\n\n" % codec.encode(_build_stream_end(run))
            return
        if monotonic() - quiet_since > _KEEP_ALIVE_S:
            yield b": keep-alive\n\n"
            quiet_since = monotonic()
        await asyncio.sleep(_POLL_S)
        if await should_stop():
            return
        await asyncio.to_thread(run.refresh)


def _read_lines(path: Path, position: int) -> list[bytes]:
    """The next complete lines of a file, about 1 MB of them."""
    with path.open("rb") as file:
        file.seek(position)
        lines = file.readlines(_READ_BYTES)
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _build_stream_end(run: RunJournal) -> StreamEnd:
    name = run.path.parent.name
    if (ended := run.ended) is None:
        return StreamEnd(run=name, killed=True, stop_message=STOPPED_UNEXPECTEDLY.format(run=name))
    return StreamEnd(run=name, exit_code=ended.exit_code, stopped=ended.stopped, stop_message=ended.stop_message)

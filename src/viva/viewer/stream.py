"""A run as it happens: its journal, followed to the end. Any process may be the one that writes it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import monotonic

from msgspec import Struct

from viva.model import codec
from viva.viewer.runs import RunJournal

_LOOK_AGAIN_S = 0.2
_KEEP_ALIVE_S = 15.0
_PIECE_BYTES = 1 << 20
STOPPED_UNEXPECTEDLY = "the run stopped unexpectedly; continue with `viva test --resume {run}`"


class StreamEnd(Struct, frozen=True, kw_only=True):
    """The last message. `killed` is a run that came to no end of its own."""

    run: str
    killed: bool = False
    exit_code: int | None = None
    stopped: str | None = None
    stop_message: str | None = None


async def stream_journal(run: RunJournal, should_stop: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
    """The events of the journal, those before now too, each as one message; at last a message `end`."""
    told = 0
    quiet_since = monotonic()
    while True:
        live = run.is_live  # before the reading: what is written between the two is read
        while lines := await asyncio.to_thread(_lines_after, run.path, told):
            told += sum(map(len, lines))
            yield b"".join(b"data: %s\n" % line for line in lines)
            quiet_since = monotonic()
        if not live:
            await asyncio.to_thread(run.refresh)
            yield b"event: end\ndata: %s\n\n" % codec.encode(_end(run))
            return
        if monotonic() - quiet_since > _KEEP_ALIVE_S:
            yield b": still here\n\n"
            quiet_since = monotonic()
        await asyncio.sleep(_LOOK_AGAIN_S)
        if await should_stop():
            return
        await asyncio.to_thread(run.refresh)


def _lines_after(path: Path, at: int) -> list[bytes]:
    """The next complete lines of a file: about so many as are good to send at once."""
    with path.open("rb") as file:
        file.seek(at)
        lines = file.readlines(_PIECE_BYTES)
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _end(run: RunJournal) -> StreamEnd:
    name = run.path.parent.name
    if (ended := run.ended) is None:
        return StreamEnd(run=name, killed=True, stop_message=STOPPED_UNEXPECTEDLY.format(run=name))
    return StreamEnd(run=name, exit_code=ended.exit_code, stopped=ended.stopped, stop_message=ended.stop_message)

"""Replies that a Python agent streams: generators, async generators and other iterators."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

_PIECES_PER_STEP = 256
"""After this number of pieces other conversations may run, if the stream itself never waits."""


def is_stream(returned: Any) -> bool:
    """Does a returned value hold the reply in pieces? Lists and strings have no `__next__`."""
    return hasattr(type(returned), "__aiter__") or hasattr(type(returned), "__next__")


def make_stream_reader(stream: Any, add: Callable[[Any], None]) -> Callable[[], Any]:
    """A function that passes each piece of a stream to `add`. It is async for an async stream."""

    def read() -> None:
        try:
            for piece in _iterate_pieces(stream):
                add(piece)
        finally:
            if (close := getattr(stream, "close", None)) is not None:
                close()

    async def read_async() -> None:
        count = 0
        try:
            async for piece in stream:
                add(piece)
                count += 1
                if count % _PIECES_PER_STEP == 0:
                    await asyncio.sleep(0)
        finally:
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()

    return read_async if hasattr(type(stream), "__aiter__") else read


def _iterate_pieces(stream: Any) -> Generator[Any]:
    """What a generator yields and, as the last piece, what it returns. An async generator cannot return a value."""
    returned = yield from stream
    if returned is not None:
        yield returned

"""Events on their way to those who watch: as a stream (SSE) that can be taken up again, or by asking now and then."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from msgspec import Struct

from viva.host.errors import ApiError, validation_error
from viva.host.log import STREAM_MODES, UPDATE_EVENT_TYPES, LoggedEvent, RunEvent, RunLog, StreamMode
from viva.model import codec

KEEP_ALIVE_S = 15.0
MAX_BUFFER_MS = 5000
_ALIVE = b": still here\n\n"
_NUMBER = re.compile(r"-?[0-9]{1,16}")


class StreamOptions(Struct, frozen=True):
    """How somebody wants to see a run: which events, from where on, and how many at a time."""

    modes: tuple[StreamMode, ...] = ("updates",)
    buffer_ms: int = 0
    after_sequence: int = -1
    is_resumed: bool = False
    keep_alive_s: float = KEEP_ALIVE_S

    def includes(self, kind: str) -> bool:
        return "debug" in self.modes or (
            kind in UPDATE_EVENT_TYPES and ("updates" in self.modes or "values" in self.modes)
        )


def parse_modes(text: str | None) -> tuple[StreamMode, ...]:
    """`updates,debug` as modes; snapshots stand alone."""
    names = (text or "updates").split(",")
    modes: tuple[StreamMode, ...] = tuple(mode for mode in STREAM_MODES if mode in names)
    if any(name not in STREAM_MODES for name in names) or ("values" in modes and len(modes) > 1):
        message = "this stream mode is unknown, or cannot be combined"
        raise ApiError(400, "unsupported_stream_mode", message, {"supported": list(STREAM_MODES)})
    return modes


def parse_number(text: str | None, name: str, default: int, least: int, most: int) -> int:
    if text is None:
        return default
    if not _NUMBER.fullmatch(text):
        raise validation_error(f"{name} is a whole number", name)
    number = int(text)
    if not least <= number <= most:
        raise validation_error(f"{name} is from {least} to {most}", name)
    return number


def parse_last_event_id(last_event: str | None, log: RunLog) -> int:
    """The number of the event that was seen last, given by its number or by its id; -1 for none."""
    if not last_event:
        return -1
    if _NUMBER.fullmatch(last_event):
        return max(-1, int(last_event))
    for each in log.events:
        if each.event.event_id == last_event:
            return each.event.sequence
    raise validation_error("Last-Event-ID names no event of this run", "Last-Event-ID")


async def stream_frames(
    log: RunLog,
    watching: StreamOptions,
    snapshot: Callable[[Sequence[LoggedEvent]], dict[str, Any]],
    closing: asyncio.Event,
) -> AsyncGenerator[bytes, None]:
    """Frames until the run is over or the host goes down. Nothing is skipped, repeated or told out of order."""
    at, told = watching.after_sequence + 1, len(log.notices)
    if "values" in watching.modes and watching.is_resumed and log.events:
        yield _snapshot_frame(log, min(at, len(log.events)) - 1, snapshot)
    while True:
        changed = log.change
        fresh, notices = log.events[at:], log.notices[told:]
        at, told = at + len(fresh), told + len(notices)
        if "values" in watching.modes:
            for each in fresh:
                if watching.includes(each.event.type):
                    yield _snapshot_frame(log, each.event.sequence, snapshot)
        elif frames := _frames([each for each in fresh if watching.includes(each.event.type)], watching):
            yield frames
        for notice in notices:
            if watching.includes(notice.type):
                yield _frame(notice.type, codec.encode(notice))
        if log.is_finished and at >= len(log.events):
            return
        if not await _happened(changed, watching.keep_alive_s, closing):
            if closing.is_set():
                return
            yield _ALIVE
        elif watching.buffer_ms:
            await _gather(log, watching.buffer_ms / 1e3, closing)


async def _happened(changed: asyncio.Event, within_s: float, closing: asyncio.Event) -> bool:
    """Waits until something happens, and says whether it did; the host going down ends the waiting too."""
    waits = [asyncio.ensure_future(event.wait()) for event in (changed, closing)]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return changed.is_set()


async def _gather(log: RunLog, within_s: float, closing: asyncio.Event) -> None:
    """Lets events come together for a while; the last event of a run does not wait."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while not log.is_finished and not closing.is_set() and (left := until - loop.time()) > 0:
        await _happened(log.change, left, closing)


def _frames(events: Sequence[LoggedEvent], watching: StreamOptions) -> bytes:
    if not events:
        return b""
    if watching.buffer_ms:
        data = b"[%b]" % b",".join(each.encoded for each in events)
        return _frame("batch", data, events[-1].event.sequence)
    return b"".join(_frame(each.event.type, each.encoded, each.event.sequence) for each in events)


def _snapshot_frame(log: RunLog, upto: int, snapshot: Callable[[Sequence[LoggedEvent]], dict[str, Any]]) -> bytes:
    return _frame("state.snapshot", codec.encode(snapshot(log.events[: upto + 1])), max(upto, 0))


def _frame(kind: str, data: bytes, number: int | None = None) -> bytes:
    """What is told besides the log has no number: a stream that is taken up again starts from the log."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


async def wait_for_events(
    log: RunLog, after: int, timeout_s: float, closing: asyncio.Event
) -> tuple[list[RunEvent], bool]:
    """The events after a number, at once if there are any or never will be; else as soon as one comes, or none in time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while (
        len(log.events) <= after + 1
        and not log.is_finished
        and not closing.is_set()
        and (left := until - loop.time()) > 0
    ):
        await _happened(log.change, left, closing)
    return [each.event for each in log.events[max(0, after + 1) :]], log.is_finished

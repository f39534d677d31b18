"""What readers see of a run: snapshots, event streams (SSE) that can be resumed, and polling."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from msgspec import Struct

from viva.host.errors import ApiError, validation_error
from viva.host.events import (
    EVENT_LOG_VERSION,
    FINAL_EVENT_TYPES,
    STREAM_MODES,
    UPDATE_EVENT_TYPES,
    LoggedEvent,
    RunEvent,
    RunLog,
    StreamMode,
)
from viva.host.store import Run
from viva.model import codec

KEEP_ALIVE_S = 15.0
MAX_BUFFER_MS = 5000
_KEEP_ALIVE_FRAME = b": keep-alive\n\n"
_NUMBER = re.compile(r"-?[0-9]{1,16}")

BuildSnapshot = Callable[[Sequence[LoggedEvent]], dict[str, Any]]


def build_snapshot(run: Run) -> dict[str, Any]:
    """The body of `GET /v1/runs/{runId}`: what the caller sent, and what the host measured."""
    snapshot = {
        "runId": run.id,
        "workflowId": run.workflow,
        "status": run.status,
        "owner": {"tenant": run.tenant, **({"principal": run.principal} if run.principal else {})},
        "startedAt": run.started_at,
        "completedAt": run.completed_at,
        "agent": {"agentId": run.agent} if run.agent else None,
        "error": run.error,
        "engineVersion": run.engine,
        "eventLogSchemaVersion": EVENT_LOG_VERSION,
        "tags": run.tags,
        "metadata": run.metadata,
        "configurable": run.request.get("configurable") or None,
        "metrics": run.metrics,
    }
    return {key: value for key, value in snapshot.items() if value is not None}


def build_snapshot_after(run: Run, events: Sequence[LoggedEvent]) -> dict[str, Any]:
    """The snapshot as it was after these events: before its last event, a finished run was running."""
    snapshot = build_snapshot(run)
    if not run.is_finished or (events and events[-1].event.type in FINAL_EVENT_TYPES):
        return snapshot
    later = ("completedAt", "error", "metrics")
    return {**{key: value for key, value in snapshot.items() if key not in later}, "status": "running"}


class StreamOptions(Struct, frozen=True):
    """Which events a reader gets, from where on, and in which batches."""

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
    """`updates,debug` as modes; `values` cannot be combined with others."""
    names = (text or "updates").split(",")
    modes: tuple[StreamMode, ...] = tuple(mode for mode in STREAM_MODES if mode in names)
    if any(name not in STREAM_MODES for name in names) or ("values" in modes and len(modes) > 1):
        message = "Unknown stream mode, or modes that cannot be combined"
        raise ApiError(400, "unsupported_stream_mode", message, {"supported": list(STREAM_MODES)})
    return modes


def parse_number(text: str | None, name: str, default: int, minimum: int, maximum: int) -> int:
    if text is None:
        return default
    number = int(text) if _NUMBER.fullmatch(text) else None
    if number is None or not minimum <= number <= maximum:
        raise validation_error(f"{name} must be an integer from {minimum} to {maximum}", name)
    return number


def parse_last_event_id(text: str | None, log: RunLog) -> int:
    """The sequence number of the last event that the reader has, from a number or an event id; -1 for none."""
    if not text:
        return -1
    if _NUMBER.fullmatch(text):
        return max(-1, int(text))
    for logged in log.events:
        if logged.event.event_id == text:
            return logged.event.sequence
    raise validation_error("Last-Event-ID is not an event of this run", "Last-Event-ID")


async def stream_frames(
    log: RunLog, options: StreamOptions, snapshot: BuildSnapshot, shutdown: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """SSE frames in order, without gaps or repeats, until the run ends or the host shuts down."""
    position, notice_count = options.after_sequence + 1, len(log.notices)
    if "values" in options.modes and options.is_resumed and log.events:
        yield _snapshot_frame(log, min(position, len(log.events)) - 1, snapshot)
    while True:
        change = log.change
        events, notices = log.events[position:], log.notices[notice_count:]
        position, notice_count = position + len(events), notice_count + len(notices)
        included = [logged for logged in events if options.includes(logged.event.type)]
        if "values" in options.modes:
            for logged in included:
                yield _snapshot_frame(log, logged.event.sequence, snapshot)
        elif included:
            yield _event_frames(included, options)
        for notice in notices:
            if options.includes(notice.type):
                yield _frame(notice.type, codec.encode(notice))
        if log.is_finished and position >= len(log.events):
            return
        if not await _wait_for_change(change, options.keep_alive_s, shutdown):
            if shutdown.is_set():
                return
            yield _KEEP_ALIVE_FRAME
        elif options.buffer_ms:
            await _wait_for_batch(log, options.buffer_ms / 1e3, shutdown)


async def _wait_for_change(change: asyncio.Event, timeout_s: float, shutdown: asyncio.Event) -> bool:
    """Waits for a change, the shutdown or the timeout; returns whether there was a change."""
    waits = [asyncio.ensure_future(event.wait()) for event in (change, shutdown)]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return change.is_set()


async def _wait_for_batch(log: RunLog, timeout_s: float, shutdown: asyncio.Event) -> None:
    """Collects events for a while; the last event of a run is sent at once."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not log.is_finished and not shutdown.is_set() and (left := deadline - loop.time()) > 0:
        await _wait_for_change(log.change, left, shutdown)


def _event_frames(events: Sequence[LoggedEvent], options: StreamOptions) -> bytes:
    if options.buffer_ms:
        data = b"[%b]" % b",".join(logged.encoded for logged in events)
        return _frame("batch", data, events[-1].event.sequence)
    return b"".join(_frame(logged.event.type, logged.encoded, logged.event.sequence) for logged in events)


def _snapshot_frame(log: RunLog, sequence: int, snapshot: BuildSnapshot) -> bytes:
    return _frame("state.snapshot", codec.encode(snapshot(log.events[: sequence + 1])), max(sequence, 0))


def _frame(kind: str, data: bytes, number: int | None = None) -> bytes:
    """Notices have no number: a resumed stream continues from the log."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


async def wait_for_events(
    log: RunLog, after_sequence: int, timeout_s: float, shutdown: asyncio.Event
) -> tuple[list[RunEvent], bool]:
    """The events after a number, and whether the run is finished. Waits for at least one event if there can be one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    position = after_sequence + 1
    while (
        len(log.events) <= position
        and not log.is_finished
        and not shutdown.is_set()
        and (left := deadline - loop.time()) > 0
    ):
        await _wait_for_change(log.change, left, shutdown)
    return [logged.event for logged in log.events[max(0, position) :]], log.is_finished

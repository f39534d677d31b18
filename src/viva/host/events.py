"""Events of a run: constructors, the event log, the comparison of two logs, and what clients read: snapshots, event streams
(SSE) that can be resumed, and polling.

Events hold identifiers, counts and numbers only: no text of an agent, user, judge or suite. The one exception is the end of
a single invocation, which returns the agent's reply to the caller.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Literal
from weakref import WeakValueDictionary

from msgspec import Raw, Struct

from viva.host.errors import ApiError, validation_error
from viva.host.store import MAX_SEQUENCE, Run, Store
from viva.model import codec
from viva.model.message import ModelCall

StreamMode = Literal["values", "updates", "messages", "debug"]
STREAM_MODES: tuple[StreamMode, ...] = ("values", "updates", "messages", "debug")
EVENT_LOG_VERSION = 2
"""OpenWOP's version for runs with an event log. If it is below 2, clients read snapshots only."""
FINAL_EVENT_TYPES: frozenset[str] = frozenset({"run.completed", "run.failed", "run.cancelled"})
UPDATE_EVENT_TYPES: frozenset[str] = FINAL_EVENT_TYPES | {
    "run.started", "run.annotated", "node.completed", "node.failed", "eval.started", "eval.scored", "eval.completed",
}  # fmt: skip
"""Events that change the state of a run as clients see it; others, such as `provider.usage`, are for debugging."""
_REPEATABLE_TYPES = frozenset({"run.started", "eval.started", "node.started"})
"""Events without results. If a crash of the database loses one, it is written again."""
UNKNOWN_NAME = "unknown"
_PLAIN_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_TRANSPORT_FIELDS = frozenset({"transport", "owner"})


class EventDraft(Struct, frozen=True):
    """An event without a sequence number."""

    type: str
    payload: dict[str, Any]
    node_id: str | None = None
    causation_id: str | None = None


class RunEvent(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An event as it is stored and sent."""

    event_id: str
    run_id: str
    type: str
    payload: dict[str, Any]
    timestamp: str
    sequence: int
    node_id: str | None = None
    causation_id: str | None = None


class _EventType(Struct):
    type: str


class LoggedEvent(Struct, frozen=True):
    """An event of a log, with its JSON."""

    event: RunEvent
    encoded: bytes


def run_started(workflow: str, tenant: str) -> EventDraft:
    return EventDraft("run.started", {"workflowId": workflow, "transport": "rest", "owner": {"tenant": tenant}})


def run_completed(outputs: Mapping[str, Any] | None = None) -> EventDraft:
    return EventDraft("run.completed", {"outputs": dict(outputs)} if outputs is not None else {})


def run_failed(code: str, message: str) -> EventDraft:
    return EventDraft("run.failed", {"error": {"code": code, "message": message}})


def run_cancelled(cancelled_by: str) -> EventDraft:
    return EventDraft("run.cancelled", {"reason": "cancelled by the caller", "cancelledBy": cancelled_by})


def node_started(node: str, kind: str) -> EventDraft:
    return EventDraft("node.started", {"nodeId": node, "typeId": kind, "attempt": 0}, node)


def node_completed(node: str) -> EventDraft:
    return EventDraft("node.completed", {"nodeId": node, "outputs": {}}, node)


def provider_usage(call: ModelCall) -> EventDraft:
    payload: dict[str, Any] = {
        "provider": to_plain_name(call.provider.lower()),
        "model": to_plain_name(call.model),
        "inputTokens": max(0, call.input_tokens),
        "outputTokens": max(0, call.output_tokens),
        "totalTokens": max(0, call.input_tokens) + max(0, call.output_tokens),
    }
    if call.cost_usd is not None:
        payload["costEstimateUsd"] = call.cost_usd
    if call.cached_tokens:
        payload["cacheReadTokens"] = call.cached_tokens
    return EventDraft("provider.usage", payload)


def to_plain_name(name: str) -> str:
    """The name, or `unknown` for one that is a sentence: a model may put content into the name of a tool."""
    return name if _PLAIN_NAME_PATTERN.fullmatch(name) else UNKNOWN_NAME


PAGE_SIZE = 200
"""How many events of a log are read, sent or compared in one step: a log may have so many that all together block the event loop."""
KEPT_EVENTS = 1000
"""How many of the newest events of a log are in memory."""


class RunLog:
    """The events of one run, numbered from 0 without gaps. Readers can wait for new ones.

    All events are in the store. The newest are in memory too, since all readers of a run that executes need them.
    """

    def __init__(self, run_id: str, store: Store) -> None:
        self.run_id = run_id
        self._store = store
        last = store.load_last_event(run_id)
        self.count = 0 if last is None else last[0] + 1
        # Without its payload: that of the last event of an eval is the whole summary.
        self._last_type = "" if last is None else codec.decode_own(last[1], type=_EventType).type
        self._newest: list[LoggedEvent] = []
        self._connection_number = store.connection_number
        self.notices: list[RunEvent] = []
        """Events that only the current readers get. They are not part of the log."""
        self.change = asyncio.Event()
        """Is set at the next change, and then replaced by a new one. Readers take a reference, read the log, then wait."""

    @property
    def is_finished(self) -> bool:
        return self._last_type in FINAL_EVENT_TYPES

    def read(self, first: int, limit: int = PAGE_SIZE) -> list[LoggedEvent]:
        """The events from a sequence number on, as many as fit on a page."""
        offset = first - (self.count - len(self._newest))
        return self._newest[offset : offset + limit] if offset >= 0 else self._load(first, limit)

    def iterate(self) -> Iterator[LoggedEvent]:
        """All events, without a pause for others. Use `iterate_pages` where the run may be large."""
        position = 0
        while page := self.read(position):
            yield from page
            position += len(page)

    async def iterate_pages(self) -> AsyncGenerator[list[LoggedEvent]]:
        """All events, page by page."""
        position = 0
        while page := self.read(position):
            yield page
            position += len(page)
            await asyncio.sleep(0)  # other requests come first

    def append(self, drafts: Sequence[EventDraft], run: Run | None = None) -> None:
        """Appends events, and saves the run if it is given, in one transaction. Nothing may follow the last event of a run."""
        if self.is_finished or any(draft.type in FINAL_EVENT_TYPES for draft in drafts[:-1]):
            raise RuntimeError(f"{self.run_id}: an event after the last one")
        first = self.count
        events = [self._build_event(draft, first + offset) for offset, draft in enumerate(drafts)]
        block = [LoggedEvent(event, codec.encode(event)) for event in events]
        is_durable = any(draft.type not in _REPEATABLE_TYPES for draft in drafts)
        with self._store.transaction(is_durable=is_durable):
            self._write_lost_events()
            self._store.append_events(self.run_id, first, [logged.encoded for logged in block])
            if run is not None:
                self._store.save_run(run)
        self._connection_number = self._store.connection_number  # not if the transaction was undone
        self._add(block)

    def refresh(self) -> None:
        """Reads the events that another host has appended."""
        if added := self._load(self.count):
            self._add(added)

    def send_notice(self, draft: EventDraft) -> None:
        """Sends a notice to the readers of this run, on all hosts."""
        notice = self._build_event(draft, max(0, self.count - 1))
        self.add_notice(notice)
        self._store.announce(self.run_id, codec.encode(notice))

    def add_notice(self, notice: RunEvent) -> None:
        self.notices.append(notice)
        self._notify_readers()

    def events_of_type(self, kind: str) -> list[RunEvent]:
        return [logged.event for logged in self.iterate() if logged.event.type == kind]

    def _write_lost_events(self) -> None:
        """Writes again what a crash of the database has lost: the newest events, if they were not durable yet."""
        if self._connection_number == self._store.connection_number:
            return
        last = self._store.load_last_event(self.run_id)
        stored = 0 if last is None else last[0] + 1
        if stored < self.count:
            lost = self.read(stored, self.count - stored)
            self._store.append_events(self.run_id, stored, [logged.encoded for logged in lost])

    def _load(self, first: int, limit: int = MAX_SEQUENCE) -> list[LoggedEvent]:
        docs = self._store.load_events(self.run_id, first, limit)
        return [LoggedEvent(codec.decode_own(doc, type=RunEvent), doc) for doc in docs]

    def _add(self, block: Sequence[LoggedEvent]) -> None:
        self.count += len(block)
        self._last_type = block[-1].event.type
        self._newest += block
        if len(self._newest) > 2 * KEPT_EVENTS:
            del self._newest[:-KEPT_EVENTS]
        self._notify_readers()

    def _notify_readers(self) -> None:
        self.change.set()
        self.change = asyncio.Event()

    def _build_event(self, draft: EventDraft, sequence: int) -> RunEvent:
        return RunEvent(
            event_id=f"evt-{secrets.token_hex(12)}",
            run_id=self.run_id,
            type=draft.type,
            payload=draft.payload,
            timestamp=utc_timestamp(),
            sequence=sequence,
            node_id=draft.node_id,
            causation_id=draft.causation_id,
        )


def read_summary(log: RunLog) -> dict[str, Any] | None:
    """The summary of an eval, which is in its last event. None if the eval was not completed."""
    last = log.read(log.count - 1)[0].event if log.is_finished else None
    return last.payload["outputs"] if last is not None and last.type == "run.completed" else None


class RunLogs:
    """The open logs. A run has one RunLog, which its writer and readers share."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: WeakValueDictionary[str, RunLog] = WeakValueDictionary()

    def open_log(self, run_id: str) -> RunLog:
        log = self._open.get(run_id)
        if log is None:
            log = self._open[run_id] = RunLog(run_id, self._store)
        return log

    def refresh_logs(self) -> None:
        """Reads what other hosts have appended to the open logs."""
        for log in list(self._open.values()):
            if not log.is_finished and not self._store.holds_lease(log.run_id):
                log.refresh()

    def read_remote_change(self, run_id: str, notice: bytes | None = None) -> None:
        """Reads what another host has appended to the log of a run, or passes its notice on to readers."""
        log = self._open.get(run_id)
        if log is not None and notice is not None:
            log.add_notice(codec.decode_own(notice, type=RunEvent))
        elif log is not None and not self._store.holds_lease(run_id):
            log.refresh()


def utc_timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def diff_logs(a: Run, b: Run, log_a: RunLog, log_b: RunLog) -> dict[str, Any]:
    """Compares two runs by their logs.

    Identifiers, timestamps and transport fields are ignored. Latency is compared, so two runs of one suite usually differ.
    """
    truncated = not (a.is_finished and b.is_finished)
    length = min(log_a.count, log_b.count) if truncated else max(log_a.count, log_b.count)
    diffs: list[bytes] = []
    first_diff: int | None = None
    for first in range(0, length, PAGE_SIZE):
        size = min(PAGE_SIZE, length - first)
        page_diffs = _diff_events(first, log_a.read(first, size), log_b.read(first, size))
        if page_diffs and first_diff is None:
            first_diff = page_diffs[0]["seq"]
        diffs += map(codec.encode, page_diffs)
        await asyncio.sleep(0)  # other requests come first
    result: dict[str, Any] = {
        "a": a.id,
        "b": b.id,
        "divergedAtSeq": first_diff,
        "eventDiffs": Raw(b"[%b]" % b",".join(diffs)),
        "stateDiff": {"status": {"a": a.status, "b": b.status}} if a.status != b.status else {},
    }
    return {**result, "truncated": True} if truncated else result


def _diff_events(first: int, a: Sequence[LoggedEvent], b: Sequence[LoggedEvent]) -> list[dict[str, Any]]:
    diffs: list[dict[str, Any]] = []
    for sequence, (left, right) in enumerate(zip_longest(a, b), first):
        if (
            left is not None
            and right is not None
            and _to_comparable_bytes(left.event) == _to_comparable_bytes(right.event)
        ):
            continue
        kind = "added" if left is None else "removed" if right is None else "changed"
        sides = {"aEvent": left, "bEvent": right}
        shown = {name: Raw(logged.encoded) for name, logged in sides.items() if logged is not None}
        diffs.append({"seq": sequence, "op": kind, **shown})
    return diffs


def _to_comparable_bytes(event: RunEvent) -> bytes:
    payload = {key: value for key, value in event.payload.items() if key not in _TRANSPORT_FIELDS}
    return codec.encode_canonically([event.type, event.node_id, payload])


KEEP_ALIVE_S = 15.0
MAX_BUFFER_MS = 5000
_KEEP_ALIVE_FRAME = b": keep-alive\n\n"
_INTEGER_PATTERN = re.compile(r"-?[0-9]{1,16}")


def build_snapshot(run: Run) -> dict[str, Any]:
    """The body of `GET /v1/runs/{runId}`."""
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


def build_snapshot_after(run: Run, event: RunEvent) -> dict[str, Any]:
    """The snapshot of a run as it was after an event. Before its last event, a finished run is shown as running."""
    snapshot = build_snapshot(run)
    if not run.is_finished or event.type in FINAL_EVENT_TYPES:
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


def parse_stream_modes(text: str | None) -> tuple[StreamMode, ...]:
    """Parses modes such as `updates,debug`. Raises an ApiError; `values` cannot be combined with others."""
    names = (text or "updates").split(",")
    modes: tuple[StreamMode, ...] = tuple(mode for mode in STREAM_MODES if mode in names)
    if any(name not in STREAM_MODES for name in names) or ("values" in modes and len(modes) > 1):
        message = "Unknown stream mode, or modes that cannot be combined"
        raise ApiError(400, "unsupported_stream_mode", message, {"supported": list(STREAM_MODES)})
    return modes


def parse_number(text: str | None, name: str, default: int, minimum: int, maximum: int) -> int:
    if text is None:
        return default
    number = int(text) if _INTEGER_PATTERN.fullmatch(text) else None
    if number is None or not minimum <= number <= maximum:
        raise validation_error(f"{name} must be an integer from {minimum} to {maximum}", name)
    return number


async def parse_last_event_id(text: str | None, log: RunLog) -> int:
    """Parses the number or id of the last event that the reader has. Returns its sequence number, -1 without one."""
    if not text:
        return -1
    if _INTEGER_PATTERN.fullmatch(text):
        return max(-1, int(text))
    async for page in log.iterate_pages():
        for logged in page:
            if logged.event.event_id == text:
                return logged.event.sequence
    raise validation_error("Last-Event-ID is not an event of this run", "Last-Event-ID")


async def iter_frames(
    log: RunLog, options: StreamOptions, find_run: Callable[[], Run], shutdown: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """Yields SSE frames in order, without gaps or repeats, until the run ends or the host shuts down."""
    position, notice_count = options.after_sequence + 1, len(log.notices)
    if "values" in options.modes and options.is_resumed and log.count:
        yield _build_snapshot_frames(find_run(), log.read(max(0, min(position, log.count) - 1), 1))
    while True:
        change = log.change
        events, notices = log.read(position), log.notices[notice_count:]
        position, notice_count = position + len(events), notice_count + len(notices)
        included = [logged for logged in events if options.includes(logged.event.type)]
        if included and "values" in options.modes:
            yield _build_snapshot_frames(find_run(), included)
        elif included:
            yield _build_event_frames(included, options)
        for notice in notices:
            if options.includes(notice.type):
                yield _build_frame(notice.type, codec.encode(notice))
        if position < log.count:
            await asyncio.sleep(0)  # other requests come first
            continue
        if log.is_finished:
            return
        if not await _wait_for_change(change, options.keep_alive_s, shutdown):
            if shutdown.is_set():
                return
            yield _KEEP_ALIVE_FRAME
        elif options.buffer_ms:
            await _let_events_collect(log, options.buffer_ms / 1e3, shutdown)


async def _wait_for_change(change: asyncio.Event, timeout_s: float, shutdown: asyncio.Event) -> bool:
    """Waits for a change, the shutdown or the timeout. Returns whether there was a change."""
    waits = [asyncio.ensure_future(event.wait()) for event in (change, shutdown)]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return change.is_set()


async def _let_events_collect(log: RunLog, timeout_s: float, shutdown: asyncio.Event) -> None:
    """Waits while events collect for a batch. The last event of a run ends the wait."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not log.is_finished and not shutdown.is_set() and (left := deadline - loop.time()) > 0:
        await _wait_for_change(log.change, left, shutdown)


def _build_event_frames(events: Sequence[LoggedEvent], options: StreamOptions) -> bytes:
    if options.buffer_ms:
        data = b"[%b]" % b",".join(logged.encoded for logged in events)
        return _build_frame("batch", data, events[-1].event.sequence)
    return b"".join(_build_frame(logged.event.type, logged.encoded, logged.event.sequence) for logged in events)


def _build_snapshot_frames(run: Run, events: Sequence[LoggedEvent]) -> bytes:
    return b"".join(
        _build_frame("state.snapshot", codec.encode(build_snapshot_after(run, logged.event)), logged.event.sequence)
        for logged in events
    )


def _build_frame(kind: str, data: bytes, number: int | None = None) -> bytes:
    """One SSE message. Notices have no number, since a resumed stream continues from the log."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


async def wait_for_events(
    log: RunLog, after_sequence: int, timeout_s: float, shutdown: asyncio.Event
) -> tuple[list[RunEvent], bool]:
    """Returns a page of the events after a sequence number, and whether the run has no others. Waits for at least one event."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    position = max(0, after_sequence + 1)
    while (
        log.count <= position and not log.is_finished and not shutdown.is_set() and (left := deadline - loop.time()) > 0
    ):
        await _wait_for_change(log.change, left, shutdown)
    events = [logged.event for logged in log.read(position)]
    return events, log.is_finished and position + len(events) >= log.count

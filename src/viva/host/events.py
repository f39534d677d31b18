"""Events of a run: their constructors, the event log, and the comparison of two logs.

Events hold identifiers, counts and numbers only: no text of an agent, user, judge or suite. The one exception is the end of
a single invocation, which returns the agent's reply to the caller.
"""

import asyncio
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Literal
from weakref import WeakValueDictionary

from msgspec import Struct

from viva.host.store import Run, Store
from viva.model import codec
from viva.model.message import ModelCall

StreamMode = Literal["values", "updates", "messages", "debug"]
STREAM_MODES: tuple[StreamMode, ...] = ("values", "updates", "messages", "debug")
EVENT_LOG_VERSION = 2
"""In OpenWOP v1: runs have an event log. Below 2, clients read snapshots only."""
FINAL_EVENT_TYPES: frozenset[str] = frozenset({"run.completed", "run.failed", "run.cancelled"})
UPDATE_EVENT_TYPES: frozenset[str] = FINAL_EVENT_TYPES | {
    "run.started", "run.annotated", "node.completed", "node.failed", "eval.started", "eval.scored", "eval.completed",
}  # fmt: skip
"""Events that change the visible state; `agent.*` and `provider.usage` are for debugging."""
_REPEATABLE = frozenset({"run.started", "eval.started", "node.started"})
"""What says nothing of results: after a crash of the database it may be written again."""
UNKNOWN_NAME = "unknown"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_TRANSPORT_FIELDS = frozenset({"transport", "owner"})


class EventDraft(Struct, frozen=True):
    """An event without a sequence number."""

    type: str
    payload: dict[str, Any]
    node_id: str | None = None
    causation_id: str | None = None


class RunEvent(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An event as stored and sent."""

    event_id: str
    run_id: str
    type: str
    payload: dict[str, Any]
    timestamp: str
    sequence: int
    node_id: str | None = None
    causation_id: str | None = None


class LoggedEvent(Struct, frozen=True):
    """An event and its JSON, which is encoded once."""

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
    return name if _PLAIN_NAME.fullmatch(name) else UNKNOWN_NAME


class RunLog:
    """The events of one run, numbered from 0 without gaps. Readers can wait for new ones; the store holds them all."""

    def __init__(self, run: str, store: Store) -> None:
        self.run = run
        self._store = store
        self.events = _decode_events(store.load_events(run))
        self.notices: list[RunEvent] = []
        """Events for current readers only; they are not part of the log."""
        self.change = asyncio.Event()
        """Set at the next change and then replaced: take a reference, look at the log, then wait."""

    @property
    def is_finished(self) -> bool:
        return bool(self.events) and self.events[-1].event.type in FINAL_EVENT_TYPES

    def append(self, drafts: Sequence[EventDraft], run: Run | None = None) -> None:
        """Appends a block of events, and saves the run if given, in one transaction. Nothing follows the last event."""
        if self.is_finished or any(draft.type in FINAL_EVENT_TYPES for draft in drafts[:-1]):
            raise RuntimeError(f"{self.run}: an event after the last one")
        first = len(self.events)
        events = [self._number(draft, first + offset) for offset, draft in enumerate(drafts)]
        block = [LoggedEvent(event, codec.encode(event)) for event in events]
        is_durable = any(draft.type not in _REPEATABLE for draft in drafts)
        with self._store.transaction(is_durable=is_durable):
            self._store.append_events(self.run, first, [logged.encoded for logged in block])
            if run is not None:
                self._store.save_run(run)
        self.events += block
        self._notify_readers()

    def refresh(self) -> None:
        """Reads what another host has appended."""
        if added := _decode_events(self._store.load_events(self.run, len(self.events))):
            self.events += added
            self._notify_readers()

    def send_notice(self, draft: EventDraft) -> None:
        """Sends a notice to the readers of this host, and of others."""
        notice = self._number(draft, max(0, len(self.events) - 1))
        self.add_notice(notice)
        self._store.announce(self.run, codec.encode(notice))

    def add_notice(self, notice: RunEvent) -> None:
        self.notices.append(notice)
        self._notify_readers()

    def events_of_type(self, kind: str) -> list[RunEvent]:
        return [logged.event for logged in self.events if logged.event.type == kind]

    def _notify_readers(self) -> None:
        self.change.set()
        self.change = asyncio.Event()

    def _number(self, draft: EventDraft, sequence: int) -> RunEvent:
        return RunEvent(
            event_id=f"evt-{secrets.token_hex(12)}",
            run_id=self.run,
            type=draft.type,
            payload=draft.payload,
            timestamp=utc_timestamp(),
            sequence=sequence,
            node_id=draft.node_id,
            causation_id=draft.causation_id,
        )


class RunLogs:
    """One RunLog for each run that is written or read, shared by writers and readers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: WeakValueDictionary[str, RunLog] = WeakValueDictionary()

    def open_log(self, run: str) -> RunLog:
        log = self._open.get(run)
        if log is None:
            log = self._open[run] = RunLog(run, self._store)
        return log

    def refresh_logs(self) -> None:
        """Reads what other hosts have appended to logs that are read here."""
        for log in list(self._open.values()):
            if not log.is_finished and not self._store.holds_lease(log.run):
                log.refresh()

    def note_change(self, run: str, notice: bytes | None = None) -> None:
        """Another host has appended to the log of a run, or has a notice for its readers."""
        log = self._open.get(run)
        if log is not None and notice is not None:
            log.add_notice(codec.decode_own(notice, type=RunEvent))
        elif log is not None and not self._store.holds_lease(run):
            log.refresh()


def _decode_events(docs: Iterable[bytes]) -> list[LoggedEvent]:
    return [LoggedEvent(codec.decode_own(doc, type=RunEvent), doc) for doc in docs]


def utc_timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def diff_logs(a: Run, b: Run, log_a: RunLog, log_b: RunLog) -> dict[str, Any]:
    """Compares two runs by their logs.

    Identifiers, timestamps and transport fields are not compared. Latency is: two runs of one suite usually differ there.
    """
    truncated = not (a.is_finished and b.is_finished)
    length = min(len(log_a.events), len(log_b.events)) if truncated else None
    diffs = _diff_events(log_a.events[:length], log_b.events[:length])
    result: dict[str, Any] = {
        "a": a.id,
        "b": b.id,
        "divergedAtSeq": diffs[0]["seq"] if diffs else None,
        "eventDiffs": diffs,
        "stateDiff": {"status": {"a": a.status, "b": b.status}} if a.status != b.status else {},
    }
    return {**result, "truncated": True} if truncated else result


def _diff_events(a: Sequence[LoggedEvent], b: Sequence[LoggedEvent]) -> list[dict[str, Any]]:
    diffs: list[dict[str, Any]] = []
    for sequence, (left, right) in enumerate(zip_longest(a, b)):
        if left is not None and right is not None and _comparable(left.event) == _comparable(right.event):
            continue
        kind = "added" if left is None else "removed" if right is None else "changed"
        sides = {"aEvent": left, "bEvent": right}
        shown = {name: codec.decode_own(logged.encoded) for name, logged in sides.items() if logged is not None}
        diffs.append({"seq": sequence, "op": kind, **shown})
    return diffs


def _comparable(event: RunEvent) -> bytes:
    payload = {key: value for key, value in event.payload.items() if key not in _TRANSPORT_FIELDS}
    return codec.encode_canonically([event.type, event.node_id, payload])

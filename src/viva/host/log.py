"""The events of one run: a durable list that readers can wait on, with numbers from 0 and no gaps."""

import asyncio
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from weakref import WeakValueDictionary

from msgspec import Struct

from viva.host.store import Run, Store
from viva.model import codec

StreamMode = Literal["values", "updates", "messages", "debug"]
STREAM_MODES: tuple[StreamMode, ...] = ("values", "updates", "messages", "debug")
EVENT_LOG_VERSION = 2
"""What v1 calls a run whose events are a list of their own; below that, readers are told to look at snapshots only."""
FINAL_EVENT_TYPES: frozenset[str] = frozenset({"run.completed", "run.failed", "run.cancelled"})
UPDATE_EVENT_TYPES: frozenset[str] = FINAL_EVENT_TYPES | {
    "run.started", "run.annotated", "node.completed", "node.failed", "eval.started", "eval.scored", "eval.completed",
}  # fmt: skip
"""What changes the state that people look at; `agent.*` and `provider.usage` are for debugging."""


class EventDraft(Struct, frozen=True):
    """An event that has no number yet."""

    type: str
    payload: dict[str, Any]
    node_id: str | None = None
    causation_id: str | None = None


class RunEvent(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The envelope of an event as it stands in the log and goes over the wire."""

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


class RunLog:
    """Lives as long as somebody writes or reads it; the store has it all."""

    def __init__(self, run: str, store: Store) -> None:
        self.run = run
        self._store = store
        self.events = [LoggedEvent(codec.decode_kept(doc, type=RunEvent), doc) for doc in store.load_events(run)]
        self.notices: list[RunEvent] = []
        """What is told to those who listen just now, and is no part of the log."""
        self.change = asyncio.Event()
        """Is set when something more has happened, and another then takes its place: get hold of it, look, then wait."""

    @property
    def is_finished(self) -> bool:
        return bool(self.events) and self.events[-1].event.type in FINAL_EVENT_TYPES

    def append(self, drafts: Sequence[EventDraft], run: Run | None = None) -> None:
        """A block of events, whole or not at all; together with what is now known of the run, if that is given."""
        first = len(self.events)
        block = [self._logged(draft, first + offset) for offset, draft in enumerate(drafts)]
        with self._store.transaction():
            self._store.append_events(self.run, first, [each.encoded for each in block])
            if run is not None:
                self._store.save_run(run)
        self.events += block
        self._wake()

    def send_notice(self, draft: EventDraft) -> None:
        self.notices.append(self._numbered(draft, max(0, len(self.events) - 1)))
        self._wake()

    def events_of_type(self, kind: str) -> list[RunEvent]:
        return [each.event for each in self.events if each.event.type == kind]

    def _wake(self) -> None:
        self.change.set()
        self.change = asyncio.Event()

    def _logged(self, draft: EventDraft, sequence: int) -> LoggedEvent:
        event = self._numbered(draft, sequence)
        return LoggedEvent(event, codec.encode(event))

    def _numbered(self, draft: EventDraft, sequence: int) -> RunEvent:
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
    """One log object for each run that is being written or read, so that readers hear of what is written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: WeakValueDictionary[str, RunLog] = WeakValueDictionary()

    def open_log(self, run: str) -> RunLog:
        log = self._open.get(run)
        if log is None:
            log = self._open[run] = RunLog(run, self._store)
        return log


def utc_timestamp() -> str:
    """A moment as the protocol writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

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

Mode = Literal["values", "updates", "messages", "debug"]
MODES: tuple[Mode, ...] = ("values", "updates", "messages", "debug")
EVENT_LOG_VERSION = 2
"""What v1 calls a run whose events are a list of their own; below that, readers are told to look at snapshots only."""
ENDINGS: frozenset[str] = frozenset({"run.completed", "run.failed", "run.cancelled"})
UPDATES: frozenset[str] = ENDINGS | {
    "run.started", "run.annotated", "node.completed", "node.failed", "eval.started", "eval.scored", "eval.completed",
}  # fmt: skip
"""What changes the state that people look at; `agent.*` and `provider.usage` are for debugging."""


class Draft(Struct, frozen=True):
    """An event that has no number yet."""

    type: str
    payload: dict[str, Any]
    node: str | None = None
    cause: str | None = None


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


class Logged(Struct, frozen=True):
    """An event and its JSON, which is encoded once."""

    event: RunEvent
    doc: bytes


class RunLog:
    """Lives as long as somebody writes or reads it; the store has it all."""

    def __init__(self, run: str, store: Store) -> None:
        self.run = run
        self._store = store
        self.events = [Logged(codec.decode_kept(doc, type=RunEvent), doc) for doc in store.events(run)]
        self.notices: list[RunEvent] = []
        """What is told to those who listen just now, and is no part of the log."""
        self.changed = asyncio.Event()
        """Is set when something more has happened, and another then takes its place: get hold of it, look, then wait."""

    @property
    def over(self) -> bool:
        return bool(self.events) and self.events[-1].event.type in ENDINGS

    def append(self, drafts: Sequence[Draft], run: Run | None = None) -> None:
        """A block of events, whole or not at all; together with what is now known of the run, if that is given."""
        first = len(self.events)
        block = [self._logged(draft, first + offset) for offset, draft in enumerate(drafts)]
        with self._store.together():
            self._store.append(self.run, first, [each.doc for each in block])
            if run is not None:
                self._store.keep(run)
        self.events += block
        self._wake()

    def notify(self, draft: Draft) -> None:
        self.notices.append(self._numbered(draft, max(0, len(self.events) - 1)))
        self._wake()

    def of_type(self, kind: str) -> list[RunEvent]:
        return [each.event for each in self.events if each.event.type == kind]

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _logged(self, draft: Draft, sequence: int) -> Logged:
        event = self._numbered(draft, sequence)
        return Logged(event, codec.encode(event))

    def _numbered(self, draft: Draft, sequence: int) -> RunEvent:
        return RunEvent(
            event_id=f"evt-{secrets.token_hex(12)}",
            run_id=self.run,
            type=draft.type,
            payload=draft.payload,
            timestamp=now(),
            sequence=sequence,
            node_id=draft.node,
            causation_id=draft.cause,
        )


class Logs:
    """One log object for each run that is being written or read, so that readers hear of what is written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: WeakValueDictionary[str, RunLog] = WeakValueDictionary()

    def of(self, run: str) -> RunLog:
        log = self._open.get(run)
        if log is None:
            log = self._open[run] = RunLog(run, self._store)
        return log


def now() -> str:
    """A moment as the protocol writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

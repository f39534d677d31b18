"""Persistent state of a host: runs, events, annotations, and responses by idempotency key.

One SQLite file, `.viva/host/host.sqlite`, written by one process. A block of events, and a run with the response that
announces it, are one transaction each: after `kill -9` either all of it is stored or nothing.
"""

import asyncio
import fcntl
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

from msgspec import Struct

from viva.errors import BadInput
from viva.host.auth import Principal
from viva.host.errors import ApiError, validation_error
from viva.model import codec
from viva.record.private_files import make_private_folder, open_private

RunKind = Literal["eval", "workflow", "invocation"]
RunStatus = Literal["pending", "running", "cancelling", "completed", "failed", "cancelled"]
FINAL_STATUSES: frozenset[str] = frozenset({"completed", "failed", "cancelled"})
RESPONSE_TTL_S = 48 * 3600
"""How long a response is stored under its idempotency key; OpenWOP asks for at least a day."""
KEY_HEADER = "idempotency-key"
REPLAY_HEADER = "openwop-Idempotent-Replay"
MAX_KEY_LENGTH = 255

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL, doc BLOB NOT NULL)
  WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_by_status ON runs (status);
CREATE TABLE IF NOT EXISTS events (run TEXT, sequence INTEGER, doc BLOB NOT NULL, PRIMARY KEY (run, sequence))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS annotations (run TEXT, number INTEGER, doc BLOB NOT NULL, PRIMARY KEY (run, number))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers (tenant TEXT, operation TEXT, key TEXT, request TEXT NOT NULL,
  status INTEGER NOT NULL, body BLOB NOT NULL, at REAL NOT NULL, PRIMARY KEY (tenant, operation, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_by_age ON answers (at);
"""


class Run(Struct, kw_only=True, omit_defaults=True):
    """One run of a tenant. `request` holds the part of the request that is needed to execute and to show the run."""

    id: str
    tenant: str
    kind: RunKind
    workflow: str
    status: RunStatus
    created_at: str
    request: dict[str, Any]
    agent: str | None = None
    tags: list[str] | None = None
    metadata: dict[str, Any] | None = None
    started_at: str | None = None
    completed_at: str | None = None
    error: dict[str, Any] | None = None
    summary: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    principal: str | None = None
    engine: str | None = None
    """The version of Viva that started it."""

    @property
    def is_finished(self) -> bool:
        return self.status in FINAL_STATUSES


class StoredResponse(Struct, frozen=True):
    """A response under an idempotency key, and the digest of its request."""

    request: str
    status: int
    body: bytes


class Store:
    """The SQLite file. It is used on the thread of the event loop: each statement takes microseconds."""

    def __init__(self, folder: Path) -> None:
        make_private_folder(folder)
        self._lock = open_private(folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise BadInput.of(f"Another `viva serve` uses {folder}. Stop it first") from error
        path = folder / "host.sqlite"
        os.close(open_private(path, os.O_RDWR | os.O_CREAT))  # created with private permissions
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing; a power failure might
        self._db.executescript(_TABLES)
        self._depth = 0

    @contextmanager
    def transaction(self) -> Generator[None]:
        if self._depth:
            yield
            return
        self._depth += 1
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        else:
            self._db.execute("COMMIT")
        finally:
            self._depth -= 1

    def save_run(self, run: Run) -> None:
        self._db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET status = excluded.status, doc = excluded.doc",
            (run.id, run.tenant, run.status, codec.encode(run)),
        )

    def find_run(self, name: str, tenant: str) -> Run | None:
        row = self._db.execute("SELECT doc FROM runs WHERE id = ? AND tenant = ?", (name, tenant)).fetchone()
        return codec.decode_kept(row[0], type=Run) if row else None

    def has_run(self, name: str) -> bool:
        """Is there a run with this id, of any tenant?"""
        return self._db.execute("SELECT 1 FROM runs WHERE id = ?", (name,)).fetchone() is not None

    def load_unfinished_runs(self) -> list[Run]:
        """Oldest first."""
        rows = self._db.execute("SELECT doc FROM runs WHERE status IN ('pending', 'running', 'cancelling')").fetchall()
        return sorted((codec.decode_kept(row[0], type=Run) for row in rows), key=lambda run: run.created_at)

    def append_events(self, run: str, first: int, docs: Iterable[bytes]) -> None:
        """Events with the sequence numbers from `first` on. A number that is taken is an error."""
        rows = [(run, first + offset, doc) for offset, doc in enumerate(docs)]
        with self.transaction():
            self._db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)

    def load_events(self, run: str) -> list[bytes]:
        return [row[0] for row in self._db.execute("SELECT doc FROM events WHERE run = ? ORDER BY sequence", (run,))]

    def add_annotation(self, run: str, annotation: Mapping[str, Any]) -> None:
        self._db.execute(
            "INSERT INTO annotations VALUES (?, (SELECT count(*) FROM annotations WHERE run = ?), ?)",
            (run, run, codec.encode(annotation)),
        )

    def load_annotations(self, run: str) -> list[dict[str, Any]]:
        rows = self._db.execute("SELECT doc FROM annotations WHERE run = ? ORDER BY number", (run,))
        return [codec.decode_kept(row[0]) for row in rows]

    def find_response(self, tenant: str, operation: str, key: str) -> StoredResponse | None:
        row = self._db.execute(
            "SELECT request, status, body FROM answers WHERE tenant = ? AND operation = ? AND key = ? AND at > ?",
            (tenant, operation, key, time.time() - RESPONSE_TTL_S),
        ).fetchone()
        return StoredResponse(*row) if row else None

    def save_response(self, tenant: str, operation: str, key: str, response: StoredResponse) -> None:
        self._db.execute("DELETE FROM answers WHERE at <= ?", (time.time() - RESPONSE_TTL_S,))
        self._db.execute(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
            (tenant, operation, key, response.request, response.status, response.body, time.time()),
        )

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)


def _nothing() -> None:
    return None


class Mutation(Struct, frozen=True):
    """A validated change: the response, what to write in the same transaction, and what to start afterwards."""

    status: int
    body: bytes
    write: Callable[[], None] = _nothing
    start: Callable[[], None] = _nothing


class IdempotencyCache:
    """Executes each idempotency key once. Only digests of keys are stored."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()

    async def run_once(
        self,
        principal: Principal,
        operation: str,
        key: str | None,
        body: bytes,
        validate: Callable[[], Awaitable[Mutation]],
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of the mutation, or of an earlier one with the same key.

        A concurrent request with the same key waits for the first one. An ApiError of `validate` is not stored: a
        corrected request may use the same key.
        """
        if key is None:
            mutation = await validate()
            self._apply(mutation)
            return mutation.status, mutation.body, {}
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise validation_error(f"Idempotency-Key must have 1 to {MAX_KEY_LENGTH} characters", "Idempotency-Key")
        place = (principal.tenant, operation, sha256(key.encode()).hexdigest())
        request = sha256(body).hexdigest()
        async with self._locks.setdefault(place, asyncio.Lock()):
            stored = self._store.find_response(*place)
            if stored is None:
                mutation = await validate()
                response = StoredResponse(request, mutation.status, mutation.body)
                self._apply(mutation, lambda: self._store.save_response(*place, response))
                return mutation.status, mutation.body, {REPLAY_HEADER: "false"}
            if stored.request != request:
                raise ApiError(409, "idempotency_key_mismatch", "This Idempotency-Key was used for another request")
            return stored.status, stored.body, {REPLAY_HEADER: "true"}

    def _apply(self, mutation: Mutation, save_response: Callable[[], None] = _nothing) -> None:
        with self._store.transaction():
            mutation.write()
            save_response()
        mutation.start()

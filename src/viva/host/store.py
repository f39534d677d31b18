"""What a host must not forget: runs, their events, annotations, and the answers that were given under a key.

One SQLite file, `.viva/host/host.sqlite`, written by one process. A block of events, and a run together with the answer
that announces it, are one transaction each: after `kill -9` either all of it is there or nothing.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from viva.errors import BadInput
from viva.model import codec
from viva.record.private_files import make_private_folder, open_private

RunKind = Literal["eval", "workflow", "invocation"]
RunStatus = Literal["pending", "running", "cancelling", "completed", "failed", "cancelled"]
FINAL_STATUSES: frozenset[str] = frozenset({"completed", "failed", "cancelled"})
RESPONSE_TTL_S = 48 * 3600
"""How long an answer is kept under its key; at least a day is promised."""

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
    """One run of a tenant. `asked` is as much of the request as is needed to run it and to show it again."""

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
    """The version of Viva that it was started under."""

    @property
    def is_finished(self) -> bool:
        return self.status in FINAL_STATUSES


class StoredResponse(Struct, frozen=True):
    """What was answered under an idempotency key, and to which request."""

    request: str
    status: int
    body: bytes


class Store:
    """The file. All of it runs on the event loop's thread: each statement takes microseconds."""

    def __init__(self, folder: Path) -> None:
        make_private_folder(folder)
        self._lock = open_private(folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            os.close(self._lock)
            raise BadInput.of(f"another `viva serve` keeps its runs in {folder}; stop it first") from taken
        path = folder / "host.sqlite"
        os.close(open_private(path, os.O_RDWR | os.O_CREAT))  # runs are their tenants' business
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing; only a lost machine might
        self._db.executescript(_TABLES)
        self._depth = 0

    @contextmanager
    def transaction(self) -> Generator[None]:
        """All that is written inside stands, or none of it."""
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
        """A new run, or all that is known of one by now."""
        self._db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET status = excluded.status, doc = excluded.doc",
            (run.id, run.tenant, run.status, codec.encode(run)),
        )

    def find_run(self, name: str, tenant: str) -> Run | None:
        """A tenant's run. Somebody else's is as good as none."""
        row = self._db.execute("SELECT doc FROM runs WHERE id = ? AND tenant = ?", (name, tenant)).fetchone()
        return codec.decode_kept(row[0], type=Run) if row else None

    def has_run(self, name: str) -> bool:
        """Is there a run of that id, whoever has it?"""
        return self._db.execute("SELECT 1 FROM runs WHERE id = ?", (name,)).fetchone() is not None

    def load_unfinished_runs(self) -> list[Run]:
        """Runs that had not come to their end when the host went down, oldest first."""
        rows = self._db.execute("SELECT doc FROM runs WHERE status IN ('pending', 'running', 'cancelling')").fetchall()
        return sorted((codec.decode_kept(row[0], type=Run) for row in rows), key=lambda run: run.created_at)

    def append_events(self, run: str, first: int, docs: Iterable[bytes]) -> None:
        """Events with the next sequence numbers; a number that is taken is an error, never a gap or a second truth."""
        rows = [(run, first + offset, doc) for offset, doc in enumerate(docs)]
        with self.transaction():
            self._db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)

    def load_events(self, run: str) -> list[bytes]:
        rows = self._db.execute("SELECT doc FROM events WHERE run = ? ORDER BY sequence", (run,))
        return [row[0] for row in rows]

    def add_annotation(self, run: str, doc: Mapping[str, Any]) -> None:
        self._db.execute(
            "INSERT INTO annotations VALUES (?, (SELECT count(*) FROM annotations WHERE run = ?), ?)",
            (run, run, codec.encode(doc)),
        )

    def load_annotations(self, run: str) -> list[dict[str, Any]]:
        rows: Sequence[tuple[bytes]] = self._db.execute(
            "SELECT doc FROM annotations WHERE run = ? ORDER BY number", (run,)
        ).fetchall()
        return [codec.decode_kept(row[0]) for row in rows]

    def find_response(self, tenant: str, operation: str, key: str) -> StoredResponse | None:
        row = self._db.execute(
            "SELECT request, status, body FROM answers WHERE tenant = ? AND operation = ? AND key = ? AND at > ?",
            (tenant, operation, key, time.time() - RESPONSE_TTL_S),
        ).fetchone()
        return StoredResponse(*row) if row else None

    def save_response(self, tenant: str, operation: str, key: str, answer: StoredResponse) -> None:
        self._db.execute("DELETE FROM answers WHERE at <= ?", (time.time() - RESPONSE_TTL_S,))
        self._db.execute(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
            (tenant, operation, key, answer.request, answer.status, answer.body, time.time()),
        )

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

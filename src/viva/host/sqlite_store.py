"""The store of a host as one SQLite file, `.viva/host/host.sqlite`, for one process."""

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from viva.errors import BadInput
from viva.host.store import LEASE_S, TABLES, SequenceTaken, Store, StoreUnavailable
from viva.model import codec
from viva.record.private_files import create_private_database, make_private_folder, open_private

_PROBE_BYTES = 64 * 1024
_DISK_FULL_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_VERSION = 2
"""The version of the tables, stored as `user_version`. In version 0, the table of runs has no column `created`."""


_CHECKPOINT_INTERVAL_S = 2.0
_MAX_LOG_FRAMES = 16_000
"""If the write-ahead log has more pages of 4 KB than this, it starts again from its beginning, for which writers wait a moment."""
_MAX_FRAMES_WHILE_WRITERS_WAIT = 1000


class SqliteStore(Store):
    """A store for one process. Leases of an earlier process end when the file is opened."""

    is_shared = False

    def __init__(self, folder: Path, lease_s: float = LEASE_S) -> None:
        super().__init__("this process", lease_s)
        make_private_folder(folder)
        self._lock = open_private(folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise BadInput.of(f"Another `viva serve` uses {folder}. Stop it first") from error
        self._path = folder / "host.sqlite"
        create_private_database(self._path)
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._db.create_function("clock", 0, time.time)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing; a power failure might
        self._db.execute("PRAGMA wal_autocheckpoint = 0")  # it would wait for the disk, and so would all requests
        self._transaction_depth = 0
        try:
            self._create_tables()
        except BaseException:
            self._db.close()
            os.close(self._lock)
            raise
        self._checkpoints = _CheckpointThread(self._path)
        self._checkpoints.start()

    def _create_tables(self) -> None:
        with self.transaction():
            old_runs = self._pop_old_runs()
            for statement in TABLES:
                self._db.execute(statement)
            self._db.executemany("INSERT INTO runs (id, tenant, status, created, doc) VALUES (?, ?, ?, ?, ?)", old_runs)
            self._db.execute(f"PRAGMA user_version = {_VERSION}")
            self._db.execute("UPDATE runs SET lease_until = 0 WHERE lease_until > 0")

    def _pop_old_runs(self) -> list[tuple[Any, ...]]:
        """Removes the table of runs of an older version of Viva, and returns its rows in the form of the new table."""
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise BadInput.of("was written by a newer Viva, whose form this one does not know", str(self._path))
        has_runs = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone()
        if version == _VERSION or not has_runs:
            return []
        rows = self._db.execute("SELECT id, tenant, status, doc FROM runs").fetchall()
        rows.sort(key=lambda row: codec.decode_own(row[3])["created_at"])
        self._db.execute("DROP TABLE runs")
        return [(name, tenant, status, number, doc) for number, (name, tenant, status, doc) in enumerate(rows)]

    @contextmanager
    def transaction(self, *, is_durable: bool = False) -> Generator[None]:
        """A nested call joins the outer transaction. `is_durable` changes nothing: a killed process loses no SQLite transaction."""
        if self._transaction_depth:
            yield
            return
        self._transaction_depth += 1
        try:
            with _translate_errors():
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:  # a full disk may have ended it
                        self._db.execute("ROLLBACK")
                    raise
        finally:
            self._transaction_depth -= 1

    def _query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with _translate_errors():
            return self._db.execute(sql, values).fetchall()

    def _execute(self, sql: str, *values: Any) -> int:
        with _translate_errors():
            return self._db.execute(sql, values).rowcount

    def _insert_rows(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with _translate_errors():
            self._db.executemany(sql, rows)

    def check(self) -> None:
        with _translate_errors():
            probe = sqlite3.connect(self._path, isolation_level=None)
            try:
                probe.execute("BEGIN IMMEDIATE")
                probe.execute("CREATE TABLE IF NOT EXISTS probes (doc BLOB)")
                probe.execute("INSERT INTO probes VALUES (zeroblob(?))", (_PROBE_BYTES,))
                probe.execute("COMMIT")
                probe.execute("DELETE FROM probes")
            finally:
                probe.close()

    def close(self) -> None:
        self._checkpoints.stop()
        self._db.close()
        os.close(self._lock)


class _CheckpointThread(threading.Thread):
    """Moves what was written from the write-ahead log into the file, which waits for the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="viva-store-checkpoints", daemon=True)
        self._path = path
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            while not self._stopped.wait(_CHECKPOINT_INTERVAL_S):
                with suppress(sqlite3.OperationalError):  # a full disk: what is in the log is safe there
                    checkpoint(db)


def checkpoint(db: sqlite3.Connection) -> None:
    """Moves the pages of the write-ahead log into the file. A log that has become too long starts again."""
    _, frames, moved = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if frames > _MAX_LOG_FRAMES and frames - moved <= _MAX_FRAMES_WHILE_WRITERS_WAIT:
        db.execute("PRAGMA wal_checkpoint(RESTART)")


@contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise SequenceTaken(str(error)) from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in _DISK_FULL_CODES:
            raise StoreUnavailable("disk_full") from error
        raise

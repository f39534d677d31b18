"""The SQLite file of the index of runs: its tables, the changes that bring an older one up to date, and its transactions."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Generator
from pathlib import Path

from viva.errors import BadInput
from viva.record.private_files import create_private_database

_REBUILD_HINT = "rebuild it from the runs with `viva runs reindex`"
_BUSY_TIMEOUT_S = 30.0
_BUSY_PAUSE_S = 0.01


def _create_tables(db: sqlite3.Connection) -> None:
    db.execute(
        "CREATE TABLE runs (id TEXT PRIMARY KEY, at TEXT, viva TEXT, agent TEXT, inputs TEXT, cases INTEGER,"
        " ended TEXT, exit_code INTEGER, stopped TEXT, summary TEXT)"
    )
    db.execute(
        "CREATE TABLE results (run TEXT, suite TEXT, case_id TEXT, trial INTEGER, status TEXT, fault TEXT, error TEXT,"
        " digest TEXT, turns INTEGER, score REAL, duration_ms REAL, cost_usd REAL, tokens INTEGER,"
        " PRIMARY KEY (run, suite, case_id, trial)) WITHOUT ROWID"
    )
    db.execute("CREATE INDEX results_by_case ON results (suite, case_id, run)")


def _drop_case_index(db: sqlite3.Connection) -> None:
    """Drop an index that no query uses and that cost more than all other writes."""
    db.execute("DROP INDEX results_by_case")


def _add_run_numbers(db: sqlite3.Connection) -> None:
    """Add sequence numbers, and how much of the journal of an unfinished run is indexed."""
    db.execute("ALTER TABLE runs ADD COLUMN number INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE runs ADD COLUMN size INTEGER NOT NULL DEFAULT 0")


def _add_agents(db: sqlite3.Connection) -> None:
    """Add the agent of each result to its key: a run can have several."""
    db.execute("ALTER TABLE runs ADD COLUMN agents TEXT NOT NULL DEFAULT '[]'")
    db.execute("UPDATE runs SET agents = json_array(agent)")
    db.execute("ALTER TABLE results RENAME TO results_without_agent")
    db.execute(
        "CREATE TABLE results (run TEXT, suite TEXT, case_id TEXT, trial INTEGER, status TEXT, fault TEXT, error TEXT,"
        " digest TEXT, turns INTEGER, score REAL, duration_ms REAL, cost_usd REAL, tokens INTEGER, agent TEXT,"
        " PRIMARY KEY (run, suite, case_id, agent, trial)) WITHOUT ROWID"
    )
    db.execute(
        "INSERT INTO results SELECT r.*, coalesce(u.agent, '') FROM results_without_agent r"
        " LEFT JOIN runs u ON u.id = r.run"
    )
    db.execute("DROP TABLE results_without_agent")


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [
    _create_tables,
    _drop_case_index,
    _add_run_numbers,
    _add_agents,
]


@contextlib.contextmanager
def open_transaction(path: Path, *, read_only: bool = False) -> Generator[sqlite3.Connection]:
    """Open one transaction. A `read_only` one blocks no writer. BadInput for a damaged or locked file."""
    try:
        create_private_database(path)  # -wal and -shm get the same mode
        with contextlib.closing(_connect(path)) as db:
            db.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        if _is_busy(error):
            raise BadInput.of("is in use by another process; try again later", str(path)) from error
        raise BadInput.of(f"cannot be used: {error}; {_REBUILD_HINT}", str(path)) from error


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file with its tables. SQLite itself does not wait while several processes open a new file at once."""
    due = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        db = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            _migrate_tables(db, path)
        except BaseException as error:
            db.close()
            if not _is_busy(error) or time.monotonic() >= due:
                raise
            time.sleep(_BUSY_PAUSE_S)
        else:
            return db


def _is_busy(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _migrate_tables(db: sqlite3.Connection, path: Path) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == len(MIGRATIONS):
        return
    if version > len(MIGRATIONS):
        reason = f"was written by a newer Viva (schema {version}, this one has {len(MIGRATIONS)}); {_REBUILD_HINT}"
        raise BadInput.of(reason, str(path))
    db.execute("BEGIN IMMEDIATE")  # two runs that start together must not both create the tables
    version = db.execute("PRAGMA user_version").fetchone()[0]
    for migrate in MIGRATIONS[version:]:
        migrate(db)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    db.execute("COMMIT")

"""The index of runs: `.viva/history.sqlite`. It can always be made anew from the journals, which are the truth.

Plain sqlite3 in WAL mode, so several runs may write at once. A migration is a function; the list of them is the schema.
"""

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from msgspec import Struct, structs

from viva.errors import BadInput
from viva.model import codec
from viva.model.event import Event, RunEnded, RunStarted, RunSummary, TrialEnded
from viva.model.record import Status, TrialRecord
from viva.record.journal import read_events
from viva.record.private import make_private_folder, open_private

FILE = "history.sqlite"
REBUILD = "`viva runs reindex` makes it anew from the runs themselves"
_BATCH = 5000
"""So many rows at most wait for the end of the run, where writing them is cheapest: until then the loop needs the time."""


class RunRow(Struct, frozen=True, kw_only=True):
    """A run in the list. Without `ended`, it was killed or is still running."""

    id: str
    at: str
    viva: str
    agent: str
    inputs: list[str]
    cases: int
    ended: str | None = None
    exit_code: int | None = None
    stopped: str | None = None
    summary: RunSummary | None = None


class ResultRow(Struct, frozen=True, kw_only=True, gc=False):
    """How one trial ended, as far as lists and comparisons need it."""

    suite: str
    case: str
    trial: int
    status: Status
    fault: str | None = None
    error: str | None = None
    digest: str | None = None
    turns: int = 0
    score: float | None = None
    duration_ms: float = 0.0
    cost_usd: float | None = None
    tokens: int = 0

    @classmethod
    def of(cls, record: TrialRecord) -> "ResultRow":
        usage = record.usage
        return cls(
            suite=record.suite,
            case=record.id,
            trial=record.trial,
            status=record.status,
            fault=record.fault,
            error=record.error,
            digest=record.digest,
            turns=record.total_turns,
            score=record.score,
            duration_ms=record.duration_ms,
            cost_usd=record.cost_usd,
            tokens=usage.total_tokens if usage else 0,
        )


_RESULT = ResultRow.__struct_fields__


def _first_tables(db: sqlite3.Connection) -> None:
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


def _no_index_by_case(db: sqlite3.Connection) -> None:
    """Nothing asks by case alone, and keeping it in order cost more than all else that a run writes here."""
    db.execute("DROP INDEX results_by_case")


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_first_tables, _no_index_by_case]


class History:
    """The runs of one project. `home` is its `.viva` folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._path = home / FILE

    def folder(self, run: str) -> Path:
        return self.home / "runs" / run

    def journal(self, run: str) -> Path:
        return self.folder(run) / "journal.jsonl"

    def runs(self, *, limit: int | None = None, agent: str | None = None, failed: bool = False) -> list[RunRow]:
        """Newest first."""
        if not self._path.exists():
            return []
        where, values = ["1"], list[Any]()
        if agent is not None:
            where.append("agent = ?")
            values.append(agent)
        if failed:
            where.append("exit_code IS NOT 0")
        query = f"SELECT * FROM runs WHERE {' AND '.join(where)} ORDER BY at DESC, id DESC LIMIT ?"  # noqa: S608 -- no value is in it
        with self._open(reading=True) as db:
            return [_run_row(row) for row in db.execute(query, (*values, -1 if limit is None else limit))]

    def results(self, run: str) -> list[ResultRow]:
        with self._open() as db:
            if db.execute("SELECT ended FROM runs WHERE id = ?", (run,)).fetchone() == (None,):
                _index_journal(db, self.journal(run))  # it was cut off, or goes on: the journal knows more
            rows = db.execute("SELECT * FROM results WHERE run = ?", (run,))
            return [ResultRow(**dict(zip(_RESULT, row[1:], strict=True))) for row in rows]

    def ask(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """What the index answers to a query of SQL; nothing where there is no index."""
        if not self._path.exists():
            return []
        with self._open(reading=True) as db:
            return db.execute(query, values).fetchall()

    def find(self, name: str) -> RunRow:
        """A run by its id, the beginning of it, `latest`, or `latest~2`."""
        known = self.runs()
        if name == "latest" or name.startswith("latest~"):
            back = name.removeprefix("latest").removeprefix("~") or "0"
            if back.isdigit() and int(back) < len(known):
                return known[int(back)]
            raise BadInput.saying(f"there is no run {name!r}; there are {len(known)} in {self.home}")
        fitting = [row for row in known if row.id.startswith(name)]
        exact = [row for row in fitting if row.id == name]
        if len(exact or fitting) == 1:
            return (exact or fitting)[0]
        if fitting:
            raise BadInput.saying(f"{name!r} fits several runs: {', '.join(row.id for row in fitting[:5])}")
        newest = ", ".join(row.id for row in known[:3]) or "none"
        raise BadInput.saying(f"there is no run {name!r} in {self.home}; the newest: {newest}")

    def begin(self, event: RunStarted) -> None:
        with self._open() as db:
            _insert_run(db, event)

    def add(self, run: str, rows: Iterable[ResultRow]) -> None:
        with self._open() as db:
            _insert_results(db, run, rows)

    def end(self, event: RunEnded) -> None:
        with self._open() as db:
            _end_run(db, event)

    def index(self, run: str) -> None:
        """Takes a run into the list by its journal."""
        with self._open() as db:
            _index_journal(db, self.journal(run))

    def remove(self, run: str) -> None:
        """Forgets a run, its journal and everything else that it kept."""
        with self._open() as db:
            db.execute("DELETE FROM results WHERE run = ?", (run,))
            db.execute("DELETE FROM runs WHERE id = ?", (run,))
        shutil.rmtree(self.folder(run), ignore_errors=True)

    def keep_newest(self, count: int) -> list[str]:
        """Removes all but the newest runs."""
        old = [row.id for row in self.runs()[count:]]
        for run in old:
            self.remove(run)
        return old

    def reindex(self) -> int:
        """Makes the index anew from the runs' journals."""
        if not self.home.is_dir():
            return 0
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(FILE + suffix).unlink(missing_ok=True)
        journals = sorted((self.home / "runs").glob("*/journal.jsonl"))
        with self._open() as db:
            for path in journals:
                _index_journal(db, path)
        return len(journals)

    @contextlib.contextmanager
    def _open(self, *, reading: bool = False) -> Generator[sqlite3.Connection]:
        """One transaction; who only reads keeps nobody from writing. What sqlite has to say about a damaged file is said
        with the way out.
        """
        try:
            make_private_folder(self.home)
            os.close(open_private(self._path, os.O_RDWR | os.O_CREAT))  # -wal and -shm get the same mode
            with contextlib.closing(sqlite3.connect(self._path, timeout=30.0, isolation_level=None)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                self._migrate(db)
                db.execute("BEGIN" if reading else "BEGIN IMMEDIATE")
                try:
                    yield db
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
        except sqlite3.DatabaseError as wrong:
            if getattr(wrong, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise BadInput.saying("is in use by another process; try again", str(self._path)) from wrong
            raise BadInput.saying(f"cannot be used: {wrong}; {REBUILD}", str(self._path)) from wrong

    def _migrate(self, db: sqlite3.Connection) -> None:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == len(MIGRATIONS):
            return
        if version > len(MIGRATIONS):
            what = f"was made by a newer Viva (schema {version}, this one knows {len(MIGRATIONS)}); {REBUILD}"
            raise BadInput.saying(what, str(self._path))
        db.execute("BEGIN IMMEDIATE")  # two runs that start at once must not both create the tables
        version = db.execute("PRAGMA user_version").fetchone()[0]
        for migrate in MIGRATIONS[version:]:
            migrate(db)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        db.execute("COMMIT")


def _insert_run(db: sqlite3.Connection, event: RunStarted) -> None:
    row = (event.run, event.at, event.viva, event.agent, codec.compact(event.inputs), event.cases)
    db.execute("INSERT OR REPLACE INTO runs (id, at, viva, agent, inputs, cases) VALUES (?, ?, ?, ?, ?, ?)", row)


def _insert_results(db: sqlite3.Connection, run: str, rows: Iterable[ResultRow]) -> None:
    places = ", ".join("?" * (len(_RESULT) + 1))
    values = [(run, *structs.astuple(row)) for row in rows]
    db.executemany(f"INSERT OR REPLACE INTO results VALUES ({places})", values)  # noqa: S608 -- only question marks


def _end_run(db: sqlite3.Connection, event: RunEnded) -> None:
    values = (event.at, event.exit_code, event.stopped, codec.compact(event.summary), event.run)
    db.execute("UPDATE runs SET ended = ?, exit_code = ?, stopped = ?, summary = ? WHERE id = ?", values)


def _index_journal(db: sqlite3.Connection, path: Path) -> None:
    run = path.parent.name
    for event in read_events(path):
        match event:
            case RunStarted():
                _insert_run(db, event)
            case TrialEnded():
                _insert_results(db, run, [ResultRow.of(event.record)])
            case RunEnded():
                _end_run(db, event)
            case _:
                pass


def _run_row(row: Sequence[Any]) -> RunRow:
    run, at, viva, agent, inputs, cases, ended, exit_code, stopped, summary = row
    return RunRow(
        id=run,
        at=at,
        viva=viva,
        agent=agent,
        inputs=codec.decode_kept(inputs),
        cases=cases,
        ended=ended,
        exit_code=exit_code,
        stopped=stopped,
        summary=codec.decode_kept(summary, type=RunSummary) if summary else None,
    )


class HistorySink:
    """Writes a run into the index, in batches and in a thread of its own, so that the loop never waits for the disk."""

    live = False

    def __init__(self, history: History) -> None:
        self._history = history
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._rows: list[ResultRow] = []
        self._run = ""
        self._trouble: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="viva-history", daemon=True)

    def receive(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case RunStarted():
                    self._run = event.run
                    self._history.begin(event)
                    self._thread.start()
                case TrialEnded():
                    self._rows.append(ResultRow.of(event.record))
                    if len(self._rows) >= _BATCH:
                        self._flush()
                case RunEnded():
                    self._flush()
                    self._queue.put(lambda event=event: self._history.end(event))
                    self._queue.put(None)
                    self._thread.join()
                    if self._trouble is not None:
                        raise self._trouble
                case _:
                    pass

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._queue.put(lambda: self._history.add(self._run, rows))

    def _write(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception as wrong:  # whatever it is, the run's own thread says it at its end
                self._trouble = wrong

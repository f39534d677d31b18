"""The index of runs: `.viva/history.sqlite`. It can always be made anew from the journals, which are the truth.

Plain sqlite3 in WAL mode, so several runs may write at once. A migration is a function; the list of them is the schema.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from viva.errors import BadInput
from viva.model import codec
from viva.model.event import RunEnded, RunResumed, RunStarted, RunSummary, TrialEnded, TrialRetried
from viva.model.record import Status, TrialRecord
from viva.record.journal import has_ended, read_events
from viva.record.locks import find_holder, has_crashed, is_in_use
from viva.record.private_files import make_private_folder, open_private

INDEX_FILE = "history.sqlite"
HOSTED_KEY = "hosted"
"""In the settings of a run: a host started it, and goes on with it itself."""
REBUILD_HINT = "`viva runs reindex` makes it anew from the runs themselves"


class RunRow(Struct, frozen=True, kw_only=True):
    """A run in the list. Without `ended`, it was killed or is still running. `number` is its place in the sequence."""

    id: str
    number: int = 0
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


def _numbers(db: sqlite3.Connection) -> None:
    """Runs in the order of their sequence numbers, and how much of a journal without an end was read into the index."""
    db.execute("ALTER TABLE runs ADD COLUMN number INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE runs ADD COLUMN size INTEGER NOT NULL DEFAULT 0")


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_first_tables, _no_index_by_case, _numbers]
_RUN = "id, number, at, viva, agent, inputs, cases, ended, exit_code, stopped, summary"


class History:
    """The runs of one project. `home` is its `.viva` folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._path = home / INDEX_FILE

    def run_folder(self, run: str) -> Path:
        return self.home / "runs" / run

    def journal_path(self, run: str) -> Path:
        return self.run_folder(run) / "journal.jsonl"

    def list_runs(self, *, limit: int | None = None, agent: str | None = None, failed: bool = False) -> list[RunRow]:
        """Newest first, by their sequence numbers. Runs whose process died before they were listed are among them."""
        self.index_new_runs()
        if not self._path.exists():
            return []
        where, values = ["1"], list[Any]()
        if agent is not None:
            where.append("agent = ?")
            values.append(agent)
        if failed:
            where.append("exit_code IS NOT 0")
        query = f"SELECT {_RUN} FROM runs WHERE {' AND '.join(where)} ORDER BY number DESC, at DESC, id DESC LIMIT ?"  # noqa: S608 -- no value is in it
        with self._open(reading=True) as db:
            return [_run_row(row) for row in db.execute(query, (*values, -1 if limit is None else limit))]

    def list_results(self, run: str) -> list[ResultRow]:
        with self._open() as db:
            if db.execute("SELECT ended FROM runs WHERE id = ?", (run,)).fetchone() == (None,):
                _index_journal(db, self.journal_path(run))  # it was cut off, or goes on: the journal knows more
            rows = db.execute("SELECT * FROM results WHERE run = ?", (run,))
            return [ResultRow(**dict(zip(_RESULT, row[1:], strict=True))) for row in rows]

    def query(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """What the index answers to a query of SQL; nothing where there is no index."""
        if not self._path.exists():
            return []
        with self._open(reading=True) as db:
            return db.execute(query, values).fetchall()

    def find_run(self, name: str) -> RunRow:
        """A run by its id, the beginning of it, `latest`, or `latest~2`."""
        known = self.list_runs()
        if name == "latest" or name.startswith("latest~"):
            back = name.removeprefix("latest").removeprefix("~") or "0"
            if back.isdigit() and int(back) < len(known):
                return known[int(back)]
            raise BadInput.of(f"there is no run {name!r}; there are {len(known)} in {self.home}")
        fitting = [row for row in known if row.id.startswith(name)]
        exact = [row for row in fitting if row.id == name]
        if len(exact or fitting) == 1:
            return (exact or fitting)[0]
        if fitting:
            raise BadInput.of(f"{name!r} fits several runs: {', '.join(row.id for row in fitting[:5])}")
        newest = ", ".join(row.id for row in known[:3]) or "none"
        raise BadInput.of(f"there is no run {name!r} in {self.home}; the newest: {newest}")

    def add_run(self, event: RunStarted) -> None:
        with self._open() as db:
            _insert_run(db, event)

    def add_results(self, run: str, rows: Iterable[ResultRow]) -> None:
        with self._open() as db:
            _insert_results(db, run, rows)

    def end_run(self, event: RunEnded) -> None:
        with self._open() as db:
            _end_run(db, event)

    def index_run(self, run: str) -> None:
        """Takes a run into the list by its journal."""
        with self._open() as db:
            _index_journal(db, self.journal_path(run))

    def index_new_runs(self) -> None:
        """Takes into the index what the journals know and the index does not: of runs that were killed, mostly.

        A run that goes on is left to its own process.
        """
        known = dict(self._sizes()) if self._path.exists() else {}
        missing = [path for path in self._journals() if self._is_missing(path, known)]
        if not missing:
            return
        with self._open() as db:
            for path in missing:
                with contextlib.suppress(BadInput):  # a damaged journal must not hide the other runs
                    _index_journal(db, path)

    def _is_missing(self, path: Path, known: Mapping[str, int | None]) -> bool:
        if path.parent.name in known:
            return known[path.parent.name] not in (None, _size(path)) and not is_in_use(path)
        started = _beginning(path)
        return started is not None and _is_listed(started, path)

    def _sizes(self) -> list[tuple[str, int | None]]:
        """Of each run in the index, how much of its journal was read; None where it has its end."""
        return self.query("SELECT id, CASE WHEN ended IS NULL THEN size END FROM runs")

    def _journals(self) -> list[Path]:
        return sorted((self.home / "runs").glob("*/journal.jsonl"))

    def take_crashed_runs(self) -> list[str]:
        """Runs whose process ended without ending them, newest first, that nobody was told of. They are told once."""
        found = [path for path in self._journals() if has_crashed(path, acknowledge=True)]
        began = [started for path in found if has_ended(path) is False and (started := _beginning(path))]
        runs = sorted(began, key=lambda started: (started.number, started.at), reverse=True)
        return [started.run for started in runs if not started.settings.get(HOSTED_KEY)]

    def require_unused(self, run: str) -> None:
        """Raises BadInput, naming the process, where the run still goes on."""
        if is_in_use(self.journal_path(run)):
            holder = find_holder(self.journal_path(run))
            raise BadInput.of(f"run {run} is in use{f' by process {holder.pid}' if holder else ''}; stop it first")

    def remove_run(self, run: str) -> None:
        """Deletes a run, its journal, its kept workspaces and everything else that it kept."""
        self.require_unused(run)
        self.remove_workspaces(run)
        with self._open() as db:
            db.execute("DELETE FROM results WHERE run = ?", (run,))
            db.execute("DELETE FROM runs WHERE id = ?", (run,))
        shutil.rmtree(self.run_folder(run), ignore_errors=True)

    def remove_old_runs(self, keep: int) -> list[str]:
        """Removes all but the newest runs, and those that still go on."""
        old = [row.id for row in self.list_runs()[keep:] if not is_in_use(self.journal_path(row.id))]
        for run in old:
            self.remove_run(run)
        return old

    def rebuild(self) -> int:
        """Makes the index anew from the runs' journals."""
        if not self.home.is_dir():
            return 0
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(INDEX_FILE + suffix).unlink(missing_ok=True)
        journals = self._journals()
        with self._open() as db:
            for path in journals:
                _index_journal(db, path)
        return len(journals)

    def remove_workspaces(self, run: str) -> list[str]:
        """Deletes the workspaces that a run kept, and gives their paths. What is none of ours any more stays."""
        from viva.workspace.folders import remove_kept_workspace  # few runs have any

        return [path for path in list_kept_workspaces(self.journal_path(run)) if remove_kept_workspace(path)]

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
                raise BadInput.of("is in use by another process; try again", str(self._path)) from wrong
            raise BadInput.of(f"cannot be used: {wrong}; {REBUILD_HINT}", str(self._path)) from wrong

    def _migrate(self, db: sqlite3.Connection) -> None:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == len(MIGRATIONS):
            return
        if version > len(MIGRATIONS):
            what = f"was made by a newer Viva (schema {version}, this one knows {len(MIGRATIONS)}); {REBUILD_HINT}"
            raise BadInput.of(what, str(self._path))
        db.execute("BEGIN IMMEDIATE")  # two runs that start at once must not both create the tables
        version = db.execute("PRAGMA user_version").fetchone()[0]
        for migrate in MIGRATIONS[version:]:
            migrate(db)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        db.execute("COMMIT")


def _insert_run(db: sqlite3.Connection, event: RunStarted) -> None:
    row = (event.run, event.number, event.at, event.viva, event.agent, codec.compact_json(event.inputs), event.cases)
    names = "id, number, at, viva, agent, inputs, cases"
    db.execute(f"INSERT OR REPLACE INTO runs ({names}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608 -- only names


def _insert_results(db: sqlite3.Connection, run: str, rows: Iterable[ResultRow]) -> None:
    places = ", ".join("?" * (len(_RESULT) + 1))
    values = [(run, *structs.astuple(row)) for row in rows]
    db.executemany(f"INSERT OR REPLACE INTO results VALUES ({places})", values)  # noqa: S608 -- only question marks


def _end_run(db: sqlite3.Connection, event: RunEnded) -> None:
    values = (event.at, event.exit_code, event.stopped, codec.compact_json(event.summary), event.run)
    db.execute("UPDATE runs SET ended = ?, exit_code = ?, stopped = ?, summary = ? WHERE id = ?", values)


def _index_journal(db: sqlite3.Connection, path: Path) -> None:
    run, size = path.parent.name, _size(path)
    began = False
    for event in read_events(path):
        match event:
            case RunStarted():
                if not _is_listed(event, path):
                    return
                _insert_run(db, event)
                db.execute("UPDATE runs SET size = ? WHERE id = ?", (size, run))
                began = True
            case RunResumed() if began:
                db.execute(
                    "UPDATE runs SET ended = NULL, exit_code = NULL, stopped = NULL, summary = NULL WHERE id = ?",
                    (run,),
                )
            case TrialEnded() if began:
                _insert_results(db, run, [ResultRow.of(event.record)])
            case RunEnded() if began:
                _end_run(db, event)
            case _:
                pass


def _is_listed(started: RunStarted, path: Path) -> bool:
    """Runs of a host are listed when they have their end: until then they are their host's business."""
    return not started.settings.get(HOSTED_KEY) or has_ended(path) is True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _beginning(path: Path) -> RunStarted | None:
    """The first event of a journal, if that is the beginning of a run."""
    try:
        event = next(read_events(path), None)
    except BadInput:
        return None
    return event if isinstance(event, RunStarted) else None


def list_kept_workspaces(journal: Path) -> list[str]:
    """Where the workspaces of a run's trials were kept, as its journal says; a damaged line says nothing."""
    found: dict[str, None] = {}
    decoder = codec.Decoder[TrialEnded | TrialRetried](TrialEnded | TrialRetried, codec.OWN_MAX_DEPTH)
    with contextlib.suppress(FileNotFoundError), journal.open("rb") as file:
        for line in file:
            if b'"workspace":"' in line:  # most lines need not be decoded
                with contextlib.suppress(codec.DecodeError, codec.ValidationError):
                    event: TrialEnded | TrialRetried = decoder.decode(line)
                    path = event.record.workspace if isinstance(event, TrialEnded) else event.workspace
                    found |= {path: None} if path else {}
    return list(found)


def _run_row(row: Sequence[Any]) -> RunRow:
    run, number, at, viva, agent, inputs, cases, ended, exit_code, stopped, summary = row
    return RunRow(
        id=run,
        number=number,
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

"""The index of runs, `.viva/history.sqlite`. The journals hold the data; the index can be rebuilt from them.

It is sqlite3 in WAL mode, so several runs can write in parallel. Its tables are in `index_file`.
"""

import contextlib
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from msgspec import Struct, structs

from viva.errors import BadInput
from viva.history.index_file import open_transaction
from viva.model import codec
from viva.model.event import (
    ELSEWHERE_KEY,
    Event,
    RunEnded,
    RunResumed,
    RunStarted,
    RunSummary,
    TrialEnded,
    TrialRetried,
)
from viva.model.record import Status, TrialRecord
from viva.record.journal import has_run_ended, read_events, read_records
from viva.record.locks import find_lock_holder, has_writer_crashed, is_journal_in_use
from viva.record.private_files import make_private_folder

INDEX_FILE = "history.sqlite"
PULLED_FILE = "pulled.json"
"""The file beside the journal of a pulled run, with the content of its entry in the remote history."""
HOSTED_KEY = "hosted"
"""A setting of a run that a host started and continues itself."""


class RunRow(Struct, frozen=True, kw_only=True):
    """A run in the list of runs. A run without `ended` is running or was killed. `number` is its sequence number.

    Its fields are columns of the table `runs`.
    """

    id: str
    number: int = 0
    at: str
    viva: str
    agent: str
    """The agents under test, joined by commas."""
    agents: list[str] = []
    inputs: list[str]
    cases: int
    ended: str | None = None
    exit_code: int | None = None
    stopped: str | None = None
    summary: RunSummary | None = None


class ResultRow(Struct, frozen=True, kw_only=True, gc=False):
    """The result of one trial, for lists and comparisons.

    After `run`, its fields are the columns of the table `results` in the same order: a new one is the last, and a migration adds its column.
    """

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
    agent: str = ""

    @classmethod
    def of(cls, record: TrialRecord) -> "ResultRow":
        usage = record.usage
        return cls(
            suite=record.suite,
            case=record.id,
            trial=record.trial,
            status=record.status,
            fault=record.fault,
            error=record.error or next(iter(record.assertion_errors or ()), None),
            digest=record.digest,
            turns=record.total_turns,
            score=record.score,
            duration_ms=record.duration_ms,
            cost_usd=record.cost_usd,
            tokens=usage.total_tokens if usage else 0,
            agent=record.agent or "",
        )


_RESULT_COLUMNS = ResultRow.__struct_fields__
_REPEATED_COLUMNS = ("suite", "status", "fault", "agent")
"""Columns with few different values in a run."""
_RUN_COLUMNS = RunRow.__struct_fields__
_BATCH_ROWS = 5000
"""Rows wait in memory up to this number: writing them at the end of the run is cheapest."""


class History:
    """The runs of one project. `home` is its `.viva` folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._path = home / INDEX_FILE

    def run_folder(self, run: str) -> Path:
        return self.home / "runs" / run

    def journal_path(self, run: str) -> Path:
        return self.run_folder(run) / "journal.jsonl"

    def is_pulled(self, run: str) -> bool:
        """Does the run come from a remote history?"""
        return _is_pulled(self.journal_path(run))

    def was_made_elsewhere(self, run: str) -> bool:
        """Was the run, or a part of a merged run, made on another machine? Nothing that it names is run on this one."""
        path = self.journal_path(run)
        if _is_pulled(path):
            return True
        started = read_run_start(path)
        return started is not None and bool(started.settings.get(ELSEWHERE_KEY))

    def list_runs(self, *, limit: int | None = None, agent: str | None = None, failed: bool = False) -> list[RunRow]:
        """Return runs, newest first, including runs whose process died before they were indexed."""
        self.index_new_runs()
        if not self._path.exists():
            return []
        where, values = ["1"], list[Any]()
        if agent is not None:
            where.append("(agent = ? OR ? IN (SELECT value FROM json_each(agents)))")
            values += [agent, agent]
        if failed:
            where.append("exit_code IS NOT 0")
        query = f"SELECT {', '.join(_RUN_COLUMNS)} FROM runs WHERE {' AND '.join(where)} ORDER BY number DESC, at DESC, id DESC LIMIT ?"  # noqa: S608 -- contains no value
        with self._open_transaction(read_only=True) as db:
            return [_parse_run_row(row) for row in db.execute(query, (*values, -1 if limit is None else limit))]

    def list_results(self, run: str) -> list[ResultRow]:
        return list(self.iter_results(run))

    def iter_results(self, run: str) -> Iterator[ResultRow]:
        """Yield the results of a run, one at a time."""
        ended = self.query("SELECT 1 FROM runs WHERE id = ? AND ended IS NOT NULL", (run,))
        if not ended and self.journal_path(run).exists():  # the journal of an unfinished run has more
            self.index_run(run)
        with self._open_transaction(read_only=True) as db:
            words: dict[str | None, Any] = {}  # one text for equal values
            for row in db.execute("SELECT * FROM results WHERE run = ?", (run,)):
                fields = dict(zip(_RESULT_COLUMNS, row[1:], strict=True))
                for name in _REPEATED_COLUMNS:
                    fields[name] = words.setdefault(fields[name], fields[name])
                yield ResultRow(**fields)

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run an SQL query; no rows if there is no index."""
        if not self._path.exists():
            return []
        with self._open_transaction(read_only=True) as db:
            return db.execute(sql, values).fetchall()

    def find_run(self, name: str) -> RunRow:
        """Return a run by its id, the start of its id, `latest` or `latest~2`. BadInput if there is none."""
        rows = {row.id: row for row in self.list_runs()}
        return rows[match_run_id(name, list(rows), str(self.home))]

    def add_run_part(
        self, run: str, rows: Iterable[ResultRow] = (), start: RunStarted | None = None, end: RunEnded | None = None
    ) -> None:
        """Add results of a run, and its start and end, in one transaction: each costs a few writes to the disk."""
        with self._open_transaction() as db:
            if start is not None:
                _insert_run(db, start)
            _insert_results(db, run, rows)
            if end is not None:
                _mark_run_ended(db, end)

    def index_run(self, run: str) -> None:
        """Index one run from its journal."""
        with self._open_transaction() as db:
            _index_journal(db, self.journal_path(run))

    def index_new_runs(self) -> None:
        """Index journals that the index lacks, mostly of killed runs. A running run is left to its own process."""
        sizes = dict(self._list_indexed_sizes()) if self._path.exists() else {}
        missing = [path for path in self._list_journals() if self._is_unindexed(path, sizes)]
        if not missing:
            return
        with self._open_transaction() as db:
            for path in missing:
                with contextlib.suppress(BadInput):  # a damaged journal must not hide the other runs
                    _index_journal(db, path)

    def _is_unindexed(self, path: Path, sizes: Mapping[str, int | None]) -> bool:
        if path.parent.name in sizes:
            return sizes[path.parent.name] not in (None, _get_file_size(path)) and not is_journal_in_use(path)
        started = read_run_start(path)
        return started is not None and _may_be_indexed(started, path)

    def _list_indexed_sizes(self) -> list[tuple[str, int | None]]:
        """Return how much of each run's journal is indexed; None for a complete run."""
        return self.query("SELECT id, CASE WHEN ended IS NULL THEN size END FROM runs")

    def _list_journals(self) -> list[Path]:
        return sorted((self.home / "runs").glob("*/journal.jsonl"))

    def pop_crashed_runs(self) -> list[str]:
        """Return runs that stopped unexpectedly, newest first. Each run is returned once, by the first call."""
        paths = [path for path in self._list_journals() if has_writer_crashed(path, acknowledge=True)]
        starts = [started for path in paths if has_run_ended(path) is False and (started := read_run_start(path))]
        runs = sorted(starts, key=lambda started: (started.number, started.at), reverse=True)
        return [started.run for started in runs if not started.settings.get(HOSTED_KEY)]

    def refuse_if_in_use(self, run: str) -> None:
        """Raise BadInput if a process still writes to the run."""
        path = self.journal_path(run)
        if is_journal_in_use(path):
            process = f" by process {holder.pid}" if (holder := find_lock_holder(path)) else ""
            raise BadInput.of(f"run {run} is in use{process}; stop it first")

    def remove_run(self, run: str) -> None:
        """Delete a run with its journal, kept workspaces and other data."""
        import shutil  # slow to import

        self.refuse_if_in_use(run)
        self.remove_workspaces(run)
        with self._open_transaction() as db:
            db.execute("DELETE FROM results WHERE run = ?", (run,))
            db.execute("DELETE FROM runs WHERE id = ?", (run,))
        shutil.rmtree(self.run_folder(run), ignore_errors=True)

    def remove_old_runs(self, keep: int) -> list[str]:
        """Delete all runs but the newest `keep` and those that are running."""
        old = [row.id for row in self.list_runs()[keep:] if not is_journal_in_use(self.journal_path(row.id))]
        for run in old:
            self.remove_run(run)
        return old

    def rebuild(self) -> int:
        """Rebuild the index from the journals and return the number of runs."""
        if not self.home.is_dir():
            return 0
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(INDEX_FILE + suffix).unlink(missing_ok=True)
        journals = self._list_journals()
        with self._open_transaction() as db:
            for path in journals:
                _index_journal(db, path)
        return len(journals)

    def remove_workspaces(self, run: str) -> list[str]:
        """Delete the kept workspaces of a run and return their paths."""
        from viva.workspace.folders import remove_kept_workspace  # few runs have kept workspaces

        return [path for path in list_kept_workspaces(self.journal_path(run)) if remove_kept_workspace(path)]

    def _open_transaction(self, *, read_only: bool = False) -> AbstractContextManager[sqlite3.Connection]:
        make_private_folder(self.home)
        return open_transaction(self._path, read_only=read_only)


def match_run_id(name: str, ids: Sequence[str], place: str) -> str:
    """Return the one of the `ids`, newest first, that a name means: an id, the start of an id, `latest` or `latest~2`.

    BadInput, with the `place` of the runs, if none or several of them match.
    """
    if name == "latest" or name.startswith("latest~"):
        back = name.removeprefix("latest").removeprefix("~") or "0"
        matches = [ids[int(back)]] if re.fullmatch(r"[0-9]{1,9}", back) and int(back) < len(ids) else []
    else:
        matches = [run for run in ids if run == name] or [run for run in ids if run.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise BadInput.of(f"{name!r} matches several runs in {place}: {', '.join(matches[:5])}; give more of the id")
    raise BadInput.of(f"there is no run {name!r} in {place}; the newest: {', '.join(ids[:3]) or 'none'}")


def _insert_run(db: sqlite3.Connection, event: RunStarted) -> None:
    row = {
        "id": event.run,
        "number": event.number,
        "at": event.at,
        "viva": event.viva,
        "agent": event.agent,
        "agents": codec.compact_json(event.agents or ("",)),
        "inputs": codec.compact_json(event.inputs),
        "cases": event.cases,
    }
    placeholders = ", ".join("?" * len(row))
    # If the run is resumed, all results that still count come again.
    db.execute("DELETE FROM results WHERE run = ?", (event.run,))
    db.execute(f"INSERT OR REPLACE INTO runs ({', '.join(row)}) VALUES ({placeholders})", tuple(row.values()))  # noqa: S608 -- only names


def _insert_results(db: sqlite3.Connection, run: str, rows: Iterable[ResultRow]) -> None:
    placeholders = ", ".join("?" * (len(_RESULT_COLUMNS) + 1))
    values = [(run, *structs.astuple(row)) for row in rows]
    db.executemany(f"INSERT OR REPLACE INTO results VALUES ({placeholders})", values)  # noqa: S608 -- only question marks


def _mark_run_ended(db: sqlite3.Connection, event: RunEnded) -> None:
    values = (event.at, event.exit_code, event.stopped, codec.compact_json(event.summary), event.run)
    db.execute("UPDATE runs SET ended = ?, exit_code = ?, stopped = ?, summary = ? WHERE id = ?", values)


def _index_journal(db: sqlite3.Connection, path: Path) -> None:
    run, size = path.parent.name, _get_file_size(path)
    has_start = has_discarded_results = False
    for event in read_events(path):
        match event:
            case RunStarted():
                if not _may_be_indexed(event, path):
                    return
                # Another machine gave a pulled run its number, so it has none here: `latest` is a run of this machine.
                number = 0 if _is_pulled(path) else event.number
                _insert_run(db, structs.replace(event, run=run, number=number))
                db.execute("UPDATE runs SET size = ? WHERE id = ?", (size, run))
                has_start = True
            case RunResumed() if has_start:
                db.execute(
                    "UPDATE runs SET ended = NULL, exit_code = NULL, stopped = NULL, summary = NULL WHERE id = ?",
                    (run,),
                )
                has_discarded_results = has_discarded_results or bool(event.discarded)
            case TrialEnded() if has_start:
                _insert_results(db, run, [ResultRow.of(event.record)])
            case RunEnded() if has_start:
                _mark_run_ended(db, structs.replace(event, run=run))  # a foreign journal may name another run
            case _:
                pass
    if has_discarded_results:
        db.execute("DELETE FROM results WHERE run = ?", (run,))
        _insert_results(db, run, map(ResultRow.of, read_records(path)))


def _may_be_indexed(started: RunStarted, path: Path) -> bool:
    """Runs of a host are indexed only after their end."""
    return not started.settings.get(HOSTED_KEY) or has_run_ended(path) is True


def _is_pulled(journal: Path) -> bool:
    return journal.with_name(PULLED_FILE).exists()


def _get_file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_run_start(path: Path) -> RunStarted | None:
    """Return the first event of a journal if it is the start of a run."""
    try:
        event = next(read_events(path), None)
    except BadInput:
        return None
    return event if isinstance(event, RunStarted) else None


def list_kept_workspaces(journal: Path) -> list[str]:
    """Return the paths of kept workspaces that a journal names. Damaged lines are ignored."""
    paths: dict[str, None] = {}
    decoder = codec.Decoder[TrialEnded | TrialRetried](TrialEnded | TrialRetried, codec.OWN_MAX_DEPTH)
    with contextlib.suppress(FileNotFoundError), journal.open("rb") as file:
        for line in file:
            if b'"workspace":"' in line:  # most lines are not decoded
                with contextlib.suppress(codec.DecodeError, codec.ValidationError):
                    event: TrialEnded | TrialRetried = decoder.decode(line)
                    path = event.record.workspace if isinstance(event, TrialEnded) else event.workspace
                    paths |= {path: None} if path else {}
    return list(paths)


def _parse_run_row(row: Sequence[Any]) -> RunRow:
    fields = dict(zip(_RUN_COLUMNS, row, strict=True))
    for name in ("agents", "inputs"):
        fields[name] = codec.decode_own(fields[name])
    if fields["summary"]:
        fields["summary"] = codec.decode_own(fields["summary"], type=RunSummary)
    return RunRow(**fields)


class HistorySink:
    """Indexes a run at its end. A long one is indexed in batches, in a thread: the event loop never waits for the disk.

    Until then `list_runs` reads its journal.
    """

    live = False

    def __init__(self, history: History) -> None:
        self._history = history
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._rows: list[ResultRow] = []
        self._run = ""
        self._start: RunStarted | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def receive(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case RunStarted():
                    self._run, self._start = event.run, event
                case RunResumed():  # the index says that it has ended
                    self._submit_job(self._create_write_job())
                case TrialEnded():
                    self._rows.append(ResultRow.of(event.record))
                    if len(self._rows) >= _BATCH_ROWS:
                        self._submit_job(self._create_write_job())
                case RunEnded():
                    self._finish_jobs(self._create_write_job(event))
                case _:
                    pass

    def _create_write_job(self, end: RunEnded | None = None) -> Callable[[], None]:
        """Create the job that writes the results received since the last job."""
        rows, self._rows = self._rows, []
        start, self._start = self._start, None
        return lambda: self._history.add_run_part(self._run, rows, start, end)

    def _submit_job(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_jobs, name="viva-history", daemon=True)
            self._thread.start()
        self._queue.put(job)

    def _finish_jobs(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            job()
            return
        self._queue.put(job)
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run_jobs(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception as error:  # raised in the thread of the run at its end
                self._error = error

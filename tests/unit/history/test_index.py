"""The index of runs: several writers, damage, and a new beginning from the journals."""

import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import structs

from viva.errors import BadInput
from viva.history.index import HOSTED_KEY, History, HistorySink, ResultRow
from viva.history.index_file import MIGRATIONS
from viva.model.event import Event, RunEnded, RunStarted, RunSummary, TrialEnded
from viva.model.record import Status, TrialRecord
from viva.record.journal import Journal


def started(run: str, at: str = "2026-11-15T10:00:00", agent: str = "bot", number: int = 0) -> RunStarted:
    return RunStarted(run, at, "1.0", agent, ("suite.jsonl",), 2, 2, 1, number=number)


def summary(passed: int = 1, failed: int = 1) -> RunSummary:
    return RunSummary(
        total=passed + failed,
        passed=passed,
        failed=failed,
        errors=0,
        skipped=0,
        not_run=0,
        unchecked=0,
        total_turns=2,
        avg_turns=1.0,
        duration_ms=5.0,
        checks=2,
        checks_passed=1,
    )


def trial(index: int, status: Status = "passed") -> TrialEnded:
    record = TrialRecord(f"c{index}", "n", status, [], [], 1, 2.0, "s", 1, 1, score=0.5, digest="d")
    return TrialEnded(record.key, index, 1, record)


def hold(
    history: History,
    run: str,
    *,
    at: str = "2026-11-15T10:00:00",
    end: bool = True,
    agent: str = "bot",
    number: int = 0,
) -> None:
    """A run with one passed and one failed case, in its journal and in the index."""
    journal, sink = Journal(history.journal_path(run)), HistorySink(history)
    events: list[Event] = [started(run, at, agent, number), trial(0), trial(1, "failed")]
    if end:
        events.append(RunEnded(run, at, 1, summary()))
    for event in events:
        journal.append(event)
        sink.receive((event,))
    journal.close()


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / ".viva")


def test_runs_are_listed_newest_first_and_filtered(history: History):
    hold(history, "a", at="2026-11-15T10:00:00")
    hold(history, "b", at="2026-11-15T11:00:00", agent="other")
    history.add_run_part("c", start=started("c", "2026-11-15T09:00:00"))
    assert [row.id for row in history.list_runs()] == ["b", "a", "c"]
    assert [row.id for row in history.list_runs(limit=1)] == ["b"]
    assert [row.id for row in history.list_runs(agent="bot")] == ["a", "c"]
    history.add_run_part("a", end=RunEnded("a", "x", 0, summary(2, 0)))
    assert [row.id for row in history.list_runs(failed=True)] == ["b", "c"]
    assert history.list_runs()[0].summary == summary()
    assert history.list_runs()[2].ended is None


def test_nothing_has_been_run_yet(history: History):
    assert history.list_runs() == []
    assert not history.home.exists()


@pytest.mark.parametrize(
    ("name", "found"), [("latest", "b1"), ("latest~1", "a2"), ("latest~2", "a1"), ("b", "b1"), ("a1", "a1")]
)
def test_a_run_is_found_by_id_beginning_or_age(history: History, name: str, found: str):
    for hour, run in enumerate(("a1", "a2", "b1")):
        hold(history, run, at=f"2026-11-15T1{hour}:00:00")
    assert history.find_run(name).id == found


@pytest.mark.parametrize("name", ["a", "latest~3", "latest~x", "latest~²", f"latest~{'9' * 5000}", "zz", ""])
def test_a_name_that_fits_none_or_several_is_refused_with_what_there_is(history: History, name: str):
    for hour, run in enumerate(("a1", "a2", "b1")):
        hold(history, run, at=f"2026-11-15T1{hour}:00:00")
    with pytest.raises(BadInput, match=r"there is no run|matches several runs in .*: (b1, )?a2, a1"):
        history.find_run(name)


def test_removing_a_run_removes_all_that_it_kept(history: History):
    hold(history, "a")
    hold(history, "b", at="2026-11-15T11:00:00")
    (history.run_folder("a") / "attachment.png").write_bytes(b"x")
    history.remove_run("a")
    assert [row.id for row in history.list_runs()] == ["b"]
    assert history.list_results("a") == []
    assert not history.run_folder("a").exists()
    assert history.run_folder("b").exists()


def test_gc_keeps_the_newest(history: History):
    for hour in range(5):
        hold(history, f"r{hour}", at=f"2026-11-15T1{hour}:00:00")
    assert history.remove_old_runs(2) == ["r2", "r1", "r0"]
    assert [row.id for row in history.list_runs()] == ["r4", "r3"]
    assert history.remove_old_runs(2) == []


def test_reindex_gives_what_the_runs_themselves_wrote(history: History):
    hold(history, "a")
    hold(history, "b", at="2026-11-15T11:00:00", end=False)
    before = (history.list_runs(), history.list_results("a"))
    assert history.rebuild() == 2
    assert (history.list_runs(), history.list_results("a")) == before


@pytest.mark.parametrize(
    "damage", [b"this is no database, it is a text of some length " * 30, b"SQLite format 3\0" * 90]
)
def test_a_damaged_index_is_an_error_that_names_reindex_as_the_repair(history: History, damage: bytes):
    hold(history, "a")
    rows = history.list_results("a")
    path = history.home / "history.sqlite"
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(damage)
    with pytest.raises(
        BadInput, match=r"history\.sqlite: cannot be used: .*; rebuild it from the runs with `viva runs reindex`"
    ):
        history.list_runs()
    history.rebuild()
    assert history.list_results("a") == rows


def test_an_index_of_a_newer_viva_is_left_alone(history: History):
    hold(history, "a")
    path = history.home / "history.sqlite"
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(BadInput, match="was written by a newer Viva"):
        history.find_run("a")
    assert path.read_bytes() == before
    assert history.rebuild() == 1
    assert history.find_run("a").id == "a"


def test_what_a_killed_run_had_not_yet_handed_to_the_index_comes_from_its_journal(history: History):
    """A run reaches the index at its end, or in large batches; the journal has each trial at once."""
    hold(history, "a", end=False)
    assert not (history.home / "history.sqlite").exists()
    assert [(row.case, row.status) for row in history.list_results("a")] == [("c0", "passed"), ("c1", "failed")]


def test_a_row_holds_what_a_comparison_needs(history: History):
    hold(history, "a")
    assert history.list_results("a")[0] == ResultRow(
        suite="s", case="c0", trial=1, status="passed", digest="d", turns=1, score=0.5, duration_ms=2.0
    )


def test_the_fields_of_a_row_are_the_columns_of_its_table(history: History):
    """Results are written and read by position."""
    hold(history, "a")
    columns = [name for _, name, *_ in history.query("PRAGMA table_info(results)")]
    assert columns == ["run", *(name.replace("case", "case_id") for name in ResultRow.__struct_fields__)]


def test_runs_are_ordered_by_number_not_by_clock(history: History):  # N39
    for number, (run, at) in enumerate(
        (("c", "2026-11-15T12:00"), ("a", "2026-11-15T09:00"), ("b", "1970-01-01T00:00"))
    ):
        hold(history, run, at=at, number=number + 1)
    hold(history, "old", at="2099-01-01T00:00")  # of a Viva that gave no numbers
    assert [row.id for row in history.list_runs()] == ["b", "a", "c", "old"]
    assert [history.find_run(f"latest~{back}").id for back in range(3)] == ["b", "a", "c"]
    history.rebuild()
    assert [row.id for row in history.list_runs()] == ["b", "a", "c", "old"]


def test_a_run_that_died_between_its_journal_and_the_index_is_found(history: History):  # N39
    hold(history, "a", number=1)
    for run, number, end in (("b", 2, False), ("c", 3, True)):
        journal = Journal(history.journal_path(run))
        journal.append(started(run, number=number), trial(0), *([RunEnded(run, "x", 0, summary())] if end else []))
        journal.close()
    Journal(history.journal_path("empty")).close()
    assert [(row.id, row.exit_code) for row in history.list_runs()] == [("c", 0), ("b", None), ("a", 1)]
    assert [row.case for row in history.list_results("b")] == ["c0"]
    journal = Journal(history.journal_path("b"))
    journal.append(trial(1), RunEnded("b", "x", 1, summary()))  # killed again, after its last line
    journal.close()
    assert history.find_run("b").exit_code == 1


def test_a_damaged_journal_does_not_hide_the_other_runs(history: History):
    hold(history, "a", number=1)
    journal = Journal(history.journal_path("b"))
    journal.append(started("b", number=2), trial(0))
    journal.close()
    with history.journal_path("b").open("ab") as file:
        file.write(b"\x00\n")
    assert [row.id for row in history.list_runs()] == ["b", "a"]


def test_runs_of_a_host_that_have_no_end_are_not_listed(history: History):
    journal = Journal(history.journal_path("hosted"))
    journal.append(structs.replace(started("hosted"), settings={HOSTED_KEY: True}), trial(0))
    journal.abandon()
    assert history.list_runs() == []
    assert history.pop_crashed_runs() == []
    again = Journal(history.journal_path("hosted"))
    again.append(RunEnded("hosted", "x", 0, summary()))
    again.close()
    assert [row.id for row in history.list_runs()] == ["hosted"]


def test_runs_that_were_cut_off_are_told_once_newest_first(history: History):
    for number, run in enumerate(("a", "b", "c"), 1):
        journal = Journal(history.journal_path(run))
        journal.append(started(run, number=number), *([RunEnded(run, "x", 0, summary())] if run == "b" else []))
        journal.abandon()
    assert history.pop_crashed_runs() == ["c", "a"]  # `b` had come to its end
    assert history.pop_crashed_runs() == []


def test_a_run_in_progress_is_not_removed(history: History):  # N39
    hold(history, "a", number=1)
    journal = Journal(history.journal_path("a"))
    with pytest.raises(BadInput, match=f"run a is in use by process {os.getpid()}"):
        history.remove_run("a")
    assert history.remove_old_runs(0) == []
    journal.close()
    assert history.remove_old_runs(0) == ["a"]


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[3]]
from test_index import hold
from viva.history.index import History
for number in range(8):
    hold(History(Path(sys.argv[1])), f"{sys.argv[2]}-{number}")
"""


def test_several_runs_at_once_do_not_harm_each_other(history: History):
    """Six processes begin with no index at all, and write 48 runs into it."""
    here = str(Path(__file__).parent)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(history.home), str(n), here], stderr=subprocess.PIPE)
        for n in range(6)
    ]
    message = [writer.communicate(timeout=300)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 6, message
    assert len(history.list_runs()) == 48
    assert all(len(history.list_results(row.id)) == 2 and row.exit_code == 1 for row in history.list_runs())
    with sqlite3.connect(history.home / "history.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_runs_can_be_listed_during_a_write(history: History):
    """A viewer that lists runs repeatedly neither waits for a writing run nor delays it."""
    hold(history, "r1")
    with history._open_transaction() as db:  # a write that takes its time
        db.execute("UPDATE runs SET agent = 'other'")
        assert [row.agent for row in history.list_runs()] == ["bot"]
    assert [row.agent for row in history.list_runs()] == ["other"]


def test_a_new_index_is_opened_by_several_at_once(tmp_path: Path) -> None:
    """SQLite says at once that the file is locked when several connections change a new file to write-ahead logging."""
    for number in range(60):
        history = History(tmp_path / str(number))
        hold(history, "run", end=False)
        (history.home / "history.sqlite").unlink(missing_ok=True)
        together = threading.Barrier(4)

        def list_runs(history: History, together: threading.Barrier) -> list[str]:
            together.wait()
            return [row.id for row in history.list_runs()]

        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(list_runs, history, together) for _ in range(4)]
            assert [call.result() for call in calls] == [["run"]] * 4


TAKE_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("refused")
"""


def test_opening_the_index_keeps_the_locks_of_this_process(tmp_path: Path) -> None:
    """Closing any file descriptor of an SQLite file releases the locks of all its connections in a process."""
    history = History(tmp_path)
    hold(history, "run")
    rows = history.iter_results("run")
    next(rows)  # a transaction is open
    assert [row.id for row in history.list_runs()] == ["run"]
    path = tmp_path / "history.sqlite"
    tmp_path.chmod(0o755)
    assert history.list_runs()  # closes the folder to others again
    taken = subprocess.run([sys.executable, "-c", TAKE_LOCK, path], capture_output=True, text=True, check=True)
    assert taken.stdout == "refused\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert next(rows)  # it was open all the time

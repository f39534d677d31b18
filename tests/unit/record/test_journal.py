"""The append-only log of a run."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from viva.errors import BadInput, RunStopped
from viva.model.event import Note, RunStarted, TrialEnded
from viva.model.record import TrialRecord
from viva.record.journal import Journal, has_run_ended, read_events, take_next_run_number
from viva.record.locks import find_lock_holder, get_lock_path, has_writer_crashed, is_journal_in_use


def ended(index: int, case_id: str = "", attempt: int = 1, name: str = "n") -> TrialEnded:
    record = TrialRecord(case_id or f"c{index}", name, "passed", [], [], 0, 1.0, "s", 1, attempt)
    return TrialEnded(record.key, index, 1, record)


def test_records_come_back_in_input_order_as_they_were_written(tmp_path: Path):
    journal = Journal(tmp_path / "a" / "b" / "journal.jsonl")
    for index in (3, 0, 2):
        journal.append(ended(index, name='odd "record": name'))
        journal.append(Note("between"))
    assert [record.id for record in journal.records()] == ["c0", "c2", "c3"]  # N19
    assert len(journal) == 3
    raw = [json.loads(raw) for raw in journal.iterate_raw_records()]
    assert raw[0]["name"] == 'odd "record": name'
    journal.close()
    lines = [json.loads(line) for line in (tmp_path / "a" / "b" / "journal.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["trial_ended", "note"] * 3


def test_a_line_is_on_its_way_as_soon_as_it_is_appended(tmp_path: Path):
    """Nothing is held back in a buffer: another reader sees it at once."""
    journal = Journal(tmp_path / "j")
    journal.append(ended(0))
    assert (tmp_path / "j").read_text().count("\n") == 1
    journal.close()


def test_a_later_attempt_takes_the_place_of_an_earlier_one(tmp_path: Path):
    journal = Journal(tmp_path / "j")
    journal.append(ended(0, attempt=1))
    journal.append(ended(0, attempt=2))
    assert [record.attempt for record in journal.records()] == [2]
    journal.close()


@pytest.mark.parametrize("torn", [b'{"event": "no', b"x", b"\x00" * 70_000])
def test_a_torn_tail_is_cut_before_anything_is_appended(tmp_path: Path, torn: bytes):
    path = tmp_path / "j"
    path.write_bytes(b'{"event":"note","text":"whole"}\n' + torn)
    journal = Journal(path)
    journal.append(ended(0))
    assert [record.id for record in journal.records()] == ["c0"]
    journal.close()
    assert [json.loads(line)["event"] for line in path.read_bytes().splitlines()] == ["note", "trial_ended"]


def test_a_file_that_is_nothing_but_torn_is_emptied(tmp_path: Path):
    path = tmp_path / "j"
    path.write_bytes(b"half a line")
    Journal(path).close()
    assert path.read_bytes() == b""


def test_a_place_that_takes_no_journal_stops_the_run(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunStopped, match="journal"):
        Journal(tmp_path / "file" / "journal.jsonl")


MANY_JOURNALS = """
import resource, sys
from pathlib import Path
from viva.model.event import Note
from viva.record.journal import Journal

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
for number in range(300):
    Journal(Path(sys.argv[1]) / str(number)).append(Note("x"))
"""


def test_an_unused_journal_is_closed(tmp_path: Path):
    """A program that starts many runs does not run out of files."""
    done = subprocess.run([sys.executable, "-c", MANY_JOURNALS, str(tmp_path)], check=False, timeout=300)
    assert done.returncode == 0


def test_an_invalid_line_is_reported_with_its_number(tmp_path: Path):
    (tmp_path / "j").write_bytes(b'{"event":"note","text":"x"}\n\x00\x00\n')
    with pytest.raises(RunStopped, match="line 2 cannot be read"):
        Journal(tmp_path / "j")


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from viva.errors import RunStopped
from viva.model.event import TrialEnded
from viva.model.record import TrialRecord
from viva.record.journal import Journal

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # files cannot grow beyond that, as on a disk that is full
journal = Journal(Path(sys.argv[1]))
try:
    for index in range(100):
        record = TrialRecord(f"c{index}", "n", "passed", [], [], 0, 1.0, "s", 1, 1)
        journal.append(TrialEnded(record.key, index, 1, record))
except RunStopped as stopped:
    print(stopped.reason)
print(*[record.id for record in journal.records()])
"""


def test_a_full_disk_stops_the_run_and_what_was_written_can_be_read(tmp_path: Path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "j")]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.splitlines()
    assert output[0].startswith(f"journal {tmp_path / 'j'}: ")
    lines = (tmp_path / "j").read_bytes()
    assert lines.endswith(b"\n")
    kept = [json.loads(line)["record"]["id"] for line in lines.splitlines()]
    assert kept == output[1].split() == [f"c{index}" for index in range(len(kept))]
    assert 0 < len(kept) < 20


def other_process(path: Path, then: str = "input()") -> subprocess.Popen[str]:
    """A process that has the journal open."""
    code = f"import os, pathlib, viva.record.journal as j; kept = j.Journal(pathlib.Path({str(path)!r})); print(flush=True); {then}"
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    return other


def test_a_journal_has_one_writer_until_that_ends_or_is_killed(tmp_path: Path):  # N39
    path = tmp_path / "run1" / "journal.jsonl"
    assert not is_journal_in_use(path)
    first = Journal(path)
    assert is_journal_in_use(path)
    with pytest.raises(BadInput, match=f"run run1 is in use by process {os.getpid()};"):
        Journal(path)
    first.append(ended(0))
    first.release_lock()
    assert not is_journal_in_use(path)
    assert [record.id for record in first.records()] == ["c0"]  # it can still be read
    with other_process(path) as other:
        assert is_journal_in_use(path)
        holder = find_lock_holder(path)
        assert holder is not None
        assert (holder.pid, holder.host, holder.is_alive()) == (other.pid, os.uname().nodename, True)
        with pytest.raises(BadInput, match=f"process {other.pid};"):
            Journal(path)
        other.kill()
        other.wait()
        assert not is_journal_in_use(path)
    Journal(path).close()
    first.close()


def test_readers_that_look_do_not_keep_a_writer_out(tmp_path: Path):  # N39
    """A reader that checks whether a run is in progress holds the lock for a moment."""
    path = tmp_path / "journal.jsonl"
    Journal(path).close()
    with get_lock_path(path).open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert not is_journal_in_use(path)  # readers do not take each other for a writer
        threading.Timer(0.03, fcntl.flock, (reader, fcntl.LOCK_UN)).start()
        Journal(path).close()


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path):  # N39
    """As a multiprocessing pool of a Python agent is."""
    path = tmp_path / "journal.jsonl"
    fork = "os.fork() or (print(os.getpid(), flush=True), input()); os._exit(0)"
    with other_process(path, fork) as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        other.wait()
        os.kill(child, 0)  # it lives on
        assert not is_journal_in_use(path)
        Journal(path).close()


def test_a_run_whose_process_died_is_noticed_once(tmp_path: Path):
    path = tmp_path / "journal.jsonl"
    assert not has_writer_crashed(path)
    Journal(path).close()
    assert not has_writer_crashed(path)
    with other_process(path, "os._exit(0)") as other:
        other.wait()
    assert has_writer_crashed(path)
    held = Journal(path)
    assert not has_writer_crashed(path)  # somebody goes on with it
    held.abandon()
    assert has_writer_crashed(path, acknowledge=True)
    assert not has_writer_crashed(path)


WITHOUT_LOCKS = """
import errno, fcntl, os, sys
from pathlib import Path

def no_locks(_file, _operation):
    raise OSError(errno.ENOLCK, "No locks available")

fcntl.flock = no_locks

from viva.errors import BadInput
from viva.record.journal import Journal, take_next_run_number
from viva.record.locks import is_journal_in_use, get_lock_path

path = Path(sys.argv[1])
first = Journal(path)
assert is_journal_in_use(path)
try:
    Journal(path)
except BadInput as refused:
    assert f"process {os.getpid()};" in str(refused)
else:
    raise AssertionError
first.close()
assert not is_journal_in_use(path)
for gone in (f"{os.getpid()} 1 {os.uname().nodename}", f"4194999 0 {os.uname().nodename}", "rubbish", ""):
    get_lock_path(path).write_text(gone)
    assert not is_journal_in_use(path)
    Journal(path).close()
assert [take_next_run_number(path.parent), take_next_run_number(path.parent)] == [1, 2]
"""


def test_without_locks_the_name_in_the_file_has_to_do(tmp_path: Path):  # N39
    """Some network file systems have none. A process that is gone, or another of the same number, does not count."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCKS, str(tmp_path / "journal.jsonl")], check=False, timeout=300
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((), None),
        ((b'{"event":"run_st',), None),
        ((b'{"event":"run_started"}\n',), False),
        ((b'{"event":"run_started"}\n', b'{"event":"run_ended"}\n'), True),
        ((b'{"event":"run_started"}\n', b'{"event":"run_ended"}\n', b'{"event":"note","text":"x"}\n'), True),
        ((b'{"event":"run_started"}\n', b'{"event":"note","text":"x"}\n', b'{"event":"run_ended"'), False),
        ((b'{"event":"run_started"}\n', b'{"event":"run_ended"}\n', b'{"event":"run_resumed"}\n'), False),
        ((b'{"event":"run_started"}\n', b'{"event":"trial_ended","x":"' + b"x" * 200_000 + b'"}\n'), False),
    ],
)
def test_whether_a_run_has_ended_stands_at_the_end_of_its_journal(tmp_path: Path, lines: tuple[bytes, ...], found: Any):
    path = tmp_path / "j"
    path.write_bytes(b"".join(lines))
    assert has_run_ended(path) is found


@pytest.mark.parametrize(("version", "age"), [(b"", "an older"), (b',"journal_version":99', "a newer")])
def test_a_journal_of_another_version_is_refused_in_one_sentence(tmp_path: Path, version: bytes, age: str):
    path = tmp_path / "j"
    path.write_bytes(b'{"event":"run_started","run":"r"' + version + b"}\n")
    with pytest.raises(BadInput) as refused:
        list(read_events(path))
    (problem,) = refused.value.problems
    assert (problem.file, problem.message.split(",")[0]) == (str(path), f"was written by {age} Viva")
    journal = Journal(tmp_path / "new" / "j")
    journal.append(RunStarted("r", "t", "1", "bot", (), 1, 1, 1))
    journal.close()
    assert len(list(read_events(tmp_path / "new" / "j"))) == 1


def test_run_numbers_increase_after_lost_files(tmp_path: Path):  # N39
    assert [take_next_run_number(tmp_path) for _ in range(3)] == [1, 2, 3]
    started = RunStarted("r", "t", "1", "bot", (), 1, 1, 1, number=7)
    journal = Journal(tmp_path / "runs" / "r" / "journal.jsonl")
    journal.append(started)
    journal.close()
    (tmp_path / "sequence").unlink()
    assert take_next_run_number(tmp_path) == 8
    for damage in (b"", b"x" * 21, b"\x00" * 21):
        (tmp_path / "sequence").write_bytes(damage)
        assert take_next_run_number(tmp_path) == 8


def test_no_number_is_given_twice(tmp_path: Path):  # N39
    code = "import sys, pathlib; from viva.record.journal import take_next_run_number; input()\n"
    code += "print(*[take_next_run_number(pathlib.Path(sys.argv[1])) for _ in range(50)])"
    at_once = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    given = [each.communicate(b"\n", timeout=300)[0].split() for each in at_once]
    assert sorted(int(number) for some in given for number in some) == list(range(1, 201))

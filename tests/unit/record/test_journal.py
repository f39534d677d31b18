"""The append-only log of a run."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from viva.errors import RunStopped
from viva.model.event import Note, TrialEnded
from viva.model.record import TrialRecord
from viva.record.journal import Journal, in_use


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
    raw = [json.loads(raw) for raw in journal.raw_records()]
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


def test_a_journal_that_nobody_needs_is_closed(tmp_path: Path):
    """A program that starts many runs does not run out of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        for number in range(300):
            Journal(tmp_path / str(number)).append(Note("x"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_line_that_is_no_event_is_said_with_its_number(tmp_path: Path):
    (tmp_path / "j").write_bytes(b'{"event":"note","text":"x"}\n\x00\x00\n')
    with pytest.raises(RunStopped, match="line 2 cannot be read"):
        Journal(tmp_path / "j")


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files cannot grow beyond 1,000 bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_stops_the_run_and_what_was_written_can_be_read(tmp_path: Path):
    journal = Journal(tmp_path / "j")
    with pytest.raises(RunStopped, match=f"journal {tmp_path / 'j'}: "):
        any(journal.append(ended(index)) for index in range(100))
    assert 0 < len(journal) < 20
    assert [record.id for record in journal.records()] == [f"c{index}" for index in range(len(journal))]
    journal.close()
    lines = (tmp_path / "j").read_bytes()
    assert lines.endswith(b"\n")
    assert [json.loads(line)["event"] for line in lines.splitlines()] == ["trial_ended"] * lines.count(b"\n")


def test_a_journal_is_in_use_as_long_as_somebody_holds_it(tmp_path: Path):
    """Also where its holder was killed: the lock ends with the process."""
    path = tmp_path / "journal.jsonl"
    assert not in_use(path)
    first, second = Journal(path), Journal(path)
    assert in_use(path)
    first.close()
    assert in_use(path)
    second.close()
    assert not in_use(path)
    code = f"import pathlib, viva.record.journal as j; kept = j.Journal(pathlib.Path({str(path)!r})); print(); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert in_use(path)
        other.kill()
        other.wait()
        assert not in_use(path)

"""Files of Viva are readable by their owner only, with any umask, also those that an older Viva made readable for all."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from viva.history.index import History
from viva.model import codec
from viva.model.event import Note, RunStarted
from viva.record.atomic_files import replace_file
from viva.record.cassette import CASSETTE_VERSION, CassetteHeader, CassetteRecorder, read_cassette, rewrite_cassette
from viva.record.journal import Journal
from viva.record.private_files import make_private_folder
from viva.record.redaction import Redactor


@pytest.fixture(params=[0o022, 0o000])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(top: Path) -> dict[str, int]:
    found = {".": top} | {str(path.relative_to(top)): path for path in top.rglob("*") if not path.is_symlink()}
    return {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}


def assert_private(top: Path) -> None:
    for name, mode in modes(top).items():
        assert not mode & 0o077, (name, oct(mode))


@pytest.mark.usefixtures("_umask")
def test_a_run_and_the_index_are_private(tmp_path: Path):
    home = tmp_path / ".viva"
    started = RunStarted("r1", "2026-01-01", "1", "bot", (), 1, 1, 1)
    journal = Journal(home / "runs" / "r1" / "journal.jsonl")
    journal.append(started)
    history = History(home)
    with history._open_transaction() as db:  # pyright: ignore[reportPrivateUsage] -- while -wal and -shm are there
        db.execute("CREATE TABLE t (x)")
        assert {"history.sqlite", "history.sqlite-wal", "history.sqlite-shm"} <= {path.name for path in home.iterdir()}
        assert_private(home)
    assert modes(home)["runs/r1/journal.jsonl"] == 0o600
    assert modes(home)["runs"] == 0o700
    assert stat.S_IMODE(tmp_path.stat().st_mode) & 0o700  # what is above belongs to the user
    journal.close()


@pytest.mark.usefixtures("_umask")
def test_what_an_older_viva_left_open_is_closed_when_it_is_opened(tmp_path: Path):
    home = tmp_path / ".viva"
    old = home / "runs" / "old" / "journal.jsonl"
    old.parent.mkdir(parents=True)
    old.write_bytes(codec.encode(Note("x")) + b"\n")
    outside = tmp_path / "outside"
    outside.write_text("mine")
    outside.chmod(0o644)
    (home / "link").symlink_to(outside)
    for path in (home, home / "runs", old.parent):
        path.chmod(0o755)
    old.chmod(0o644)
    make_private_folder(home)
    assert_private(home)
    assert old.read_bytes()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644  # a link leads elsewhere: that is not ours


def test_a_program_in_it_stays_one(tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    (home / "run.sh").write_text("#!/bin/sh")
    (home / "run.sh").chmod(0o755)
    make_private_folder(home)
    assert modes(home) == {".": 0o700, "run.sh": 0o700}


@pytest.mark.usefixtures("_umask")
def test_a_cassette_is_private_wherever_it_is(tmp_path: Path):
    path = tmp_path / "chat.cassette"
    path.write_text('{"line":"cassette","an":"old one"}')
    path.chmod(0o644)
    recorder = CassetteRecorder(path, "1.0", Redactor())
    recorder.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    rewrite_cassette(path, [CassetteHeader(CASSETTE_VERSION, "1.0")])
    assert list(read_cassette(path)) == [CassetteHeader(CASSETTE_VERSION, "1.0")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.usefixtures("_umask")
def test_a_private_file_is_written_whole(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"longer than before")
    replace_file(path, b"new", private=True)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)

"""Files are replaced whole, and grow by whole pieces."""

import os
import stat
from pathlib import Path

import pytest

from viva.record.atomic_files import append_atomically, open_replacement, replace_file, truncate_partial_line


def test_a_new_file_takes_the_place_of_the_old_one_with_its_mode(tmp_path: Path):
    path = tmp_path / "file"
    replace_file(path, b"one")
    assert path.read_bytes() == b"one"
    path.chmod(0o600)
    with path.open("rb") as reader:
        replace_file(path, b"two", durable=True)
        assert reader.read() == b"one"
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_the_mode_of_a_new_file_is_what_the_process_gives(tmp_path: Path):
    (tmp_path / "as usual").write_bytes(b"")
    replace_file(tmp_path / "new", b"")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "as usual").stat().st_mode


def test_a_writer_that_breaks_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def half_written() -> None:
        with open_replacement(path) as out:
            out.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        half_written()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_stays_a_link_and_what_is_not_a_file_is_not_replaced(tmp_path: Path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    replace_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match="is not a regular file"):
            replace_file(tmp_path / name, b"new")


def test_what_cannot_be_appended_whole_is_not_appended(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"one\n")
    file = os.open(path, os.O_RDWR | os.O_APPEND)
    append_atomically(file, b"two\n", 4)
    os.close(file)
    assert path.read_bytes() == b"one\ntwo\n"
    reading = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        append_atomically(reading, b"three\n", 8)
    os.close(reading)
    assert path.read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("text", "left"), [(b"", 0), (b"torn", 0), (b"a\n", 2), (b"a\ntorn", 2), (b"a\n" + b"x" * 200_000, 2)]
)
def test_a_torn_tail_is_cut(tmp_path: Path, text: bytes, left: int):
    path = tmp_path / "file"
    path.write_bytes(text)
    file = os.open(path, os.O_RDWR)
    assert truncate_partial_line(file) == left
    os.close(file)
    assert path.read_bytes() == text[:left]

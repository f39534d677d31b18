"""Files of an agent's making: opened only if they are what they seem to be."""

import os
from pathlib import Path

import pytest

from trial_workspaces import put
from viva.workspace.safe_open import open_regular_file


def test_an_ordinary_file_is_read_and_written_with_its_folders(tmp_path: Path):
    path = tmp_path / "a/b/ü.txt"
    os.close(open_regular_file(str(path), os.O_WRONLY | os.O_CREAT, make_folders=True))
    assert path.read_bytes() == b""
    with pytest.raises(FileNotFoundError):
        open_regular_file(str(tmp_path / "gone/x"))
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("name", ["file-link", "folder-link/x", "pipe", "folder", "no\0name", "", "x" * 300])
def test_nothing_else_is_opened_nor_waited_for(name: str, tmp_path: Path):
    put(tmp_path, "real/x", "kept")
    (tmp_path / "file-link").symlink_to("real/x")
    (tmp_path / "folder-link").symlink_to("real")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        with pytest.raises(OSError, match=r"^\[Errno \d+\]"):
            open_regular_file(f"{tmp_path}/{name}", flags, make_folders=True)
    assert (tmp_path / "real/x").read_text() == "kept"

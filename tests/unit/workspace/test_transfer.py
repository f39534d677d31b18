"""Workspaces that travel between machines. What an agent put into one is not trusted."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from viva.workspace.folders import find_kept_workspaces, remove_kept_workspace
from viva.workspace.transfer import WorkspaceTooLarge, pack_workspace, unpack_workspace


def test_files_folders_and_inner_links_travel(tmp_path: Path) -> None:
    (tmp_path / "deep" / "empty").mkdir(parents=True)
    (tmp_path / "deep" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "deep" / "run.sh").chmod(0o4755)
    os.symlink("deep/run.sh", tmp_path / "inner")
    os.symlink("/etc/passwd", tmp_path / "absolute")
    os.symlink("../../etc/passwd", tmp_path / "deep" / "relative")
    os.mkfifo(tmp_path / "pipe")
    archive, left_out = pack_workspace(str(tmp_path))
    assert left_out == 3
    path = unpack_workspace(archive, "case/one")
    try:
        assert path in find_kept_workspaces()
        names = sorted(str(each.relative_to(path)) for each in Path(path).rglob("*"))
        assert names == ["deep", "deep/empty", "deep/run.sh", "inner"]
        assert (Path(path) / "inner").read_text() == "#!/bin/sh\n"
        assert (Path(path) / "deep" / "run.sh").stat().st_mode & 0o7777 == 0o755
    finally:
        assert remove_kept_workspace(path)


@pytest.mark.parametrize("damage", ["half", "no end", "other bytes", "other sum"])
def test_a_damaged_archive_is_an_error_of_the_machine(tmp_path: Path, damage: str) -> None:  # 12.9
    (tmp_path / "file").write_bytes(os.urandom(50_000))
    whole, _ = pack_workspace(str(tmp_path))
    damaged = {
        "half": whole[: len(whole) // 2],
        "no end": whole[:-4],
        "other bytes": whole[:5000] + bytes(100) + whole[5100:],
        "other sum": whole[:-8] + bytes(8),
    }[damage]
    before = find_kept_workspaces()
    with pytest.raises(OSError, match="cannot be unpacked"):
        unpack_workspace(damaged, "case")
    assert find_kept_workspaces() == before


def test_an_archive_is_not_unpacked_beyond_the_limit(shorten: Callable[[str, float], None]) -> None:  # 12.9
    """300,000 headers fit into a megabyte, and would take hundreds in memory."""
    shorten("viva.workspace.transfer._MAX_TAR_BYTES", 100_000)
    out = io.BytesIO()
    with gzip.open(out, "wb") as packed:
        packed.write(b"x" * 200_000)  # would be an error if it was read
    with pytest.raises(WorkspaceTooLarge):
        unpack_workspace(out.getvalue(), "case")


@pytest.mark.parametrize(("name", "value"), [("MAX_BYTES", 10), ("MAX_ENTRIES", 1)])
def test_a_large_workspace_does_not_travel(
    tmp_path: Path, shorten: Callable[[str, float], None], name: str, value: int
) -> None:
    for number in range(2):
        (tmp_path / str(number)).write_bytes(b"x" * 8)
    archive, _ = pack_workspace(str(tmp_path))
    shorten(f"viva.workspace.transfer.{name}", value)
    with pytest.raises(WorkspaceTooLarge):
        pack_workspace(str(tmp_path))
    before = find_kept_workspaces()
    with pytest.raises(WorkspaceTooLarge):
        unpack_workspace(archive, "case")
    assert find_kept_workspaces() == before


def test_an_archive_cannot_write_outside_of_its_folder() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in ("../outside", "/tmp/outside", "inside"):
            info = tarfile.TarInfo(name)
            info.size = 2
            archive.addfile(info, io.BytesIO(b"no"))
        link = tarfile.TarInfo("up")
        link.type, link.linkname = tarfile.SYMTYPE, ".."
        archive.addfile(link)
    path = unpack_workspace(out.getvalue(), "case")
    try:
        written = sorted(str(each.relative_to(path)) for each in Path(path).rglob("*"))
        assert written == ["inside", "tmp", "tmp/outside"]
    finally:
        remove_kept_workspace(path)
    with pytest.raises(OSError, match="cannot be unpacked"):
        unpack_workspace(b"no archive", "case")

"""What differs between two moments of a folder, in words that people and judges can read."""

import os
import socket
from pathlib import Path

import pytest

from trial_workspaces import put, tree
from viva.model.turn import FileChange, RecordedFile
from viva.workspace import snapshot
from viva.workspace.snapshot import (
    EMPTY_SNAPSHOT,
    ContentStore,
    FolderSnapshot,
    parse_display_path,
    take_snapshot,
    to_display_path,
)


class Scene:
    """A folder, and what changed in it since it was last looked at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts = ContentStore()
        self.mark = EMPTY_SNAPSHOT
        self.look()

    def look(self) -> FolderSnapshot:
        self.mark = take_snapshot(str(self.root), self.texts, self.mark)
        return self.mark

    def changes(self) -> list[FileChange]:
        before = self.mark
        return list(snapshot.list_file_changes(before, self.look(), self.texts))

    def one(self) -> FileChange:
        (change,) = self.changes()
        return change


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    root = tmp_path / "root"
    root.mkdir()
    return Scene(root)


def test_added_changed_and_removed_files_with_their_lines(scene: Scene):
    """P4."""
    put(scene.root, "a.txt", "one\ntwo\nthree\n")
    assert scene.one() == FileChange("a.txt", "added", "@@ -0,0 +1,3 @@\n+one\n+two\n+three")
    put(scene.root, "a.txt", "one\n2\nthree\n")
    assert scene.one() == FileChange("a.txt", "changed", "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three")
    (scene.root / "a.txt").unlink()
    assert scene.one() == FileChange("a.txt", "removed", "@@ -1,3 +0,0 @@\n-one\n-2\n-three")
    assert scene.changes() == []


def test_a_file_of_the_same_size_written_at_once_again_has_changed(scene: Scene):
    """The clock of a file system may not have ticked in between."""
    for text in ("aaaa", "bbbb", "cccc", "dddd"):
        put(scene.root, "a", text)
        assert scene.one().path == "a"


def test_a_file_that_was_only_touched_has_not_changed(scene: Scene):
    path = put(scene.root, "a", "x")
    scene.look()
    os.utime(path, (1, 1))
    assert scene.changes() == []
    put(scene.root, "b", path.read_bytes()).replace(path)
    assert scene.changes() == []


def test_what_becomes_executable_has_changed(scene: Scene):
    path = put(scene.root, "run", "x")
    scene.look()
    path.chmod(0o755)
    assert scene.one() == FileChange("run", "changed", "now executable")
    path.chmod(0o644)
    assert scene.one() == FileChange("run", "changed", "no longer executable")


def test_binary_and_large_files_are_named_as_such(scene: Scene):
    put(scene.root, "b", b"\0\1\2")
    assert scene.one().diff == "binary file of 3 bytes"
    put(scene.root, "b", b"\0\1\2\3")
    assert scene.one().diff == "binary file of 3 bytes → binary file of 4 bytes"
    put(scene.root, "l", b"x" * 300_000)
    assert scene.one().diff == "large file of 300,000 bytes"


def test_a_large_file_of_which_one_byte_changes_has_changed(scene: Scene):
    path = put(scene.root, "l", b"x" * 300_000)
    os.utime(path, (1, 1))
    scene.look()
    put(scene.root, "l", b"x" * 299_999 + b"y")
    assert scene.one().change == "changed"


def test_long_differences_are_cut_and_many_are_counted(scene: Scene):
    put(scene.root, "long", "".join(f"line {n}\n" for n in range(3000)))
    diff = scene.one().diff
    assert diff is not None
    assert len(diff) < 9000
    assert diff.endswith("characters in all)")
    for n in range(600):
        put(scene.root, f"many/{n:03}", str(n))
    found = scene.changes()
    assert len(found) == 501
    assert found[-1] == FileChange("(100 more files)", "changed")
    put(scene.root, "long", "".join(f"other {n}\n" for n in range(3000)))
    assert scene.one().diff == "3,000 lines → 3,000 lines"


def test_together_differences_have_room_for_so_much_and_no_more(scene: Scene):
    for n in range(40):
        put(scene.root, f"{n:02}", "x" * 7000)
    message = [change.diff or "" for change in scene.changes()]
    assert sum(map(len, message)) < 110_000
    assert message[-1] == "not shown: the limit for diffs is reached"


def test_texts_beyond_the_room_in_memory_are_reported_without_lines(tmp_path: Path):
    put(tmp_path, "a", "x" * 50)
    texts = ContentStore(max_bytes=60)
    before = take_snapshot(str(tmp_path), texts)
    put(tmp_path, "a", "y" * 50)
    (change,) = snapshot.list_file_changes(before, take_snapshot(str(tmp_path), texts, before), texts)
    assert change.diff == "file of 50 bytes → file of 50 bytes"


def test_links_are_not_followed(scene: Scene, tmp_path: Path):
    put(tmp_path, "outside/x.txt")
    (scene.root / "away").symlink_to(tmp_path / "outside")
    assert scene.one() == FileChange("away", "added", f"a link to {tmp_path}/outside")
    put(tmp_path, "outside/y.txt")
    assert scene.changes() == []
    (scene.root / "away").unlink()
    put(scene.root, "away", "file")
    assert scene.one().diff == f"a link to {tmp_path}/outside → file of 4 bytes"


def test_pipes_and_sockets_are_never_opened(scene: Scene):
    os.mkfifo(scene.root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(scene.root)  # the path of a socket is short
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
    assert [(change.path, change.diff) for change in scene.changes()] == [
        ("pipe", "a socket, pipe or device"),
        ("socket", "a socket, pipe or device"),
    ]
    before = scene.mark
    assert snapshot.collect_recorded_files(EMPTY_SNAPSHOT, before, 1000, lambda path: f"{scene.root}/{path}") == ()


def test_a_folder_that_is_deleted_has_lost_all_its_files(scene: Scene):
    put(scene.root, "a/b", "x")
    scene.look()
    (scene.root / "a/b").unlink()
    (scene.root / "a").rmdir()
    scene.root.rmdir()
    assert [(change.path, change.change) for change in scene.changes()] == [("a/b", "removed")]


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a\\xff", b"back\\slash", b"\\\\\xff\\x41", "ü".encode(), b"\x80\\"])
def test_names_that_are_not_text_can_be_shown_and_parsed(raw: bytes, scene: Scene):
    name = os.fsdecode(raw)
    put(scene.root, name, "x")
    shown = scene.one().path
    assert shown.encode()
    assert parse_display_path(shown) == name
    assert to_display_path(parse_display_path(shown)) == shown


def test_ordinary_names_are_reported_as_they_are():
    assert to_display_path("a/größe x.txt") == "a/größe x.txt"


def images(scene: Scene, before: FolderSnapshot) -> tuple[RecordedFile, ...]:
    return snapshot.collect_recorded_files(before, scene.mark, 10_000, lambda path: f"{scene.root}/{path}")


def test_whole_files_can_be_put_elsewhere(scene: Scene, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    for name in ("stays", "goes", "folder/goes", "was-file", "was-folder/x"):
        put(scene.root, name, name)
    before = scene.mark
    scene.look()
    snapshot.restore_files(str(other), images(scene, before))
    assert tree(other) == tree(scene.root)

    for name in ("goes", "folder/goes", "was-file", "was-folder/x"):
        (scene.root / name).unlink()
    (scene.root / "folder").rmdir()
    (scene.root / "was-folder").rmdir()
    put(scene.root, "was-file/y", "now a folder")
    put(scene.root, "was-folder", "now a file")
    (scene.root / "empty").mkdir()
    (scene.root / "was-file/link").symlink_to("../stays")
    put(scene.root, "run", "#!").chmod(0o755)
    before = scene.mark
    scene.look()
    snapshot.restore_files(str(other), images(scene, before))
    assert tree(other) == tree(scene.root)
    assert os.access(other / "run", os.X_OK)


def test_too_much_for_a_cassette_is_refused_as_a_whole(scene: Scene):
    put(scene.root, "a", "x" * 20_000)
    before = scene.mark
    scene.look()
    with pytest.raises(snapshot.RecordedFilesTooLarge) as refused:
        images(scene, before)
    assert refused.value.size == 20_000


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", ".."])
def test_nothing_is_put_outside(path: str, tmp_path: Path):
    with pytest.raises(ValueError, match="outside the workspace"):
        snapshot.restore_files(str(tmp_path), [RecordedFile(path, b"x")])
    with pytest.raises(ValueError, match="outside the workspace"):
        snapshot.restore_files(str(tmp_path), [RecordedFile(path)])


def test_nothing_is_put_or_removed_through_a_link(tmp_path: Path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    put(outside, "kept", "x")
    (root / "away").symlink_to(outside)
    snapshot.restore_files(str(root), [RecordedFile("away/kept")])
    assert (outside / "kept").read_text() == "x"
    snapshot.restore_files(str(root), [RecordedFile("away/kept", b"replayed")])
    assert (outside / "kept").read_text() == "x"
    assert (root / "away/kept").read_bytes() == b"replayed"


def test_too_many_files_are_not_watched_and_reported(tmp_path: Path):
    many = FolderSnapshot({}, is_complete=False)
    (change,) = snapshot.list_file_changes(many, many, ContentStore())
    assert "too many to watch" in change.path

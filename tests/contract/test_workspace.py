"""What every workspace has to do, whatever is put there first: copied, empty, linked, in place, or replayed."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from trial_workspaces import folders, git, put, tree
from viva.model.case import Key, WorkspaceSpec
from viva.model.turn import RecordedFile
from viva.protocols import Workspace, WorkspaceFactory

KINDS = ["copy", "copy without git", "empty", "symlink", "linked copy", "cwd", "replayed symlink", "replayed cwd"]
Use = Callable[[Workspace], Awaitable[Any]]


class Room:
    """A way to make workspaces, and what a case wants there."""

    def __init__(self, top: Path, kind: str) -> None:
        self.host = top / "host ü"
        for name in ("linked/a.txt", "linked/deep/b.txt"):
            put(self.host, name, f"{name}\n")
        if kind == "copy":
            git(self.host, "init")
        in_place = kind.endswith("cwd")
        spec_kind = "cwd" if in_place else "copy" if kind.startswith("copy") else "empty"
        links = ("linked",) if kind.endswith(("symlink", "linked copy")) else ()
        mode = "copy" if kind == "linked copy" else "symlink"
        self.spec = WorkspaceSpec(spec_kind, str(self.host), links, mode, env={"CASE": "x"})
        self.make: WorkspaceFactory = folders(top / "base ü", is_replay=kind.startswith("replayed"))
        self.base = top / "base ü"

    def use(self, use: Use) -> Any:
        async def scenario() -> Any:
            async with self.make(self.spec, Key("suite", "case")) as workspace:
                return await use(workspace)

        return asyncio.run(scenario())


@pytest.fixture(params=KINDS)
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Room:
    return Room(tmp_path, request.param)


def test_it_is_a_folder_with_a_home_apart_and_the_cases_environment(room: Room):
    async def use(workspace: Workspace) -> None:
        assert os.path.isdir(workspace.path)
        assert os.path.isdir(workspace.home)
        assert not workspace.home.startswith(f"{workspace.path}/")
        assert os.listdir(workspace.home) == []
        assert os.listdir(workspace.tmp) == []  # P10
        assert os.path.dirname(workspace.tmp) == os.path.dirname(workspace.home)
        assert dict(workspace.env) == {"CASE": "x"}
        assert workspace.sandbox_command(["run", "it"]) == ["run", "it"]

    room.use(use)


def test_nothing_of_it_is_left_unless_it_is_the_users_own(room: Room):
    async def use(workspace: Workspace) -> None:
        put(workspace.path, "made.txt")
        put(workspace.home, "made.txt")

    room.use(use)
    assert list(room.base.iterdir()) == []


def test_what_is_kept_can_be_looked_at(room: Room):
    async def use(workspace: Workspace) -> str:
        put(workspace.path, "made.txt", "x")
        workspace.keep()
        assert workspace.is_kept
        return workspace.path

    assert (Path(room.use(use)) / "made.txt").read_text() == "x"


def test_a_turn_that_does_nothing_changes_nothing(room: Room):
    async def use(workspace: Workspace) -> None:
        mark = await workspace.take_snapshot()
        assert await workspace.changes_since(mark) == ()
        assert await workspace.files_since(mark) == ()
        assert await workspace.warnings() == []

    room.use(use)


def test_changes_of_a_turn_are_told_and_kept_and_can_be_put_into_another(room: Room, tmp_path: Path):
    """Cassettes: a new workspace gets the same files and the same changes."""

    async def act(workspace: Workspace) -> tuple[Any, Any, Any]:
        mark = await workspace.take_snapshot()
        place = Path(workspace.path)
        put(place, "new/größe.txt", "a\nb\n")
        put(place, os.fsdecode(b"odd-\xff"), b"\0")
        (place / "link").symlink_to("new/größe.txt")
        (place / "empty").mkdir()
        if (place / "linked").is_dir():
            put(place, "linked/a.txt", "changed\n")
            (place / "linked/deep/b.txt").unlink()
        return await workspace.changes_since(mark), await workspace.files_since(mark), tree(place)

    shutil.copytree(room.host, tmp_path / "before")
    changes, images, files = room.use(act)
    shutil.rmtree(room.host)
    shutil.copytree(tmp_path / "before", room.host)  # in place, or through a link, the host has changed
    paths = {change.path: change.change for change in changes}
    assert paths.items() >= {"new/größe.txt": "added", "odd-\\xff": "added", "link": "added"}.items()
    assert ("linked/a.txt" in paths) == ("linked/deep/b.txt" in paths)
    assert next(change.diff for change in changes if change.path == "new/größe.txt") == "@@ -0,0 +1,2 @@\n+a\n+b"

    async def replay(workspace: Workspace) -> tuple[Any, Any]:
        mark = await workspace.take_snapshot()
        await workspace.restore_files(images)
        return await workspace.changes_since(mark), tree(workspace.path)

    replaying = Room(tmp_path / "again", "empty")
    replaying.host, replaying.spec = room.host, room.spec
    replaying.make = folders(replaying.base, is_replay=True)
    again, files_again = replaying.use(replay)
    assert again == changes
    if "linked" not in room.spec.link_paths:
        assert {name: held for name, held in files.items() if ".git" not in name} == files_again


def test_a_path_that_leaves_it_is_nowhere(room: Room):
    async def use(workspace: Workspace) -> None:
        place = Path(workspace.path)
        put(place, "a.txt")
        (place / "away").symlink_to("/etc")
        assert workspace.resolve_inside("a.txt") == str(place / "a.txt")
        assert workspace.resolve_inside("not/there") == str(place / "not/there")
        for path in ("away/passwd", "..", "../home", "/etc/passwd", "a/../../home"):
            assert workspace.resolve_inside(path) is None

    room.use(use)


def test_a_workspace_that_is_deleted_is_empty_and_can_be_filled_again(room: Room):
    if room.spec.kind == "cwd" and room.use(_path) == str(room.host):
        return  # the user's own folder is not deleted for a test

    async def use(workspace: Workspace) -> None:
        put(workspace.path, "a.txt", "x")
        mark = await workspace.take_snapshot()
        shutil.rmtree(workspace.path)
        gone = {change.path: change.change for change in await workspace.changes_since(mark)}
        assert gone["a.txt"] == "removed"
        assert workspace.resolve_inside("a.txt") == f"{workspace.path}/a.txt"
        await workspace.restore_files([RecordedFile("back/b.txt", b"y")])
        assert (Path(workspace.path) / "back/b.txt").read_bytes() == b"y"

    room.use(use)


async def _path(workspace: Workspace) -> str:
    return workspace.path

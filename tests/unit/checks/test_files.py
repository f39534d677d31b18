"""file_exists, file_contains."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from trial_workspaces import folders, put
from viva.checks.files import FileContains, FileExists
from viva.model.case import Key, WorkspaceSpec
from viva.model.turn import Verdict
from viva.testing.check_context import make_check_context
from viva.workspace.folders import TrialWorkspace


class FileBench:
    """A workspace with a link of the case, in which checks are evaluated."""

    def __init__(self, bench: Any, top: Path) -> None:
        self.bench = bench
        self.host = top / "host"
        put(self.host, "linked/a.txt", "linked text")
        self.top = top

    def evaluate(self, prepare: Any, *definition: dict[str, Any]) -> list[Verdict]:
        """The verdicts after `prepare` changed the workspace."""

        async def scenario() -> list[Verdict]:
            spec = WorkspaceSpec("empty", str(self.host), ("linked",))
            async with folders(self.top / "base")(spec, Key("s", "c")) as folder:
                prepare(folder)
                context = make_check_context("done")
                context.state.workspace = folder
                return [await self.bench.evaluate_async(each, context) for each in definition]

        return asyncio.run(scenario())

    def one(self, prepare: Any, **definition: Any) -> Verdict:
        return self.evaluate(prepare, definition)[0]


@pytest.fixture
def files(bench: Any, tmp_path: Path) -> FileBench:
    return FileBench(bench, tmp_path)


def exists(path: str) -> dict[str, Any]:
    return {"type": "file_exists", "path": path}


def holds(path: str, value: str, *more: str) -> dict[str, Any]:
    return {"type": "file_contains", "path": path, "value": [value, *more] if more else value}


def test_files_and_folders_of_the_workspace_and_its_links_exist(files: FileBench):
    """N25, P9."""

    def prepare(folder: TrialWorkspace) -> None:
        put(folder.path, "a/größe eins.txt")

    present = ["a/größe eins.txt", "./a/größe eins.txt", "a", "a/", "linked/a.txt", "linked"]
    absent = ["b", "a/b.txt", "linked/b.txt", "a/größe eins.txt/"]
    verdicts = files.evaluate(prepare, *map(exists, present + absent))
    assert [verdict.status for verdict in verdicts] == ["passed"] * 6 + ["failed"] * 4


def test_a_missing_file_suggests_similar_names(files: FileBench):
    def prepare(folder: TrialWorkspace) -> None:
        put(folder.path, "out/report.txt")

    near, far = files.evaluate(prepare, exists("out/reprot.txt"), holds("in/report.txt", "x"))
    assert near.reason == '"out/reprot.txt" is not there; there is "report.txt"'
    assert far.reason == '"in/report.txt" is not there; its folder does not exist either'


def test_a_link_out_of_the_workspace_is_not_followed(files: FileBench):
    """P9: also not from within what the case itself has linked."""
    put(files.top, "elsewhere/secret.txt", "secret")

    def prepare(folder: TrialWorkspace) -> None:
        (Path(folder.path) / "away").symlink_to(files.top / "elsewhere")
        (files.host / "linked/away").symlink_to(files.top / "elsewhere")
        (Path(folder.path) / "near").symlink_to("linked/a.txt")
        (Path(folder.path) / "broken").symlink_to("nowhere")

    verdicts = files.evaluate(
        prepare,
        exists("away/secret.txt"),
        holds("away/secret.txt", "secret"),
        holds("linked/away/secret.txt", "secret"),
        exists("broken"),
        holds("near", "linked text"),
    )
    assert [verdict.status for verdict in verdicts] == ["failed"] * 4 + ["passed"]
    assert verdicts[0].reason == '"away/secret.txt" leads out of the workspace, so it was not followed'
    assert verdicts[3].reason == '"broken" is a link that leads to no file'


def test_links_in_a_circle_are_no_file(files: FileBench):
    """P9: the agent made them, so this is no error of the check."""

    def prepare(folder: TrialWorkspace) -> None:
        (Path(folder.path) / "a").symlink_to("b")
        (Path(folder.path) / "b").symlink_to("a")

    verdicts = files.evaluate(prepare, exists("a"), holds("a", "x"), exists("a/x"), holds("a/x", "x"))
    assert [verdict.status for verdict in verdicts] == ["failed"] * 4
    assert verdicts[0].reason == '"a" is a link that leads to no file'


@pytest.mark.parametrize(
    ("content", "values", "status"),
    [
        (b"one two three", ["two"], "passed"),
        (b"one two three", ["three", "one"], "passed"),
        (b"one two three", ["one", "four"], "failed"),
        (b"One", ["one"], "failed"),
        ("größe".encode(), ["größe"], "passed"),
        (b"\0\xff binary \xfe", ["binary"], "passed"),
        (b"\0\xff binary \xfe", ["text"], "failed"),
        (b"a\r\nb\r\n", ["a\nb"], "passed"),
        (b"a\nb\n", ["a\r\nb"], "failed"),
        (b"", ["x"], "failed"),
    ],
)
def test_texts_are_found_in_a_file(files: FileBench, content: bytes, values: list[str], status: str):
    """N25, P9: all of several; case counts; how lines end does not."""

    def prepare(folder: TrialWorkspace) -> None:
        put(folder.path, "f", content)

    assert files.one(prepare, **holds("f", values[0], *values[1:])).status == status


def test_a_text_is_found_across_two_pieces_of_a_large_file(files: FileBench):
    def prepare(folder: TrialWorkspace) -> None:
        with (Path(folder.path) / "huge").open("wb") as file:
            file.write(b"x" * (1024 * 1024 - 3) + b"needle" + b"x" * 5_000_000 + b"last")

    verdicts = files.evaluate(prepare, holds("huge", "needle", "last"), holds("huge", "needles"))
    assert [verdict.status for verdict in verdicts] == ["passed", "failed"]
    assert len(verdicts[1].reason) < 300


def test_only_regular_files_are_opened(files: FileBench):
    """Opening a pipe would block."""

    def prepare(folder: TrialWorkspace) -> None:
        os.mkfifo(Path(folder.path) / "pipe")
        (Path(folder.path) / "folder").mkdir()
        here = Path.cwd()
        os.chdir(folder.path)
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind("socket")
        finally:
            os.chdir(here)

    verdicts = files.evaluate(prepare, holds("pipe", "x"), holds("socket", "x"), holds("folder", "x"), exists("pipe"))
    assert [verdict.reason for verdict in verdicts] == [
        '"pipe" is not a regular file',
        '"socket" is not a regular file',
        '"folder" is a folder',
        "",
    ]


def test_a_failure_shows_the_content(files: FileBench):
    def prepare(folder: TrialWorkspace) -> None:
        put(folder.path, "f", "something else")

    verdict = files.one(prepare, **holds("f", "this", "that", "some"))
    assert verdict.reason == '"this" and "that" are not in "f": "something else"'
    assert verdict.actual == "something else"
    assert files.one(prepare, **exists("f"), negate=True).status == "failed"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../b", "a/..", "~/x", "a\0b"])
def test_a_path_out_of_the_workspace_is_refused(bench: Any, path: str):
    """P5: a load error."""
    for definition in (exists(path), holds(path, "x")):
        with pytest.raises(ValueError, match=r"must be relative to the workspace|of length >= 1"):
            bench.assertion(definition)


def test_an_empty_text_is_refused(bench: Any):
    for value in ("", [], ["a", ""]):
        with pytest.raises(ValueError, match="value is empty"):
            bench.assertion({"type": "file_contains", "path": "a", "value": value})


def test_without_a_workspace_the_check_is_an_error(bench: Any):
    """N24: an error, not a failure of the agent."""
    for definition in (exists("a"), holds("a", "x"), {**exists("a"), "negate": True}):
        verdict = bench.evaluate(definition, make_check_context("done"))
        assert verdict.status == "error"
        assert "the case has no workspace" in verdict.reason


def test_labels(bench: Any):
    assert bench.label("file_exists", path="a b.txt") == 'file_exists "a b.txt"'
    assert bench.label("file_contains", path="a", value=["x", "y"]) == 'file_contains "a" "x" and "y"'
    assert FileExists.needs == FileContains.needs == {"workspace"}

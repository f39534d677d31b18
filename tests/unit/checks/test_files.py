"""file_exists and file_contains: what the agent left in its workspace."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from rooms import folders, put
from viva.checks.files import FileContains, FileExists
from viva.model.case import Key, WorkspaceSpec
from viva.model.turn import Verdict
from viva.testing.check_context import make_check_context
from viva.workspace.folders import TrialWorkspace


class Desk:
    """A workspace with a link of the case's own, in which checks are judged."""

    def __init__(self, bench: Any, top: Path) -> None:
        self.bench = bench
        self.host = top / "host"
        put(self.host, "linked/a.txt", "linked text")
        self.top = top

    def judge(self, prepare: Any, *written: dict[str, Any]) -> list[Verdict]:
        """The verdicts after something was done to the workspace."""

        async def scenario() -> list[Verdict]:
            spec = WorkspaceSpec("empty", str(self.host), ("linked",))
            async with folders(self.top / "base")(spec, Key("s", "c")) as folder:
                prepare(folder)
                evidence = make_check_context("done")
                evidence.state.workspace = folder
                return [await self.bench.judge_later(each, evidence) for each in written]

        return asyncio.run(scenario())

    def one(self, prepare: Any, **written: Any) -> Verdict:
        return self.judge(prepare, written)[0]


@pytest.fixture
def desk(bench: Any, tmp_path: Path) -> Desk:
    return Desk(bench, tmp_path)


def exists(path: str) -> dict[str, Any]:
    return {"type": "file_exists", "path": path}


def holds(path: str, value: str, *more: str) -> dict[str, Any]:
    return {"type": "file_contains", "path": path, "value": [value, *more] if more else value}


def test_files_and_folders_of_the_workspace_and_of_its_own_links_are_there(desk: Desk):
    """N25, P9."""

    def prepare(folder: TrialWorkspace) -> None:
        put(folder.path, "a/größe eins.txt")

    present = ["a/größe eins.txt", "./a/größe eins.txt", "a", "a/", "linked/a.txt", "linked"]
    absent = ["b", "a/b.txt", "linked/b.txt", "a/größe eins.txt/"]
    verdicts = desk.judge(prepare, *map(exists, present + absent))
    assert [verdict.status for verdict in verdicts] == ["passed"] * 6 + ["failed"] * 4


def test_a_file_that_is_not_there_may_be_one_that_was_meant(desk: Desk):
    def prepare(folder: TrialWorkspace) -> None:
        put(folder.path, "out/report.txt")

    near, far = desk.judge(prepare, exists("out/reprot.txt"), holds("in/report.txt", "x"))
    assert near.reason == '"out/reprot.txt" is not there; there is "report.txt"'
    assert far.reason == '"in/report.txt" is not there; nor is the folder that it should be in'


def test_a_link_that_the_agent_made_to_somewhere_else_is_not_followed(desk: Desk):
    """P9: also not from within what the case itself has linked."""
    put(desk.top, "elsewhere/secret.txt", "secret")

    def prepare(folder: TrialWorkspace) -> None:
        (Path(folder.path) / "away").symlink_to(desk.top / "elsewhere")
        (desk.host / "linked/away").symlink_to(desk.top / "elsewhere")
        (Path(folder.path) / "near").symlink_to("linked/a.txt")
        (Path(folder.path) / "broken").symlink_to("nowhere")

    verdicts = desk.judge(
        prepare,
        exists("away/secret.txt"),
        holds("away/secret.txt", "secret"),
        holds("linked/away/secret.txt", "secret"),
        exists("broken"),
        holds("near", "linked text"),
    )
    assert [verdict.status for verdict in verdicts] == ["failed"] * 4 + ["passed"]
    assert verdicts[0].reason == '"away/secret.txt" leads out of the workspace, so it was not followed'


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
def test_texts_are_found_in_whatever_a_file_holds(desk: Desk, content: bytes, values: list[str], status: str):
    """N25, P9: all of several; case counts; how lines end does not."""

    def prepare(folder: TrialWorkspace) -> None:
        put(folder.path, "f", content)

    assert desk.one(prepare, **holds("f", values[0], *values[1:])).status == status


def test_a_text_is_found_where_pieces_of_a_huge_file_meet(desk: Desk):
    def prepare(folder: TrialWorkspace) -> None:
        with (Path(folder.path) / "huge").open("wb") as file:
            file.write(b"x" * (1024 * 1024 - 3) + b"needle" + b"x" * 5_000_000 + b"last")

    verdicts = desk.judge(prepare, holds("huge", "needle", "last"), holds("huge", "needles"))
    assert [verdict.status for verdict in verdicts] == ["passed", "failed"]
    assert len(verdicts[1].reason) < 300


def test_what_is_no_ordinary_file_is_not_opened(desk: Desk):
    """A pipe would wait for ever."""

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

    verdicts = desk.judge(prepare, holds("pipe", "x"), holds("socket", "x"), holds("folder", "x"), exists("pipe"))
    assert [verdict.reason for verdict in verdicts] == [
        '"pipe" is not a regular file',
        '"socket" is not a regular file',
        '"folder" is a folder',
        "",
    ]


def test_a_failure_says_what_is_there_instead(desk: Desk):
    def prepare(folder: TrialWorkspace) -> None:
        put(folder.path, "f", "something else")

    verdict = desk.one(prepare, **holds("f", "this", "that", "some"))
    assert verdict.reason == '"this" and "that" are not in "f": "something else"'
    assert verdict.actual == "something else"
    assert desk.one(prepare, **exists("f"), negate=True).status == "failed"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../b", "a/..", "~/x", "a\0b"])
def test_a_path_out_of_the_workspace_cannot_be_written(bench: Any, path: str):
    """P5: a load error."""
    for written in (exists(path), holds(path, "x")):
        with pytest.raises(ValueError, match=r"must be relative to the workspace|of length >= 1"):
            bench.assertion(written)


def test_a_text_that_every_file_holds_cannot_be_written(bench: Any):
    for value in ("", [], ["a", ""]):
        with pytest.raises(ValueError, match="value is empty"):
            bench.assertion({"type": "file_contains", "path": "a", "value": value})


def test_without_a_workspace_nothing_can_be_said(bench: Any):
    """N24: an error, not a failure of the agent."""
    for written in (exists("a"), holds("a", "x"), {**exists("a"), "negate": True}):
        verdict = bench.judge(written, make_check_context("done"))
        assert verdict.status == "error"
        assert "the case has no workspace" in verdict.reason


def test_they_are_named_by_what_they_look_for(bench: Any):
    assert bench.label("file_exists", path="a b.txt") == 'file_exists "a b.txt"'
    assert bench.label("file_contains", path="a", value=["x", "y"]) == 'file_contains "a" "x" and "y"'
    assert FileExists.needs == FileContains.needs == {"workspace"}

"""Where a run comes from: the commit is read from the files of Git."""

import json
from pathlib import Path

import pytest

from project import InProcessProject, case
from viva.session.run_origin import find_commit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "origin"),
    [
        ({"HEAD": "ref: refs/heads/a/b\n", "refs/heads/a/b": f"{COMMIT}\n"}, (COMMIT, "a/b")),
        ({"HEAD": "ref: refs/heads/main\n", "packed-refs": f"# pack\n{COMMIT} refs/heads/main\n"}, (COMMIT, "main")),
        ({"HEAD": f"{COMMIT}\n"}, (COMMIT, "")),
        ({"HEAD": "ref: refs/heads/unborn\n"}, ("", "unborn")),
        ({"HEAD": "<script>"}, ("", "")),
        ({"config": ""}, ("", "")),
    ],
)
def test_the_commit_of_a_folder_is_found(tmp_path: Path, files: dict[str, str], origin: tuple[str, str]):
    write_files(tmp_path / ".git", files)
    inner = tmp_path / "suites" / "inner"
    inner.mkdir(parents=True)
    assert find_commit(inner) == origin


def test_a_worktree_has_the_commit_of_its_own_branch(tmp_path: Path):
    write_files(
        tmp_path,
        {
            "main/.git/refs/heads/side": COMMIT,
            "main/.git/worktrees/side/HEAD": "ref: refs/heads/side\n",
            "main/.git/worktrees/side/commondir": "../..\n",
            "side/.git": f"gitdir: {tmp_path}/main/.git/worktrees/side\n",
        },
    )
    assert find_commit(tmp_path / "side") == (COMMIT, "side")


def test_a_run_says_its_model_and_what_it_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    project = InProcessProject(tmp_path, capsys)
    project.suite(case("a"))
    write_files(tmp_path / ".git", {"HEAD": COMMIT})
    ended = project.test("--agent-model", "small-1", "--rerun-of", "20260101-000000-0001", "--json", code=0)
    assert json.loads(ended.out.splitlines()[0])["origin"] == {
        "model": "small-1",
        "commit": COMMIT,
        "rerun_of": "20260101-000000-0001",
    }

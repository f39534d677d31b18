"""Workspaces: what is put there, what may be looked at, who cleans up, and what people are told."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trial_workspaces import KEY, files, folders, git, opened, put, tree
from viva.errors import TrialFault, Undetermined
from viva.model.case import Key, LinkMode, WorkspaceSpec
from viva.workspace.folders import TrialWorkspace, remove_stale_workspaces


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "with a space, and ü"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with tracked, untracked, ignored and removed files, in which a subfolder is the working folder."""
    root = tmp_path / "repo ü"
    for name in ("README.md", "src/main.py", "removed.txt", "suite.yaml", ".gitignore"):
        put(root, name, "ignored\n*.log\n" if name == ".gitignore" else name)
    (root / "link").symlink_to("src/main.py")
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "-m", "x")
    (root / "removed.txt").unlink()
    put(root, "new.txt", "new")
    put(root, "ignored/x")
    put(root, "debug.log")
    put(root, ".viva/runs/x")
    put(root, "sub/.viva/y")
    put(root, os.fsdecode(b"not-utf8-\xff"), "odd")
    (root / "src" / "main.py").chmod(0o755)
    return root


async def look(folder: TrialWorkspace) -> set[str]:
    return files(folder.path)


# copies


def test_a_copy_has_what_git_knows_and_does_not_ignore(base: Path, repo: Path):
    """P5: of the repository that holds the working folder, without the suite's own files and `.viva`."""
    spec = WorkspaceSpec("copy", str(repo / "src"), exclude=(str(repo / "suite.yaml"),))

    async def use(folder: TrialWorkspace) -> set[str]:
        assert (Path(folder.path) / "link").readlink() == Path("src/main.py")
        assert os.access(Path(folder.path) / "src/main.py", os.X_OK)
        assert not os.access(Path(folder.path) / "README.md", os.X_OK)
        return files(folder.path)

    odd = os.fsdecode(b"not-utf8-\xff")
    expected = {"README.md", "src/main.py", ".gitignore", "link", "new.txt", odd}
    assert opened(folders(base), spec, use) == expected


def test_repositories_inside_of_a_repository_are_copied_by_their_own_rules(base: Path, repo: Path):
    inner = repo / "inner"
    put(inner, "kept.txt")
    put(inner, "dropped.tmp")
    put(inner, ".gitignore", "*.tmp")
    git(inner, "init")
    found = opened(folders(base), WorkspaceSpec("copy", str(repo)), look)
    assert {name for name in found if name.startswith("inner/")} == {"inner/kept.txt", "inner/.gitignore"}


def test_a_hook_of_git_does_not_confuse_it(base: Path, repo: Path, tmp_path: Path):
    made = folders(base)
    made.environ = {**os.environ, "GIT_DIR": str(tmp_path / "elsewhere"), "GIT_INDEX_FILE": "x"}
    assert "README.md" in opened(made, WorkspaceSpec("copy", str(repo)), look)


@pytest.mark.parametrize("without", ["repository", "git"])
def test_without_git_or_a_repository_the_folder_itself_is_copied(without: str, base: Path, tmp_path: Path):
    """P5: without files that are never needed."""
    root = tmp_path / "plain"
    for name in ("a.txt", "b/c.txt", ".git/config", ".venv/x", "deep/node_modules/y", ".viva/z", "suite.yaml"):
        put(root, name)
    (root / "broken").symlink_to("nowhere")
    made = folders(base)
    if without == "git":
        made.environ = {"PATH": str(tmp_path)}
    spec = WorkspaceSpec("copy", str(root), exclude=(str(root / "suite.yaml"),))
    assert opened(made, spec, look) == {"a.txt", "b/c.txt", "broken"}


def test_pipes_and_sockets_are_not_copied_and_do_not_hang(base: Path, tmp_path: Path):
    root = tmp_path / "plain"
    put(root, "a.txt")
    os.mkfifo(root / "pipe")
    assert opened(folders(base), WorkspaceSpec("copy", str(root)), look) == {"a.txt"}


@pytest.mark.parametrize("limit", [(2, 2**40), (1000, 10)])
def test_a_copy_that_is_too_large_is_refused_and_leaves_nothing(limit: tuple[int, int], base: Path, tmp_path: Path):
    root = tmp_path / "large"
    for name in "abc":
        put(root, name, "12345")
    with pytest.raises(Undetermined, match=r"hold more than (2 files|10 bytes); link what is needed"):
        opened(folders(base, limits=limit), WorkspaceSpec("copy", str(root)), look)
    assert list(base.iterdir()) == []


def test_two_at_once_in_the_same_repository_do_not_see_each_other(base: Path, repo: Path):
    made = folders(base)

    async def scenario() -> None:
        spec = WorkspaceSpec("copy", str(repo))
        async with made(spec, KEY) as one, made(spec, Key("suite", "case", 2)) as two:
            put(one.path, "README.md", "changed")
            assert (Path(two.path) / "README.md").read_text() == "README.md"
            assert one.home != two.home

    asyncio.run(scenario())
    assert (repo / "README.md").read_text() == "README.md"


@pytest.mark.parametrize("has_git", [True, False])
def test_no_link_of_a_copy_leads_out_of_it(has_git: bool, base: Path, repo: Path, tmp_path: Path):
    """P5: not to elsewhere, and not back to the original."""
    put(tmp_path, "secret.txt", "secret")
    (repo / "src/away").symlink_to(tmp_path / "secret.txt")
    (repo / "up").symlink_to("../secret.txt")
    (repo / "src/absolute").symlink_to(repo / "README.md")
    (repo / "src/around").symlink_to(f"../../{repo.name}/README.md")
    if not has_git:
        shutil.rmtree(repo / ".git")

    async def use(folder: TrialWorkspace) -> tuple[dict[str, bytes | str | None], list[str]]:
        (Path(folder.path) / "src/absolute").write_text("changed")
        return tree(folder.path), await folder.warnings()

    found, warnings = opened(folders(base), WorkspaceSpec("copy", str(repo)), use)
    assert (found["src/absolute"], found["src/around"], found["link"]) == (
        "../README.md",
        "../README.md",
        "src/main.py",
    )
    assert not {"src/away", "up"} & set(found)
    assert (repo / "README.md").read_text() == "README.md"
    assert warnings == ["not in the workspace because they lead outside the working folder: src/away, up"]


# links


def linking(root: Path, *paths: str, mode: LinkMode = "symlink", **more: object) -> WorkspaceSpec:
    return WorkspaceSpec("empty", str(root), paths, mode, **more)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    for name in ("skills/a.md", "skills/deep/b.md", "skills/.git/x", "skills/node_modules/y", "one.txt", "suite.yaml"):
        put(root, name, name)
    return root


def test_links_stand_at_the_same_relative_path(base: Path, host: Path):
    async def use(folder: TrialWorkspace) -> None:
        place = Path(folder.path)
        assert place.joinpath("skills/deep").readlink() == host / "skills/deep"
        assert place.joinpath("one.txt").readlink() == host / "one.txt"
        assert {path.name for path in place.iterdir()} == {"skills", "one.txt"}
        assert set(folder.link_targets) == {str(host / "skills/deep"), str(host / "one.txt")}

    opened(folders(base), linking(host, "skills/deep", "one.txt", "./one.txt"), use)


def test_a_link_below_another_is_there_already(base: Path, host: Path):
    async def use(folder: TrialWorkspace) -> list[str]:
        return list(folder.link_targets)

    assert opened(folders(base), linking(host, "skills/deep", "skills"), use) == [str(host / "skills")]


def test_the_folder_itself_is_linked_entry_by_entry(base: Path, host: Path):
    put(host, ".viva/x")

    async def use(folder: TrialWorkspace) -> set[str]:
        return {path.name for path in Path(folder.path).iterdir()}

    assert opened(folders(base), linking(host, "."), use) == {"skills", "one.txt", "suite.yaml"}


def test_copied_links_exclude_the_suite_and_unneeded_files(base: Path, host: Path):
    """P5: `--link-mode copy`."""
    put(host, "skills/suite.yaml")
    spec = linking(host, "skills", "one.txt", mode="copy", exclude=(str(host / "skills/suite.yaml"),))

    async def use(folder: TrialWorkspace) -> set[str]:
        put(folder.path, "skills/a.md", "changed")
        assert await folder.warnings() == []
        assert not folder.link_targets
        return files(folder.path)

    assert opened(folders(base), spec, use) == {"skills/a.md", "skills/deep/b.md", "one.txt"}
    assert (host / "skills/a.md").read_text() == "skills/a.md"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["skills/node_modules"], {"skills/node_modules/y", "skills/node_modules/z/node_modules/w"}),
        (["skills", "skills/node_modules/y"], {"skills/a.md", "skills/deep/b.md", "skills/node_modules/y"}),
        (["skills/.git", "suite.yaml"], {"skills/.git/x", "suite.yaml"}),
        (["books", "books/own.yaml"], {"books/other.yaml", "books/own.yaml"}),
        (["books"], {"books/other.yaml"}),
    ],
)
def test_a_copy_never_leaves_out_what_the_case_names(base: Path, host: Path, paths: list[str], expected: set[str]):
    """P5: a folder such as `node_modules`, or the playbook itself, is there if `link_paths` name it."""
    for name in ("skills/node_modules/z/node_modules/w", "books/own.yaml", "books/other.yaml"):
        put(host, name)
    spec = linking(host, *paths, mode="copy", exclude=(str(host / "books/own.yaml"), str(host / "suite.yaml")))

    async def use(folder: TrialWorkspace) -> set[str]:
        return files(folder.path)

    assert opened(folders(base), spec, use) == expected


def test_copied_links_follow_what_leads_out_and_stop_at_cycles(base: Path, host: Path):
    put(host, "elsewhere/c.md", "c")
    (host / "skills/out").symlink_to("../elsewhere")
    (host / "skills/in").symlink_to("a.md")
    (host / "skills/up").symlink_to(".")
    (host / "elsewhere/back").symlink_to("../skills")
    (host / "skills/self").symlink_to("self")

    async def use(folder: TrialWorkspace) -> dict[str, bytes | str | None]:
        return tree(folder.path)

    found = opened(folders(base), linking(host, "skills", mode="copy"), use)
    assert found["skills/out/c.md"] == b"c"
    assert found["skills/in"] == "a.md"
    assert found["skills/up"] == "."
    assert found["skills/self"] == "self"
    assert found["skills/out/back"] == ".."


@pytest.mark.parametrize(
    ("path", "why"), [("..", "leads out"), ("a/../../x", "leads out"), ("/etc", "leads out"), ("gone", "there is no")]
)
def test_links_to_outside_and_to_nothing_are_refused(path: str, why: str, base: Path, host: Path):
    with pytest.raises(Undetermined, match=f"link_paths: .*{why}"):
        opened(folders(base), linking(host, path), look)
    assert list(base.iterdir()) == []


@pytest.mark.parametrize("mode", ["symlink", "copy"])
def test_a_path_that_leads_outside_through_a_link_is_not_linked(mode: LinkMode, base: Path, host: Path, tmp_path: Path):
    """P5: one that is named is refused; one that stands among others is left out, which is told."""
    put(tmp_path, "elsewhere/secret.txt", "secret")
    (host / "away").symlink_to(tmp_path / "elsewhere")
    for path in ("away", "away/secret.txt"):
        with pytest.raises(Undetermined, match=f"link_paths: '{path}' leads outside the working folder"):
            opened(folders(base), linking(host, path, mode=mode), look)

    async def use(folder: TrialWorkspace) -> tuple[set[str], list[str]]:
        return {path.name for path in Path(folder.path).iterdir()}, await folder.warnings()

    names, warnings = opened(folders(base), linking(host, ".", mode=mode), use)
    assert names == {"skills", "one.txt", "suite.yaml"}
    assert warnings == ["not in the workspace because they lead outside the working folder: away"]


def test_a_copied_link_holds_nothing_of_outside(base: Path, host: Path, tmp_path: Path):
    """P5."""
    put(tmp_path, "elsewhere/secret.txt", "secret")
    (host / "skills/away").symlink_to(tmp_path / "elsewhere")
    (host / "skills/away.txt").symlink_to(tmp_path / "elsewhere/secret.txt")

    async def use(folder: TrialWorkspace) -> tuple[set[str], list[str]]:
        return files(folder.path), await folder.warnings()

    found, warnings = opened(folders(base), linking(host, "skills", mode="copy"), use)
    assert found == {"skills/a.md", "skills/deep/b.md"}
    assert warnings == [
        "not in the workspace because they lead outside the working folder: skills/away, skills/away.txt"
    ]


def test_a_link_to_a_circle_is_a_link_to_nothing(base: Path, host: Path):
    (host / "circle").symlink_to("circle")
    with pytest.raises(Undetermined, match="there is no 'circle'"):
        opened(folders(base), linking(host, "circle"), look)


def test_a_link_that_holds_the_workspace_itself_has_an_end(tmp_path: Path):
    put(tmp_path, "x.txt")

    async def use(folder: TrialWorkspace) -> tuple[str, ...]:
        mark = await folder.take_snapshot()
        put(folder.path, "new.txt")
        return tuple(change.path for change in await folder.changes_since(mark))

    made = folders(tmp_path / "base")
    assert opened(made, linking(tmp_path, ".", mode="copy"), use) == ("new.txt",)
    assert opened(made, linking(tmp_path, "."), use) == ("new.txt",)


def test_what_the_agent_did_to_the_host_through_a_link_is_reported(base: Path, host: Path):
    """P5: changed, added and removed, by the paths that it used."""

    async def use(folder: TrialWorkspace) -> list[str]:
        place = Path(folder.path)
        put(place, "skills/a.md", "other")
        put(place, "skills/new.md")
        (place / "skills/deep/b.md").unlink()
        put(place, "one.txt", "!")
        put(place, "own.txt")
        return await folder.warnings()

    (conversation,) = opened(folders(base), linking(host, "skills", "one.txt"), use)
    assert conversation == (
        "files of the host were changed through a link: "
        "changed skills/a.md, removed skills/deep/b.md, added skills/new.md, changed one.txt"
    )


def test_a_test_that_the_agent_could_read_through_a_link_is_reported(base: Path, host: Path):
    """P5."""

    async def use(folder: TrialWorkspace) -> list[str]:
        return await folder.warnings()

    spec = linking(host, "skills", ".", exclude=(str(host / "suite.yaml"), str(host / "not-written-yet.jsonl")))
    assert opened(folders(base), spec, use) == ["the agent could read its own test files through a link: suite.yaml"]
    spec = linking(host, "skills", exclude=(str(host / "suite.yaml"),))
    assert opened(folders(base), spec, use) == []


def test_changes_below_a_link_are_changes_of_the_turn(base: Path, host: Path):
    async def use(folder: TrialWorkspace) -> list[tuple[str, str]]:
        mark = await folder.take_snapshot()
        put(folder.path, "skills/a.md", "other\n")
        put(folder.path, "one.txt", "!")
        return [(change.path, change.change) for change in await folder.changes_since(mark)]

    found = opened(folders(base), linking(host, "skills", "one.txt"), use)
    assert found == [("one.txt", "changed"), ("skills/a.md", "changed")]


def test_a_link_that_the_agent_replaces_by_a_file_of_its_own_is_seen(base: Path, host: Path):
    async def use(folder: TrialWorkspace) -> list[tuple[str, str, str | None]]:
        mark = await folder.take_snapshot()
        (Path(folder.path) / "one.txt").unlink()
        put(folder.path, "one.txt", "mine\n")
        found = [(change.path, change.change, change.diff) for change in await folder.changes_since(mark)]
        assert await folder.warnings() == []
        return found

    (change,) = opened(folders(base), linking(host, "one.txt"), use)
    assert change[:2] == ("one.txt", "changed")
    assert "+mine" in str(change[2])


# in place


def test_in_place_the_folder_is_the_users_own_and_stays(base: Path, repo: Path):
    async def use(folder: TrialWorkspace) -> set[str]:
        assert folder.path == str(repo)
        assert folder.is_kept
        mark = await folder.take_snapshot()
        put(repo, ".viva/runs/journal", "written meanwhile")
        git(repo, "add", ".")
        put(repo, "made.txt")
        return {change.path for change in await folder.changes_since(mark)}

    assert opened(folders(base), WorkspaceSpec("cwd", str(repo)), use) == {"made.txt"}
    assert (repo / "made.txt").exists()
    assert list(base.iterdir()) == []


# replay


@pytest.mark.parametrize("kind", ["cwd", "empty"])
def test_a_replay_never_touches_the_host(kind: str, base: Path, host: Path):
    """Links are copied, with everything that a link would show, and reported as links."""
    put(host, "skills/.venv/tool", "x")
    spec = WorkspaceSpec("cwd", str(host)) if kind == "cwd" else linking(host, "skills", exclude=("skills/a.md",))

    async def use(folder: TrialWorkspace) -> list[str]:
        put(folder.path, "skills/a.md", "replayed")
        assert (Path(folder.path) / "skills/.venv/tool").exists() == (kind == "empty")
        return await folder.warnings()

    conversation = opened(folders(base, is_replay=True), spec, use)
    assert (host / "skills/a.md").read_text() == "skills/a.md"
    assert conversation == (
        ["files of the host were changed through a link: changed skills/a.md"] if kind == "empty" else []
    )


# what a check may look at


def test_a_check_sees_the_workspace_and_what_its_own_links_lead_to(base: Path, host: Path, tmp_path: Path):
    """P9: a link that the agent made to somewhere else is not followed."""
    put(tmp_path, "secret.txt")

    async def use(folder: TrialWorkspace) -> None:
        place = Path(folder.path)
        put(place, "a/b.txt")
        (place / "own").symlink_to("a/b.txt")
        (place / "away").symlink_to(tmp_path / "secret.txt")
        (place / "up").symlink_to("../home")
        (host / "skills/away").symlink_to(tmp_path)
        assert folder.resolve_inside("a/b.txt") == str(place / "a/b.txt")
        assert folder.resolve_inside("own") == str(place / "a/b.txt")
        assert folder.resolve_inside("skills/a.md") == str(host / "skills/a.md")
        assert folder.resolve_inside("none/at/all") == str(place / "none/at/all")
        for outside in ("away", "up", "up/x", "..", "a/../../home", "skills/away/secret.txt", "/etc/passwd"):
            assert folder.resolve_inside(outside) is None

    opened(folders(base), linking(host, "skills"), use)


def test_a_workspace_that_became_a_link_shows_nothing(base: Path, tmp_path: Path):
    put(tmp_path, "secret.txt")

    async def use(folder: TrialWorkspace) -> None:
        mark = await folder.take_snapshot()
        Path(folder.path).rmdir()
        Path(folder.path).symlink_to(tmp_path)
        assert folder.resolve_inside("secret.txt") is None
        assert await folder.changes_since(mark) == ()

    opened(folders(base), WorkspaceSpec("empty"), use)
    assert (tmp_path / "secret.txt").exists()


# cleaning up


def test_a_workspace_is_named_after_its_case_and_gone_afterwards(base: Path):
    async def use(folder: TrialWorkspace) -> str:
        assert Path(folder.home).is_dir()
        assert Path(folder.home).stat().st_mode & 0o777 == 0o700
        assert Path(folder.tmp).stat().st_mode & 0o777 == 0o700  # P10
        put(folder.home, ".config/x")
        return Path(folder.path).parent.name

    name = opened(folders(base), WorkspaceSpec("empty"), use, Key("s", "pb/größe eins: ../x"))
    assert name.startswith("viva-pb-größe-eins-..-x-")
    assert list(base.iterdir()) == []


@pytest.mark.parametrize("how", ["raises", "is cancelled", "deletes it"])
def test_it_is_gone_too_when_the_trial(how: str, base: Path):
    made = folders(base)

    async def scenario() -> None:
        async with made(WorkspaceSpec("empty"), KEY) as folder:
            put(folder.path, "x")
            if how == "raises":
                raise TrialFault("x")
            if how == "is cancelled":
                raise asyncio.CancelledError
            (Path(folder.path) / "x").unlink()
            Path(folder.path).rmdir()

    try:
        asyncio.run(scenario())
    except (TrialFault, asyncio.CancelledError):
        pass
    assert list(base.iterdir()) == []


def test_a_kept_workspace_is_not_removed(base: Path):
    async def use(folder: TrialWorkspace) -> str:
        assert not folder.is_kept
        folder.keep()
        put(folder.path, "x")
        return folder.path

    kept = opened(folders(base), WorkspaceSpec("empty"), use)
    assert remove_stale_workspaces(str(base)) == []
    assert files(kept) == {"x"}
    assert not (Path(kept).parent / "home").exists()  # P6, P10: logins and sessions of the CLI are not left behind

    async def nothing(folder: TrialWorkspace) -> str:
        return folder.path

    assert Path(opened(folders(base, keep_always=True), WorkspaceSpec("empty"), nothing)).is_dir()


def test_trials_that_work_in_place_take_turns(base: Path, tmp_path: Path):
    """P5: otherwise the changes of one trial would be reported for the other."""
    make, spec, seen = folders(base), WorkspaceSpec("cwd", str(tmp_path / "repo")), list[list[str]]()
    put(tmp_path / "repo", "here")

    async def work(name: str) -> None:
        async with make(spec, KEY) as folder:
            before = await folder.take_snapshot()
            put(folder.path, name)
            await asyncio.sleep(0)
            seen.append([change.path for change in await folder.changes_since(before)])

    async def both() -> None:
        await asyncio.gather(work("one"), work("two"))

    asyncio.run(both())
    assert sorted(seen) == [["one"], ["two"]]


LIMITED = """
import asyncio, resource, sys
from viva.errors import Undetermined
from viva.model.case import Key, WorkspaceSpec
from viva.workspace.folders import LocalWorkspaces

async def main():
    async with LocalWorkspaces(sys.argv[1])(WorkspaceSpec("copy", sys.argv[2]), Key("s", "c")):
        pass

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    asyncio.run(main())
except Undetermined as wrong:
    print(wrong.message)
"""


def test_half_a_copy_is_not_a_workspace(base: Path, tmp_path: Path):
    """A disk that takes no more, here by a limit on the size of files, is said to be that; the file was readable."""
    put(tmp_path / "repo", "large.txt", "x" * 300_000)
    base.mkdir()
    command = [sys.executable, "-c", LIMITED, str(base), str(tmp_path / "repo")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert re.fullmatch(r"workspace: .*large\.txt: File too large\n", output)
    assert list(base.iterdir()) == []


def test_what_the_agent_has_deleted_is_not_said_to_be_there(base: Path):
    async def use(folder: TrialWorkspace) -> bool:
        folder.keep()
        shutil.rmtree(folder.path)
        return folder.is_kept

    assert not opened(folders(base), WorkspaceSpec("empty"), use)
    assert list(base.iterdir()) == []


def test_what_was_made_unremovable_is_removed(base: Path):
    async def use(folder: TrialWorkspace) -> None:
        put(folder.path, "locked/deep/x").parent.chmod(0o500)
        (Path(folder.path) / "locked").chmod(0o000)

    opened(folders(base), WorkspaceSpec("empty"), use)
    assert list(base.iterdir()) == []


def test_no_place_to_make_one_is_not_a_failure_of_the_agent(base: Path):
    made = folders(base)
    base.rmdir()
    with pytest.raises(Undetermined, match=r"workspace: .*No such file"):
        opened(made, WorkspaceSpec("empty"), look)


KILLED = """
import asyncio, os, sys
from viva.model.case import Key, WorkspaceSpec
from viva.workspace.folders import LocalWorkspaces

async def main():
    async with LocalWorkspaces(sys.argv[1])(WorkspaceSpec("empty"), Key("s", "killed")) as folder:
        print(folder.path, flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


def test_what_a_killed_process_has_left_is_removed_and_what_a_running_one_uses_is_not(base: Path):
    base.mkdir()
    viva = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert viva.stdout is not None
    assert viva.stdin is not None
    path = Path(viva.stdout.readline().strip())
    put(base, "viva-of-somebody-else/work/x")
    assert remove_stale_workspaces(str(base)) == []
    assert path.is_dir()
    viva.kill()
    viva.wait()
    viva.stdin.close()
    viva.stdout.close()

    opened(folders(base), WorkspaceSpec("empty"), look)  # the next start
    assert not path.parent.exists()
    assert (base / "viva-of-somebody-else/work/x").exists()


def test_a_folder_whose_maker_seems_gone_but_whose_lock_is_held_is_left_alone(base: Path):
    """Another container has process ids of its own."""

    async def use(folder: TrialWorkspace) -> None:
        marker = Path(folder.path).parent / ".viva-workspace"
        marker.write_text("999999999 1\n")
        assert remove_stale_workspaces(str(base)) == []

    opened(folders(base), WorkspaceSpec("empty"), use)


def test_a_replay_tells_what_was_told_though_the_host_has_changed_since(base: Path, host: Path):
    """The run that was recorded may have changed it itself."""
    spec = linking(host, "skills", "one.txt")

    async def act(folder: TrialWorkspace) -> tuple[object, ...]:
        mark = await folder.take_snapshot()
        put(folder.path, "skills/a.md", "other")
        put(folder.path, "skills/new.md", "new")
        put(folder.path, "skills/passing.md", "x")
        first = await folder.files_since(mark), await folder.changes_since(mark)
        mark = await folder.take_snapshot()
        (Path(folder.path) / "skills/passing.md").unlink()
        (Path(folder.path) / "one.txt").unlink()
        (host / "one.txt").unlink()
        return *first, await folder.files_since(mark), await folder.changes_since(mark), await folder.warnings()

    async def replay(folder: TrialWorkspace) -> tuple[object, ...]:
        seen: list[object] = []
        for images, conversation in (recorded[:2], recorded[2:4]):
            mark = await folder.take_snapshot()
            await folder.restore_files(images, conversation)  # pyright: ignore[reportArgumentType]
            seen += [images, await folder.changes_since(mark)]
        assert await folder.changes_since(await folder.take_snapshot()) == ()
        return *seen, await folder.warnings()

    recorded = opened(folders(base), spec, act)
    assert recorded[-1] == [
        "files of the host were changed through a link: changed skills/a.md, added skills/new.md, removed one.txt"
    ]
    put(host, "one.txt", "back")
    assert opened(folders(base, is_replay=True), spec, replay) == recorded

"""The project as an archive, which a worker stores by its digest."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bubblewrap
from project import InProcessProject, Project, case
from viva.errors import BadInput
from viva.session.workers.project_archive import ArchiveCache, digest_archive, pack_project, unpack_project


def test_the_same_files_give_the_same_digest(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "viva.toml").write_text("")
    (root / ".env").write_text("KEY=1")
    (root / "own-secrets").write_text("KEY=1")
    first = pack_project(root, root / "own-secrets")
    os.utime(root / "viva.toml", (1, 1))  # as another checkout
    assert pack_project(root, root / "own-secrets") == first
    folder = unpack_project(first, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["viva.toml"]
    (root / "viva.toml").write_text("# changed")
    assert digest_archive(pack_project(root, None)) != digest_archive(first)


def test_no_program_that_the_repository_configures_is_run(tmp_path: Path) -> None:  # 12.1
    """An agent that worked in the repository may have configured it."""
    project = Project(tmp_path)
    project.write("monitor.sh", "#!/bin/sh\ntouch ran\n")
    (tmp_path / "monitor.sh").chmod(0o755)
    for command in (("init", "-q"), ("config", "core.fsmonitor", "./monitor.sh")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    pack_project(tmp_path, None)
    assert not (tmp_path / "ran").exists()


def test_a_worker_keeps_the_newest_archives_and_trusts_no_other_content(tmp_path: Path) -> None:
    cache = ArchiveCache(tmp_path)
    archives = [b"archive %d" % number for number in range(6)]
    for number, archive in enumerate(archives):
        cache.add(archive)
        os.utime(tmp_path / f"{digest_archive(archive)}.tar.gz", (number, number))
    assert [cache.get(digest_archive(archive)) for archive in archives] == [None, None, *archives[2:]]
    damaged = tmp_path / f"{digest_archive(archives[5])}.tar.gz"
    damaged.write_bytes(b"other")
    assert cache.get(digest_archive(archives[5])) is None
    ArchiveCache(tmp_path / "gone").add(b"no room")  # no harm: it is sent again


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    if not bubblewrap.works():
        return  # said at the end of the run: NOT RUN
    project = Project(tmp_path)
    project.write("agent.py", "def agent(messages, options):\n    return messages[-1]['content']\n")
    project.suite(case("one"))
    project.write("private.key", "")
    (tmp_path / "private.key").chmod(0)
    without_rights = ("bwrap", "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--cap-drop", "ALL")  # not even root's
    viva = (sys.executable, "-m", "viva", "test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent")
    command = (*without_rights, *viva, "--cluster", "tcp://127.0.0.1:9")
    ended = subprocess.run(command, cwd=tmp_path, env=project.env, capture_output=True, text=True, check=False)
    assert ended.returncode == 4, ended
    assert f"{tmp_path}/private.key: cannot be read, so it cannot be sent to workers: Permission denied" in ended.stderr


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}\n")


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True)


def list_packed(root: Path, parent: Path) -> list[str]:
    folder = unpack_project(pack_project(root, None), parent)
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


SECRET_FILES = (".env", ".env.local", "sub/.env", ".env.d/keys", ".viva/runs/one", "sub/.viva/two")


def test_the_archive_has_what_git_knows_or_does_not_ignore(tmp_path: Path) -> None:  # 17
    root = tmp_path / "project"
    write(root, "viva.toml", "sub/tracked.txt", "with space ü.txt", "out.log", "secret/key.pem", *SECRET_FILES)
    (root / ".gitignore").write_text("*.log\nsecret/\nkept.log\n")
    write(root, "kept.log", "library/inner.py", "library/inner.log")
    git(root, "init", "-q")
    git(root / "library", "init", "-q")  # as a submodule
    (root / "library" / ".gitignore").write_text("*.log\n")
    git(root, "add", "-f", "kept.log", ".env", "sub/.env")  # a file that git tracks, and secrets that it should not
    expected = [".gitignore", "kept.log", "library/.gitignore", "library/inner.py", "sub/tracked.txt", "viva.toml"]
    assert list_packed(root, tmp_path) == [*expected, "with space ü.txt"]


@pytest.mark.parametrize("has_git", [True, False])
def test_links_that_lead_outside_are_not_sent(tmp_path: Path, has_git: bool) -> None:  # 17
    root = tmp_path / "project"
    write(tmp_path, "outside/secret.txt")
    write(root, "data/one.txt", "sub/two.txt", *SECRET_FILES)
    for name, target in {
        "inside": "data/one.txt",
        "folder": "data",
        "sub/up": "../data/one.txt",
        "file": "../outside/secret.txt",
        "outside": "../outside",
        "absolute": str(root / "data/one.txt"),
        "by-way-of": "outside/secret.txt",
        "around": "../project/../outside/secret.txt",
        "itself": "itself",
    }.items():
        (root / name).symlink_to(target)
    if has_git:
        git(root, "init", "-q")
    folder = unpack_project(pack_project(root, None), tmp_path)
    assert {path.name for path in folder.rglob("*") if path.is_symlink()} == {"inside", "folder", "up", "itself"}
    assert (
        (folder / "folder" / "one.txt").read_text()
        == (folder / "sub" / "up").read_text()
        == "content of data/one.txt\n"
    )
    assert not any("secret" in path.name or path.name.startswith(".") for path in folder.rglob("*"))


def test_a_project_with_too_many_bytes_is_refused(tmp_path: Path) -> None:  # 17
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(64 << 20)
    pack_project(tmp_path, None)
    write(tmp_path, "one more byte")
    with pytest.raises(
        BadInput, match="more than 64 MB, too many to send to workers; let the workers share the folder"
    ):
        pack_project(tmp_path, None)


CONFIG = """\
[agents.echo]
use = "python:./agent.py:agent"
[agents.web]
url = "http://127.0.0.1:9/${PLACE}"
headers.authorization = "Bearer ${WEB_TOKEN}"
"""
CLUSTER = ("--cluster", "tcp://127.0.0.1:9")
ENVIRONMENT = {"PLACE": "suite.jsonl", "WEB_TOKEN": "hidden-4711"}


@pytest.fixture
def project(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    return InProcessProject(folder, capfd)


def refuse_to_send(project: Project, *flags: str) -> str:
    """The message of a run on a cluster that is not there: what is sent is checked first."""
    project.env |= ENVIRONMENT
    ended = project.test("-n", "web", *CLUSTER, *flags)
    assert ended.code == 4, ended
    return ended.err


def test_a_secret_in_a_file_or_an_option_is_not_sent(
    project: Project, shorten: Callable[[str, float], None]
) -> None:  # 17
    shorten("viva.executors.dask_cluster._CONNECT_TIMEOUT_S", 0.3)
    project.write("viva.toml", CONFIG)
    project.suite(case("one"))
    assert "cannot be reached" in refuse_to_send(project)  # the value of PLACE is in files, but it is no secret
    project.write("other.env", "AUTH_MODE=disabled\nTOKEN_LIMIT=agent.py\nDB_PASSWORD=hidden-0815\n")
    project.write("words.md", "AUTH_MODE may be disabled\n")
    assert "cannot be reached" in refuse_to_send(project, "--env-file", "other.env")
    project.write("words.md", "log in with hidden-0815\n")
    assert refuse_to_send(project, "--env-file", "other.env").startswith("words.md:1: holds a secret")
    (project.folder / "words.md").unlink()
    (project.folder / "other.env").unlink()
    project.write("notes/old.md", "first line\nit was hidden-4711 then\n")
    project.write("a.bin", b"\xff\nhidden-4711")
    refused = refuse_to_send(project)
    assert refused.startswith("a.bin:2: holds a secret, and secrets are not sent to a cluster")
    assert "\nnotes/old.md:2: holds a secret" in refused
    assert "hidden" not in refused
    (project.folder / "notes" / "old.md").unlink()
    (project.folder / "a.bin").unlink()
    project.write("viva.toml", CONFIG.replace("${WEB_TOKEN}", "written-down-here"))
    assert refuse_to_send(project).startswith("viva.toml:5: holds a secret")
    project.write("viva.toml", CONFIG)
    project.suite(case("one", "say hidden-4711"), name="../piped.jsonl")
    piped = (project.folder.parent / "piped.jsonl").read_text()
    ended = project.test("-i", "-", "-n", "web", *CLUSTER, input=piped)
    assert "an option or a case of the run holds a secret" in ended.err


def test_files_of_the_run_that_git_ignores_are_named(project: Project) -> None:  # 17
    """Else a worker would say that they do not exist."""
    project.write("viva.toml", CONFIG)
    project.write(".gitignore", "*.jsonl\nagent.py\n")
    project.suite(case("one"))
    git(project.folder, "init", "-q")
    refused = refuse_to_send(project, "-n", "echo").splitlines()
    assert [line.partition(": workers do not get this file: git ignores it")[0] for line in refused] == [
        "suite.jsonl",
        "agent.py",
    ]

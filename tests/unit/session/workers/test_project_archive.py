"""The project as an archive, which a worker stores by its digest."""

import os
import subprocess
import sys
from pathlib import Path

import bubblewrap
from project import Project, case
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

"""bubblewrap: what a command can do inside of it, and what is said where there is none."""

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import bubblewrap
from trial_workspaces import folders, opened, put
from viva.errors import BadInput
from viva.model.case import WorkspaceSpec
from viva.workspace.environment import build_environment
from viva.workspace.folders import TrialWorkspace
from viva.workspace.processes import CommandLimits, find_trial_processes, run_command
from viva.workspace.sandbox import Bubblewrap, find_bubblewrap


@pytest.fixture(scope="module")
def sandbox() -> Bubblewrap | None:
    """None where there cannot be one: `tests/conftest.py` says so, loudly."""
    return find_bubblewrap(os.environ) if bubblewrap.works() else None


async def said(argv: Sequence[str], folder: TrialWorkspace) -> tuple[int, list[str]]:
    env = build_environment(os.environ, folder)
    async with run_command(folder.sandbox_command(argv), cwd=folder.path, env=env) as process:
        lines = [line.decode() async for line in process.lines()]
        code = await process.wait()
        return code, [*lines, *process.stderr_tail.splitlines()]


def test_it_writes_to_its_workspace_and_its_home_and_nowhere_else(sandbox: Bubblewrap | None, tmp_path: Path):
    if sandbox is None:
        return
    host = tmp_path / "host ü"
    put(host, "linked/a.txt", "a")
    put(host, "secret.txt", "secret")
    script = f"""
        echo x > file; echo x > "$HOME/file"; echo x > "$TMPDIR/file"; echo x > linked/b.txt; cat linked/a.txt; echo
        echo x > /etc/viva-was-here || echo system is safe
        echo x > {sys.prefix}/viva-was-here || echo python is safe
        cat '{host}/secret.txt' || echo secret is hidden
        echo x > /tmp/private && echo /tmp is private
        ls /run/user /run/*.sock > /dev/null 2>&1 || echo sockets are hidden
    """

    async def use(folder: TrialWorkspace) -> list[str]:
        _, lines = await said(["sh", "-c", script], folder)
        assert (Path(folder.path) / "file").read_text() == "x\n"
        assert (Path(folder.home) / "file").read_text() == "x\n"
        assert (Path(folder.tmp) / "file").read_text() == "x\n"  # P10
        return [line for line in lines if "viva-was-here" not in line and "secret.txt" not in line]

    spec = WorkspaceSpec("empty", str(host), ("linked",))
    lines = opened(folders(tmp_path / "base ü", sandbox=sandbox), spec, use)
    expected = ["a", "system is safe", "python is safe", "secret is hidden", "/tmp is private", "sockets are hidden"]
    assert lines == expected
    assert (host / "linked/b.txt").read_text() == "x\n"
    assert not Path("/etc/viva-was-here").exists()
    assert not Path("/tmp/private").exists()


def test_a_link_that_meanwhile_leads_elsewhere_is_not_writable(sandbox: Bubblewrap | None, tmp_path: Path):
    """A case that runs at the same time may own the folder above it."""
    if sandbox is None:
        return
    put(tmp_path, "host/linked/a.txt", "a")
    put(tmp_path, "elsewhere/b.txt", "b")

    async def use(folder: TrialWorkspace) -> tuple[int, list[str]]:
        (tmp_path / "host/linked").rename(tmp_path / "host/was-linked")
        (tmp_path / "host/linked").symlink_to(tmp_path / "elsewhere")
        return await said(["sh", "-c", "echo x > linked/b.txt || echo refused"], folder)

    spec = WorkspaceSpec("empty", str(tmp_path / "host"), ("linked",))
    code, lines = opened(folders(tmp_path / "base", sandbox=sandbox), spec, use)
    assert (code, lines[0]) == (0, "refused")
    assert (tmp_path / "elsewhere/b.txt").read_text() == "b"


def test_the_users_home_is_hidden_but_for_programs_installed_there(tmp_path: Path):
    if not bubblewrap.works():
        return
    home = tmp_path / "home"
    put(home, ".ssh/key", "secret")
    put(home, ".tools/bin/hello", f"#!/bin/sh\ncat {home}/.tools/lib/words\n")
    put(home, ".tools/lib/words", "hello\n")
    put(home, "bin/mine", "#!/bin/sh\necho mine\n").chmod(0o755)
    (home / ".tools/bin/hello").chmod(0o755)
    path = f"{home}/.tools/bin:{home}/bin:{os.environ['PATH']}"
    sandbox = find_bubblewrap({"HOME": str(home), "PATH": path})

    async def use(folder: TrialWorkspace) -> list[str]:
        env = {"PATH": path, "HOME": folder.home}
        argv = folder.sandbox_command(["sh", "-c", f"hello; mine; ls -A {home}; cat {home}/.ssh/key || echo hidden"])
        async with run_command(argv, cwd=folder.path, env=env) as process:
            return [line.decode() async for line in process.lines()]

    found = opened(folders(tmp_path / "base", sandbox=sandbox), WorkspaceSpec("empty"), use)
    assert found == ["hello", "mine", ".tools", "bin", "hidden"]


def test_the_network_stays(sandbox: Bubblewrap | None, tmp_path: Path):
    if sandbox is None:
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port})); print('connected')"

        async def use(folder: TrialWorkspace) -> tuple[int, list[str]]:
            return await said([sys.executable, "-c", code], folder)

        assert opened(folders(tmp_path, sandbox=sandbox), WorkspaceSpec("empty"), use) == (0, ["connected"])


def test_a_daemon_inside_ends_with_the_command(sandbox: Bubblewrap | None, tmp_path: Path):
    """P7, in a process namespace of its own."""
    if sandbox is None:
        return

    async def use(folder: TrialWorkspace) -> None:
        script = "setsid sh -c 'trap \"\" TERM; echo ready; while :; do sleep 600; done' & wait"
        env = {"PATH": os.environ["PATH"]}
        async with run_command(
            folder.sandbox_command(["sh", "-c", script]), cwd=folder.path, env=env, limits=CommandLimits(grace_s=0.2)
        ) as process:
            assert await anext(process.lines()) == b"ready"
            assert any(f"-{os.getpid()}-" in mark for mark in find_trial_processes().values())

    opened(folders(tmp_path, sandbox=sandbox), WorkspaceSpec("empty"), use)
    # The kernel ends the processes of a namespace, one after the other, once its first one is killed.
    deadline = time.monotonic() + 60
    while any(f"-{os.getpid()}-" in mark for mark in find_trial_processes().values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_missing_bubblewrap_is_a_clear_error(tmp_path: Path):
    with pytest.raises(BadInput, match=r"--sandbox bwrap: bubblewrap is not installed \(apt install bubblewrap"):
        find_bubblewrap({"PATH": str(tmp_path)})


def test_a_bubblewrap_that_does_not_work_is_none(tmp_path: Path):
    put(tmp_path, "bwrap", "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n").chmod(0o755)
    with pytest.raises(BadInput, match=r"cannot create a sandbox here \(bwrap: No permissions.*user namespaces"):
        find_bubblewrap({"PATH": f"{tmp_path}:/usr/bin:/bin"})


def test_without_a_sandbox_the_command_is_as_it_was(tmp_path: Path):
    async def use(folder: TrialWorkspace) -> list[str]:
        return folder.sandbox_command(["a", "b c"])

    assert opened(folders(tmp_path), WorkspaceSpec("empty"), use) == ["a", "b c"]

"""Agents that work on files, from the command line: checked, reported, cleaned up, replayed, and never outlived."""

import json
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bubblewrap
from project import Ended, Project, remove_measured_times
from trial_workspaces import git, tree
from viva.workspace.processes import find_trial_processes

WRITER = """
from pathlib import Path

def agent(messages, workspace):
    with open({called!r}, "a") as file:
        file.write("x")
    root, said = Path(workspace), messages[-1]["content"]
    assert not (root / "suite.jsonl").exists(), "the agent can read its own test"
    (root / "out").mkdir(exist_ok=True)
    (root / "out" / "größe.txt").write_text(said, encoding="utf-8")
    with (root / "README.md").open("a") as file:
        file.write("more\\n")
    return f"wrote {{said}}"
"""
COMMAND = """
[agents.shell]
type = "command"
command = ["sh", "-c", "{script}"]
"""


def exists(path: str, **more: Any) -> dict[str, Any]:
    return {"type": "file_exists", "path": path, **more}


def holds(path: str, value: str | list[str]) -> dict[str, Any]:
    return {"type": "file_contains", "path": path, "value": value}


@pytest.fixture
def base(project: Project) -> Path:
    """Where the workspaces of the project are made."""
    folder = project.folder.parent / f"{project.folder.name}-tmp ü"
    folder.mkdir()
    project.env["TMPDIR"] = str(folder)
    return folder


@pytest.fixture
def repository(project: Project, base: Path) -> Project:
    """A project whose agent writes files."""
    project.write("agent.py", WRITER.format(called=str(base / "called")))
    project.write("README.md", "hello\n")
    project.write(".gitignore", "ignored/\n")
    project.write("ignored/x", "")
    project.write("checks.py", "def fine(output):\n    return True\n")
    git(project.folder, "init")
    return project


def workspaces(base: Path) -> list[Path]:
    return [path for path in base.iterdir() if path.name.startswith("viva-")]


TWO_TURNS = {
    "id": "two turns",
    "turns": [
        {"input": "one", "assertions": [exists("out/größe.txt"), holds("README.md", ["hello", "more"])]},
        {"input": "two", "assertions": [holds("out/größe.txt", "two"), exists("ignored/x", negate=True)]},
    ],
    "final_assertions": [exists("out"), {"type": "script", "use": "scripts:checks.fine"}],
}


def test_files_of_an_agent_are_checked_and_its_changes_are_in_the_report(repository: Project, base: Path):
    """N25, P4, P5: it works on a copy, which is gone afterwards."""
    repository.suite(TWO_TURNS)
    _, (record,) = repository.report(code=0)
    assert [change["path"] for change in record["turns"][0]["files"]] == ["README.md", "out/größe.txt"]
    assert record["turns"][0]["files"][0] == {
        "path": "README.md",
        "change": "changed",
        "diff": "@@ -1 +1,2 @@\n hello\n+more",
    }
    assert record["turns"][1]["files"][1]["diff"] == "@@ -1 +1 @@\n-one\n+two"
    assert "live" not in record["final_assertions"][1]
    assert (repository.folder / "README.md").read_text() == "hello\n"
    assert workspaces(base) == []


def test_a_workspace_is_kept_where_the_case_failed(repository: Project, base: Path):
    """P5."""
    repository.suite({"id": "bad/one", "input": "x", "assertions": [exists("nowhere.txt")]})
    ended, (record,) = repository.report(code=1)
    assert record["turns"][0]["assertions"][0]["reason"] == '"nowhere.txt" is not there'
    kept = Path(record["workspace"])
    assert kept.parent.name.startswith("viva-bad-one-")
    assert (kept / "out/größe.txt").read_text(encoding="utf-8") == "x"
    assert record["workspace"] in ended.out
    repository.suite({"id": "good", "input": "x", "assertions": [exists("out")]})
    repository.test()
    assert workspaces(base) == [kept.parent]  # never swept
    _, (record,) = repository.report("--keep-workspace")
    assert (Path(record["workspace"]) / "out").is_dir()


def test_paths_that_leave_the_workspace_are_refused_before_anything_runs(repository: Project, base: Path):
    repository.suite(
        {"id": "a", "input": "x", "assertions": [exists("/etc/passwd"), holds("../x", "y"), holds("f", "")]},
        {"id": "b", "input": "x", "assertions": [exists("../{{name}}")]},
    )
    ended = repository.test(code=4)
    for place, what in (("0", "'/etc/passwd' must be relative"), ("1", "'../x' must be relative"), ("2", "is empty")):
        assert f"suite.jsonl:1: $.assertions[{place}]: " in ended.err
        assert what in ended.err
    assert not (base / "called").exists()


def test_a_replay_puts_the_files_there_again_and_needs_no_agent(repository: Project, base: Path):
    """The report is the same to the letter; what looks elsewhere is marked as such in both."""
    repository.suite(TWO_TURNS, {"id": "fails", "input": "x", "assertions": [exists("nowhere.txt")]})
    assert repository.test("--record", "t.cassette", "-o", "live.jsonl", "--parallel", "2").code == 1
    assert len((base / "called").read_text()) == 3
    repository.write("README.md", "the repository goes on\n")
    assert repository.test("--replay", "t.cassette", "-o", "again.jsonl").code == 1
    assert len((base / "called").read_text()) == 3
    live, again = (remove_measured_times(repository.records(name)) for name in ("live.jsonl", "again.jsonl"))
    assert again == live
    final = again[0]["final_assertions"]
    assert (final[1]["live"], final[1]["label"]) == (True, 'script "scripts:checks.fine" (ran live)')
    assert "live" not in final[0]
    assert "file out/größe.txt" in repository.viva("cassette", "show", "t.cassette", "two turns").out


def test_a_replay_in_place_leaves_the_place_alone(repository: Project):
    text = "import os\ndef agent(messages, workspace):\n    os.makedirs(workspace + '/out')\n    return 'done'\n"
    repository.write("agent.py", text)
    repository.suite({"id": "a", "input": "x", "assertions": [exists("out")]})
    flags = ("--workspace", "cwd")
    assert repository.test(*flags, "--record", "t.cassette").code == 0
    (repository.folder / "out").rmdir()
    assert repository.test(*flags, "--replay", "t.cassette").code == 0
    assert not (repository.folder / "out").exists()


def of(base: Path) -> list[int]:
    """The living processes that were started by a Viva whose workspaces are there."""
    found: list[int] = []
    for pid in find_trial_processes():
        try:
            if f"\0TMPDIR={base}/viva-".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def gone(pids: list[int]) -> bool:
    """Waits for the end of processes that are no children of ours."""
    for pid in pids:
        try:
            file = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([file], [], [], 30)[0]:
                return False
        finally:
            os.close(file)
    return True


def started(project: Project, base: Path, *flags: str) -> Any:
    """`viva test`, once its agent has started a daemon."""
    os.mkfifo(base / "ready")
    ready = os.open(base / "ready", os.O_RDONLY | os.O_NONBLOCK)
    process = project.start("test", "-i", "suite.jsonl", *flags)
    try:
        assert select.select([ready], [], [], 30)[0], "the agent did not start"
    finally:
        os.close(ready)
    return process


@pytest.fixture
def daemon(project: Project, base: Path) -> tuple[str, str]:
    """An agent that forks a process away, which does not listen to TERM."""
    project.suite({"id": "a", "input": "x", "assertions": [exists("a")]})
    loop = "trap '' TERM; while :; do sleep 600; done"
    script = project.write("agent.sh", f'setsid sh -c "{loop}" 2> /dev/null &\necho > "{base}/ready"\nwait\n')
    project.write("viva.toml", COMMAND.format(script=f". '{script}'"))
    return ("-n", "shell")


def test_no_process_is_left_after_a_timeout(project: Project, base: Path, daemon: tuple[str, str]):
    """P7."""
    process = started(project, base, *daemon, "--turn-timeout", "1s")
    assert of(base)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1, out + err
    assert "timeout after 1s" in out
    assert of(base) == []


def test_no_process_is_left_after_ctrl_c(project: Project, base: Path, daemon: tuple[str, str]):
    process = started(project, base, *daemon)
    family = of(base)
    assert family
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 2
    assert gone(family)
    assert workspaces(base) == []


@pytest.mark.process
def test_no_process_is_left_when_viva_is_killed_and_its_workspace_is_removed_later(
    project: Project, base: Path, daemon: tuple[str, str]
):
    process = started(project, base, *daemon)
    family = of(base)
    (left,) = workspaces(base)
    process.kill()
    process.communicate(timeout=300)
    assert gone(family)
    assert left.is_dir()
    project.suite({"id": "b", "input": "x", "assertions": [exists("b")]})
    project.write("viva.toml", COMMAND.format(script="touch b"))
    assert project.test(agent="shell").code == 0
    assert workspaces(base) == []


def test_a_command_in_a_sandbox_reaches_its_workspace_and_not_the_project(project: Project, base: Path):
    if not bubblewrap.works():
        return
    script = f"touch inside; touch {project.folder}/outside || echo refused"
    project.write("viva.toml", COMMAND.format(script=script))
    project.suite({"id": "a", "input": "x", "assertions": [exists("inside"), {"type": "contains", "value": "refused"}]})
    project.test("--sandbox", "bwrap", agent="shell", code=0)
    assert not (project.folder / "outside").exists()


CHAT = """
import asyncio, viva

async def main():
    async with viva.Conversation("called") as chat:
        await chat.say("x")

asyncio.run(main())
"""


@pytest.mark.parametrize("sandbox", ["bwrap", None])
def test_what_has_no_workspace_of_its_own_is_confined_too(sandbox: str | None, project: Project, base: Path):
    """P10: a judge that is a command, and calls from a hook, a script test and a program."""
    if not bubblewrap.works():
        return
    outside = project.folder / "outside"
    outside.mkdir()
    said = json.dumps({"passed": True, "reason": "x", "evidence": []}).replace('"', '\\"')
    script = f"touch {outside}/by-$0; cat > /dev/null; echo '{said}'"
    config = f'[defaults]\nsandbox = "{sandbox}"\n' if sandbox else ""
    for name in ("agent", "judge", "called"):
        config += f'[agents.{name}]\ntype = "command"\ncommand = ["sh", "-c", "{script}", "{name}"]\n'
    project.write("viva.toml", config)
    project.write("hooks.py", "def before(ctx, case):\n    ctx.call('called', 'x')\n    return {}\n")
    test = "def test_it(t, ctx):\n    t.assert_.Contains(ctx.call('called', 'x').content, 'passed')\n"
    project.write("script.py", test)
    assertion = {"type": "agent", "use": "agents:judge", "criteria": "it works"}
    project.suite({"id": "a", "input": "x", "assertions": [assertion], "before": "hooks:before"})

    def written(*ended: int) -> set[str]:
        assert ended in ((), (0,)), ended
        found = {path.name for path in outside.iterdir()}
        for path in outside.iterdir():
            path.unlink()
        return found

    project.test(agent="agent")
    assert written() == (set() if sandbox else {"by-agent", "by-judge", "by-called"})
    assert written(project.test("-i", "scripts:script", agent="agent").code) == (set() if sandbox else {"by-called"})
    program = project.write("chat.py", CHAT)
    chat = subprocess.run([sys.executable, program], cwd=project.folder, env=project.env, check=False)
    assert written(chat.returncode) == (set() if sandbox else {"by-called"})


NOSY = """#!/bin/sh
touch {outside}/by-its-version
test -e {outside}/kept || rm -rf ./* "$HOME"/* "$TMPDIR"/*  # never where the host can be seen
echo 0.61.0
"""


def test_a_version_is_asked_for_in_a_sandbox_too(project: Project, base: Path):
    """P10: by `viva agents`, and before the first turn."""
    if not bubblewrap.works():
        return
    outside = project.folder / "outside"
    program = project.write("bin/gemini", NOSY.format(outside=outside))
    program.chmod(0o755)
    project.write("outside/kept", "")
    project.write("viva.toml", '[defaults]\nsandbox = "bwrap"\n')
    project.suite({"id": "a", "input": "x", "assertions": [exists("a")]})
    env = {"GEMINI_API_KEY": "k-123456", "PATH": f"{program.parent}:{project.env['PATH']}"}
    before = tree(project.folder)
    assert "✓ gemini  0.61.0" in project.viva("agents", env=env).out
    _, (record,) = project.report("--no-history", agent="gemini", env=env)
    assert (record["status"], record["fault"]) == ("failed", "agent")
    assert {name: held for name, held in tree(project.folder).items() if name != "report.jsonl"} == before


def test_a_replay_of_a_command_needs_no_command(project: Project, base: Path):
    """Neither the program nor what it was told: the cassette has it all."""
    tool = project.write("bin/tool", "#!/bin/sh\necho data > made.txt\necho done\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    project.env["PATH"] = f"{project.folder / 'bin'}{os.pathsep}{project.env['PATH']}"
    project.write("viva.toml", '[agents.tool]\ntype = "command"\ncommand = ["tool"]\n')
    project.suite({"id": "a", "input": "x", "assertions": [holds("made.txt", "data")]})
    assert project.test("--record", "t.cassette", "-o", "live.jsonl", agent="tool").code == 0
    tool.unlink()
    project.test("--replay", "t.cassette", "-o", "again.jsonl", agent="tool", code=0)
    live, again = (remove_measured_times(project.records(name)) for name in ("live.jsonl", "again.jsonl"))
    assert again == live


def test_interrupted_runs_say_so(interrupted: Callable[..., Ended], project: Project, base: Path):
    """A Python agent that hangs in its workspace: nothing of it is left either."""
    project.write(
        "agent.py",
        "import sys, time\ndef agent(messages, workspace):\n    print('READY', flush=True)\n    time.sleep(600)\n",
    )
    project.suite({"id": "a", "input": "x", "assertions": [exists("a")]})
    ended = interrupted("READY", "-i", "suite.jsonl", "-n", "python:./agent.py:agent")
    assert ended.code == 2, ended
    assert workspaces(base) == []


def kept_by(project: Project, base: Path, case_id: str, *flags: str) -> Path:
    """A run that fails and so keeps its workspace."""
    project.write("viva.toml", COMMAND.format(script="touch made; chmod 500 ."))
    project.suite({"id": case_id, "input": "x", "assertions": [exists("other")]})
    before = set(workspaces(base))
    assert project.test(*flags, agent="shell").code == 1
    (new,) = set(workspaces(base)) - before
    assert (new / "work" / "made").exists()
    return new


def test_removing_a_run_removes_the_workspaces_that_it_kept(project: Project, base: Path):
    first, second = (kept_by(project, base, name) for name in ("one", "two"))
    assert project.viva("runs", "rm", "latest").code == 0
    assert workspaces(base) == [first]
    assert not second.exists()
    assert project.viva("runs", "gc", "--keep", "0").code == 0
    assert workspaces(base) == []


def test_kept_workspaces_can_be_removed_alone(project: Project, base: Path):
    first, second = (kept_by(project, base, name) for name in ("one", "two"))
    cleaned = project.viva("runs", "clean", "latest")
    assert (cleaned.code, workspaces(base)) == (0, [first]), cleaned
    assert f"removed {second}/work" in cleaned.out
    unlisted = kept_by(project, base, "three", "--no-history")
    assert project.viva("runs", "clean").out.endswith("removed 1 workspace\n")
    assert workspaces(base) == [unlisted]
    assert project.viva("runs", "clean", "--all").out.endswith("removed 1 workspace\n")
    assert workspaces(base) == []
    assert len(project.viva("runs").out.splitlines()) == 1 + 2  # the runs stay


def test_only_kept_workspaces_are_removed(project: Project, base: Path):
    """The folder in which a case worked in place, one without the marker, and one that a link leads to."""
    project.write("viva.toml", COMMAND.format(script="touch made"))
    project.suite({"id": "a", "input": "x", "assertions": [exists("other")]})
    assert project.test("--workspace", "cwd", agent="shell").code == 1
    assert project.viva("runs", "clean").out == "removed 0 workspaces\n"
    assert (project.folder / "made").exists()
    mine = kept_by(project, base, "b")
    (mine / ".viva-kept").unlink()
    (mine / ".viva-kept").symlink_to(project.folder / "viva.toml")
    assert project.viva("runs", "clean").out == "removed 0 workspaces\n"
    (mine / ".viva-kept").unlink()
    assert project.viva("runs", "clean", "--all").out == "removed 0 workspaces\n"
    assert project.viva("runs", "rm", "latest").code == 0
    assert (mine / "work" / "made").exists()

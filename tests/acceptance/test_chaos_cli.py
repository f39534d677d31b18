"""Hostile agents that are processes: they delete, fork, flood, fill their disk, print garbage and leave without a word.

Everything runs in a root that is thrown away: bubblewrap shows the machine read-only, with a small disk for what is
temporary. There a suite is run whose every second case is harmless. Whatever a hostile case does, it has an outcome of its
own, the others pass, and nothing changes outside of its folders.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bubblewrap
from project import Project
from trial_workspaces import put, tree

DISK_BYTES = 48_000_000
HOSTILE = '''#!{python}
import json, os, shutil, signal, subprocess, sys

OUTSIDE = {outside!r}
KIND = {kind!r}


def delete(where):
    for path in where:
        shutil.rmtree(path, ignore_errors=True)
        try:
            with open(os.path.join(path, "was-here"), "w") as file:
                file.write("x")
        except OSError:
            pass


def act(word):
    """What the reply is; None to leave without one."""
    own = [os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"], os.path.dirname(os.getcwd())]
    match word:
        case "delete":
            delete(own + OUTSIDE)
        case "fork":
            for _ in range(30):
                subprocess.Popen(["sleep", "600"], start_new_session=True, env={{}})
        case "fill":
            for folder in (".", os.environ["HOME"], os.environ["TMPDIR"]):
                try:
                    with open(folder + "/filler", "wb") as file:
                        while True:
                            file.write(bytes(1000000))
                            file.flush()
                except OSError as full:
                    print(full, file=sys.stderr)
        case "flood":
            line = b"x" * 1000 + b"\\n"
            try:
                for _ in range(80000):
                    sys.stdout.buffer.write(line)
                    sys.stderr.buffer.write(line)
            except OSError:
                pass
            return None
        case "garbage":
            for junk in (b"\\x00\\xff\\xfe\\x80" * 1000, b"[" * 100000, b'{{"type": "result"', b"\\n", "\\ud800".encode("utf-8", "surrogatepass")):
                sys.stdout.buffer.write(junk + b"\\n")
                sys.stderr.buffer.write(junk + b"\\n")
            return None
        case "leave":
            return None
    return "done " + word


def say(**message):
    print(json.dumps(message), flush=True)


def tell_claude(said):
    say(type="system", subtype="init", session_id="s")
    say(type="assistant", message={{"id": "m", "role": "assistant", "content": [{{"type": "text", "text": said}}]}})
    say(type="result", subtype="success", is_error=False, result=said, session_id="s")


def tell_codex(said):
    say(type="thread.started", thread_id="s")
    say(type="item.completed", item={{"id": "i", "type": "agent_message", "text": said}})
    say(type="turn.completed", usage={{"input_tokens": 1, "output_tokens": 1}})


def tell_opencode(said):
    say(type="step_start", sessionID="s", part={{"type": "step-start"}})
    say(type="text", sessionID="s", part={{"id": "p", "type": "text", "text": said, "time": {{"start": 1, "end": 2}}}})
    say(type="step_finish", sessionID="s", part={{"type": "step-finish", "reason": "stop", "tokens": {{"input": 1, "output": 1}}}})


TELL = {{"claude": tell_claude, "qwen": tell_claude, "codex": tell_codex, "opencode": tell_opencode}}


def acp():
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") != "session/prompt":
            if "id" in message:
                say(jsonrpc="2.0", id=message["id"], result={{"sessionId": "s"}})
            continue
        said = act(message["params"]["prompt"][0]["text"])
        if said is None:
            return
        chunk = {{"sessionUpdate": "agent_message_chunk", "content": {{"type": "text", "text": said}}}}
        say(jsonrpc="2.0", method="session/update", params={{"sessionId": "s", "update": chunk}})
        say(jsonrpc="2.0", id=message["id"], result={{"stopReason": "end_turn"}})


if KIND == "acp":
    acp()
elif KIND == "command":
    print(act(sys.stdin.read().split()[-1]) or "")
elif KIND in TELL:
    said = act(sys.stdin.read().split()[-1])
    if said is not None:
        TELL[KIND](said)
else:
    if sys.argv[1:] == ["--version"]:
        act("delete")
        act("fork")
        print("99.0.0")
        sys.exit()
    prompt = next(word for word in sys.argv if word.startswith("--prompt="))[len("--prompt="):]
    say(type="init", session_id="s")
    said = act(prompt)
    if said is not None:
        say(type="message", role="assistant", content=said)
        say(type="result", status="success")
'''
INSIDE = """
import json, os, subprocess, sys
from pathlib import Path
from viva.workspace.processes import find_trial_processes

code = subprocess.run([sys.executable, "-m", "viva", *sys.argv[1:]], check=False).returncode
mine = os.getpid()
left = [p for p in map(int, filter(str.isdecimal, os.listdir("/proc"))) if p not in (1, mine)]
commands = [Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace") for pid in left]
temporary = sorted("/".join(Path(p).relative_to(os.environ["TMPDIR"]).parts[1:]) for p in Path(os.environ["TMPDIR"]).glob("*/*"))
Path("after.json").write_text(json.dumps({"code": code, "left": commands, "temporary": temporary}))
"""
STREAMS = ("claude", "codex", "qwen", "opencode")
"""CLIs whose stream a command of the config prints."""
AGENTS = """
[agents.command]
type = "command"
command = ["{program}"]
[agents.acp]
type = "acp"
command = ["{program}"]
""" + "".join(f'[agents.{name}]\ntype = "command"\ncommand = ["{{program}}"]\noutput = "{name}"\n' for name in STREAMS)
DEEDS = ("delete", "fork", "fill", "flood", "garbage", "leave")


class Arena:
    """A project in a throw-away root, with a hostile agent of one kind."""

    def __init__(self, folder: Path, kind: str, sandbox: str) -> None:
        self.project = Project(folder / "project")
        self.outside = folder / "outside"
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.kind, self.sandbox = kind, sandbox
        put(self.outside, "kept.txt", "kept")
        # Without a sandbox it could delete more than its own folders, so it is not asked to.
        reach = [str(self.outside), str(self.project.folder), "/etc", "/var", "/home"] if sandbox == "bwrap" else []
        program = folder / "programs/bin" / ("gemini" if kind == "gemini" else "hostile")
        put(
            program.parent,
            program.name,
            HOSTILE.format(python=os.path.realpath(sys.executable), outside=reach, kind=kind),
        ).chmod(0o755)
        self.project.write("viva.toml", AGENTS.format(program=program))
        self.project.write("inside.py", INSIDE)
        home = folder / "home"
        home.mkdir()
        self.writable = (self.project.folder, self.outside, home)
        self.project.env |= {
            "HOME": str(home),
            "TMPDIR": str(self.disk),
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "GEMINI_API_KEY": "key-123456",
        }
        self.after: dict[str, Any] = {}

    def run(self, *cases: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The records by id. `after` then tells what was left."""
        self.project.suite(*cases)
        binary = shutil.which("bwrap")
        assert binary is not None
        root = [binary, "--unshare-pid", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        root += ["--size", str(DISK_BYTES), "--tmpfs", str(self.disk)]
        for folder in self.writable:
            root += ["--bind", str(folder), str(folder)]
        flags = [
            "-i",
            "suite.jsonl",
            "-n",
            self.kind,
            "--sandbox",
            self.sandbox,
            "--parallel",
            "1",
            "-o",
            "report.jsonl",
        ]
        flags += ["--workspace", "empty"]
        command = [*root, "--", sys.executable, "inside.py", "test", *flags]
        ended = subprocess.run(
            command,
            cwd=self.project.folder,
            env=self.project.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        self.after = json.loads((self.project.folder / "after.json").read_text(encoding="utf-8"))
        self.said = ended.stdout + ended.stderr
        return {record["id"]: record for record in self.project.records()}

    def untouched(self) -> dict[str, Any]:
        """All that must not change, as it stands."""
        ours = (".viva", "report.jsonl", "after.json")
        held = {str(folder): tree(folder) for folder in self.writable}
        project = held[str(self.project.folder)]
        held[str(self.project.folder)] = {name: each for name, each in project.items() if not name.startswith(ours)}
        return held


def case(word: str, *more: str) -> dict[str, Any]:
    turns = [{"input": said, "assertions": [{"type": "equals", "value": f"done {said}"}]} for said in (word, *more)]
    return {"id": word, "turns": turns}


@pytest.fixture
def cases() -> list[dict[str, Any]]:
    """Each deed, and after each of them a case that is harmless."""
    found = [case("hello")]
    for at, deed in enumerate(DEEDS):
        found += [case(deed, "again") if deed == "delete" else case(deed), {**case("hello"), "id": f"harmless-{at}"}]
    return found


@pytest.mark.parametrize(
    ("kind", "sandbox"),
    [*((kind, sandbox) for kind in ("gemini", "command", "acp") for sandbox in ("bwrap", "none")),
     *((kind, "bwrap") for kind in STREAMS)],
)  # fmt: skip
def test_a_chaotic_agent_affects_only_its_own_outcome(
    kind: str, sandbox: str, tmp_path: Path, cases: list[dict[str, Any]]
):
    """P7, P10, P11, N17."""
    if not bubblewrap.works():
        return
    arena = Arena(tmp_path, kind, sandbox)
    arena.project.suite(*cases)
    before = arena.untouched()
    records = arena.run(*cases)
    assert list(records) == [each["id"] for each in cases], arena.said
    harmless = {name: record["status"] for name, record in records.items() if name not in DEEDS}
    assert set(harmless.values()) == {"passed"}, (harmless, arena.said)
    outcomes = {deed: (records[deed]["status"], records[deed].get("fault")) for deed in DEEDS}
    # In a sandbox its folders are mounted, and stay; else it finds no folder to work in at the next turn.
    deleted = "passed" if sandbox == "bwrap" else "failed"
    assert outcomes == {
        "delete": (deleted, None if deleted == "passed" else "agent"),
        "fork": ("passed", None),
        "fill": ("passed", None),
        "flood": ("failed", "agent"),
        "garbage": ("failed", "agent"),
        "leave": ("failed", "agent"),
    }, (records, arena.said)
    assert arena.after["code"] == 1
    assert arena.after["left"] == []
    assert set(arena.after["temporary"]) <= {
        "work",
        ".viva-kept",
    }  # what is kept to be looked at has neither HOME nor TMPDIR
    assert arena.untouched() == before
    assert "[" * 100 not in arena.said

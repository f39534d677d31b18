"""A project folder in which tests run `viva`, as a process or in this process."""

import io
import json
import os
import pty
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from viva import catalog
from viva.cli.main import main

ECHO = "def agent(messages, options):\n    return messages[-1]['content']\n"
HANGING = """
import asyncio, time

def sleeps(): time.sleep(600)

def spins():
    while True: pass

def clings():
    while True:
        try: time.sleep(0.01)
        except BaseException: pass

async def waits(): await asyncio.sleep(600)

def agent(messages):
    return globals()[messages[-1]["content"]]()

class SlowToMake:
    def __init__(self): time.sleep(600)
    def reply(self, messages): return "never"
"""
"""Functions of an agent that hang in different ways; the message names the function."""


class Ended:
    """The exit code and output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Project:
    """A folder in which `viva` runs as a process. `agent.py` holds an agent that echoes, so a test needs to add only a suite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("VIVA", "OPENAI", "NO_COLOR", "FORCE_COLOR", "COLUMNS"))
        }
        self.write("agent.py", ECHO)

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def suite(self, *cases: Mapping[str, Any], name: str = "suite.jsonl") -> str:
        """Write cases as JSON lines and return the file name."""
        self.write(name, "".join(json.dumps(case) + "\n" for case in cases))
        return name

    def start(self, *arguments: str, **kwargs: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "viva", *arguments],
            cwd=self.folder,
            env=self.env | kwargs.pop("env", {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE if "input" in kwargs else subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            **{key: value for key, value in kwargs.items() if key != "input"},
        )

    def run_on_terminal(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        """Run a command as a process on a terminal of its own."""
        mine, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "viva", *arguments],
            cwd=self.folder,
            env=self.env | {"TERM": "xterm-256color"} | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        pieces: list[bytes] = []
        with suppress(OSError):  # how Linux says that the other side has closed
            while select.select([mine], [], [], 120)[0] and (piece := os.read(mine, 65536)):
                pieces.append(piece)
        process.wait(timeout=300)
        os.close(mine)
        return Ended(process.returncode, b"".join(pieces).decode(), "")

    @property
    def as_process(self) -> "Project":
        """The same project. Its commands run as real processes."""
        project = Project.__new__(Project)
        project.folder, project.env = self.folder, self.env
        return project

    def viva(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002
        timeout_s: float = 300,
        code: int | None = None,
        **kwargs: Any,
    ) -> Ended:
        """Run a command. Fails if the exit code is not `code`, if one is given."""
        ended = self._run(arguments, input, timeout_s, kwargs)
        assert code in (None, ended.code), ended
        return ended

    def _run(self, arguments: Sequence[str], text: str | None, timeout_s: float, kwargs: dict[str, Any]) -> Ended:
        process = self.start(*arguments, **({"input": True} if text is not None else {}), **kwargs)
        try:
            out, err = process.communicate(text, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return Ended(process.returncode, out, err)

    def test(self, *arguments: str, agent: str | None = "python:./agent.py:agent", **kwargs: Any) -> Ended:
        """Run `viva test` on the suite of this project, unless the arguments name another input."""
        inputs = [] if "-i" in arguments else ["-i", "suite.jsonl"]
        agents = [] if agent is None or "-n" in arguments else ["-n", agent]
        return self.viva("test", *inputs, *agents, *arguments, **kwargs)

    def report(self, *arguments: str, **kwargs: Any) -> tuple[Ended, list[dict[str, Any]]]:
        """Run `test` and return its result with the records of its JSONL report."""
        ended = self.test(*arguments, "-o", "report.jsonl", **kwargs)
        return ended, self.records()

    def list_runs(self) -> list[dict[str, Any]]:
        """What `viva runs --json` prints, newest first."""
        return [json.loads(line) for line in self.viva("runs", "--json").out.splitlines()]

    def find_journal(self) -> Path:
        """The journal of the only run."""
        (journal,) = (self.folder / ".viva" / "runs").glob("*/journal.jsonl")
        return journal

    def run_passing(self, *arguments: str, **kwargs: Any) -> list[str]:
        """Run `test`, in which every case has to pass, and return the ids of the cases in the order of the report."""
        _, records = self.report(*arguments, **kwargs, code=0)
        return [record["id"] for record in records]

    def records(self, name: str = "report.jsonl") -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


class InProcessProject(Project):
    """A project that runs `viva` in this process. `start` still starts a process.

    A test needs a real process for a terminal, signals, kill -9, limits, or the exit code of the interpreter. Either it is
    marked `process`, or `project.as_process` runs that command.
    """

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder)
        self._capture = capture

    def _run(self, arguments: Sequence[str], text: str | None, timeout_s: float, kwargs: dict[str, Any]) -> Ended:
        env = self.env | kwargs.pop("env", {})
        assert not kwargs, (
            "these arguments need a real process: use `project.as_process`, or mark the test with `process`"
        )
        self._capture.readouterr()
        with self._surroundings(env, text or ""), pytest.raises(SystemExit) as exit_:
            main(arguments)
        output = self._capture.readouterr()
        return Ended(int(exit_.value.code or 0), output.out, output.err)

    @contextmanager
    def _surroundings(self, env: Mapping[str, str], text: str) -> Generator[None]:
        """Set folder, environment and standard input, and undo that afterwards, with modules imported from the folder."""
        folder, environ, stdin = Path.cwd(), dict(os.environ), sys.stdin
        path = list(sys.path)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(env)
        sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
        tempfile.tempdir = None  # it caches TMPDIR
        try:
            yield
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environ)
            tempfile.tempdir = None
            catalog.forget_modules(str(self.folder))
            sys.stdin, sys.path[:] = stdin, path


def contains(value: str) -> dict[str, Any]:
    return {"type": "contains", "value": value}


def case(case_id: str, said: str = "hello", **fields: Any) -> dict[str, Any]:
    """Return a case that passes with an agent that echoes."""
    return {"id": case_id, "input": said, "assertions": [contains(said)], **fields}


def remove_times(value: Any) -> Any:
    """A record without what differs between two runs of the same agent."""
    return _remove_keys(value, lambda key: key.endswith("_ms") or key in ("started_at", "session_id"))


def remove_measured_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what differs between a run and its replay. The durations of replies are replayed, those of checks not."""
    own = ("started_at", "session_id", "start_ms", "checks_ms", "workspace", "metadata")
    rest = _remove_keys(records, own.__contains__)
    for record in rest:
        for result in (*record["final_assertions"], *(each for turn in record["turns"] for each in turn["assertions"])):
            result.pop("duration_ms", None)
    return rest


def _remove_keys(value: Any, is_removed: Callable[[str], bool]) -> Any:
    if isinstance(value, dict):
        return {key: _remove_keys(item, is_removed) for key, item in value.items() if not is_removed(key)}
    return [_remove_keys(item, is_removed) for item in value] if isinstance(value, list) else value

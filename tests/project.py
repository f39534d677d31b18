"""The command line as a user has it: a folder with files, and `viva` as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ECHO = "def agent(messages, options):\n    return messages[-1]['content']\n"


class Ended:
    """How a command ended, and all that it said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Project:
    """A folder in which `viva` is run. An echoing agent stands in `agent.py`, so a suite is all that a test must add."""

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
        """Writes cases one a line, and gives the name back."""
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

    def viva(self, *arguments: str, input: str | None = None, timeout_s: float = 60, **kwargs: Any) -> Ended:  # noqa: A002
        process = self.start(*arguments, **({"input": True} if input is not None else {}), **kwargs)
        try:
            out, err = process.communicate(input, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return Ended(process.returncode, out, err)

    def test(self, *arguments: str, agent: str | None = "python:./agent.py:agent", **kwargs: Any) -> Ended:
        """`viva test` on the suite of this project, unless the arguments name another input."""
        asked = [] if "-i" in arguments else ["-i", "suite.jsonl"]
        named = [] if agent is None or "-n" in arguments else ["-n", agent]
        return self.viva("test", *asked, *named, *arguments, **kwargs)

    def report(self, *arguments: str, **kwargs: Any) -> tuple[Ended, list[dict[str, Any]]]:
        """The same, with the records of its JSONL report."""
        ended = self.test(*arguments, "-o", "report.jsonl", **kwargs)
        return ended, self.records()

    def records(self, name: str = "report.jsonl") -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def contains(value: str) -> dict[str, Any]:
    return {"type": "contains", "value": value}


def case(case_id: str, said: str = "hello", **fields: Any) -> dict[str, Any]:
    """A case that passes with an agent that echoes."""
    return {"id": case_id, "input": said, "assertions": [contains(said)], **fields}

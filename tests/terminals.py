"""Fake CLIs, which are real programs run as real processes, and conversations with them: for tests of terminal agents."""

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from viva.agents.cli.cli_agent import CliAgent
from viva.agents.cli.command import CommandConfig
from viva.agents.cli.events import CliEvent, CliTurn
from viva.config import Settings
from viva.llm.transport import HttpTransport
from viva.model.case import Key, WorkspaceSpec
from viva.model.message import Message, ModelCall, Reply
from viva.protocols import SessionContext
from viva.session.agents import ProjectAgentSetup
from viva.session.connectors import ConnectorLookup
from viva.workspace.folders import LocalWorkspaces

CAPTURES = Path(__file__).parent / "captures"
"""Streams of the real CLIs."""

_HEAD = """#!{python}
import json, os, signal, subprocess, sys, time
args = sys.argv[1:]
if args == ["--version"]:
    print({version!r})
    sys.exit()
def option(name):
    return next((a.partition("=")[2] for a in args if a.startswith(name + "=")), None)
def say(**line):
    print(json.dumps(line), flush=True)
def play(file, **changed):
    for line in open(file, "rb"):
        for old, new in changed.items():
            line = line.replace(old.encode(), new.encode())
        sys.stdout.buffer.write(line)
    sys.stdout.flush()
"""


def collect_turn(events: Iterable[CliEvent], previous_usage: Sequence[ModelCall] = ()) -> CliTurn:
    turn = CliTurn(previous_usage)
    for event in events:
        turn.add_event(event)
    return turn


def fake(folder: Path, name: str, body: str, version: str = "99.1.0") -> Path:
    """Writes an executable program of that name. Its body can use `args`, `option(name)`, `say(**line)` and `play(file)`."""
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    path.write_text(_HEAD.format(python=sys.executable, version=version) + body, encoding="utf-8")
    path.chmod(0o755)
    return path


def host(folder: Path, **more: str) -> dict[str, str]:
    """An environment whose PATH has only the fake programs."""
    return {"PATH": f"{folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(folder), **more}


def command_agent(host: Mapping[str, str] | None = None, **fields: Any) -> CliAgent:
    """The agent of an entry `type = "command"`."""
    settings = Settings(folder=Path(), environ=host or {})
    setup = ProjectAgentSetup("a", Path(), settings, ConnectorLookup(settings, needs_keys=False))
    return CommandConfig(**fields).build(setup)


class HeldConversation(Struct):
    """The result of a conversation, and the content of its folders before they were removed."""

    replies: list[Reply]
    metered: list[ModelCall]
    home: dict[str, str]
    warnings: list[str]

    @property
    def reply(self) -> Reply:
        return self.replies[-1]


def hold_conversation(
    agent: Any,
    *said: str | Message,
    options: Mapping[str, Any] | None = None,
    spec: WorkspaceSpec | None = None,
    history: tuple[Message, ...] = (),
    limit_s: float | None = None,
) -> HeldConversation:
    """Sends all lines in one session, in a new workspace."""
    metered: list[ModelCall] = []
    replies: list[Reply] = []
    home: dict[str, str] = {}
    warnings: list[str] = []

    async def scenario() -> None:
        async with LocalWorkspaces()(spec or WorkspaceSpec("empty"), Key("s", "c")) as workspace:
            context = SessionContext(
                key=Key("s", "c"), workspace=workspace, history=history, meter=metered.append, http=HttpTransport()
            )
            async with asyncio.timeout(limit_s), agent.open(context) as session:
                for line in said:
                    message = Message("user", line) if isinstance(line, str) else line
                    replies.append(await session.send(message, options or {}))
            warnings.extend(context.progress.warnings)
            for path in Path(workspace.home).rglob("*"):
                if path.is_file():
                    home[str(path.relative_to(workspace.home))] = path.read_text(encoding="utf-8", errors="replace")

    asyncio.run(scenario())
    return HeldConversation(replies, metered, home, warnings)

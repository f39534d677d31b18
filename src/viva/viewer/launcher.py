"""Starts runs from the page: each is `viva test` in a process.

The page can choose files of the project, and agents and inputs of the config or of earlier runs, so it cannot run new code.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from viva import config
from viva.errors import BadInput
from viva.history.index import History, RunRow
from viva.model import codec
from viva.model.event import RunStarted
from viva.model.record import TrialRecord
from viva.reporters.commands import build_case_filter, list_rerun_flags

_MAX_RUNNING = 4
_START_TIMEOUT_S = 30.0
_LINE_BYTES = 64 * 1024 * 1024


class RunRequest(Struct, forbid_unknown_fields=True):
    """The inputs, agent and options of a run that the page wants to start."""

    inputs: list[str]
    agent: str | None = None
    only: str | None = None
    tags: list[str] = []
    runs: int = 1


class RunLauncher:
    """Starts runs in a project, and interrupts them when the viewer ends."""

    def __init__(self, folder: Path, file: Path | None) -> None:
        self._folder = folder
        self._file = file
        self._running: dict[asyncio.subprocess.Process, asyncio.Task[None]] = {}

    async def start_run(self, request: RunRequest, known_runs: Sequence[RunRow]) -> str:
        """Starts a run and returns its id."""
        arguments = await asyncio.to_thread(self._build_arguments, request, known_runs)
        return await self._start_process(arguments, self._folder)

    def _build_arguments(self, request: RunRequest, known_runs: Sequence[RunRow]) -> list[str]:
        own_runs = [row for row in known_runs if not self._was_made_elsewhere(row.id)]
        agents = set(config.load_settings(self._file, self._folder).agents) | {
            agent for row in own_runs for agent in row.agents if agent
        }
        inputs = {text for row in own_runs for text in row.inputs}
        if not request.inputs:
            raise BadInput.of("inputs: is empty")
        if request.agent and request.agent not in agents:
            raise BadInput.of(f"agent: {request.agent!r} is not in the config or an earlier run")
        if not 1 <= request.runs <= 1000:
            raise BadInput.of("runs: must be from 1 to 1000")
        for text in request.inputs:
            if text not in inputs and not self._is_project_file(text):
                raise BadInput.of(f"inputs: {text!r} is not a file of this project or an input of an earlier run")
        arguments = [f"--input={text}" for text in request.inputs]
        arguments += [f"--name={request.agent}"] if request.agent else []
        arguments += [f"--run={_check_regex(request.only)}"] if request.only else []
        arguments += [f"--tag={tag}" for tag in request.tags]
        arguments += [f"--runs={request.runs}"] if request.runs > 1 else []
        arguments += [f"--config={self._file}"] if self._file else []
        return arguments

    async def rerun_case(self, started: RunStarted, record: TrialRecord) -> str:
        """Runs one case of an earlier run with the same agent and settings."""
        case_filter = build_case_filter(record)
        if case_filter is None:
            raise BadInput.of("This case is not in a file and cannot be run alone")
        suite, pattern = case_filter
        return await self._rerun_with(started, [f"--input={suite}", f"--run={pattern}"], [record.agent or ""])

    async def rerun(self, started: RunStarted) -> str:
        """Runs the same inputs and cases again, with the same agent and settings."""
        options: dict[str, Any] = dict(started.settings.get("options", {}))
        arguments = [f"--input={text}" for text in started.inputs]
        arguments += [f"--run={options['only']}"] if options.get("only") else []
        arguments += [f"--tag={tag}" for tag in options.get("tags", ())]
        arguments += [f"--runs={options['runs']}"] if options.get("runs", 1) > 1 else []
        return await self._rerun_with(started, arguments, started.agents)

    async def _rerun_with(self, started: RunStarted, arguments: Sequence[str], agents: Sequence[str]) -> str:
        if self._was_made_elsewhere(started.run):
            raise BadInput.of(
                "This run comes from another machine, and so do its agent and folder. Run it with viva test"
            )
        if started.settings.get("has_objects"):
            raise BadInput.of("This run has agents, cases or functions of a Python program. Run that program again")
        names = [f"--name={agent}" for agent in agents if agent]
        flags = [flag if value is None else f"{flag}={value}" for flag, value in list_rerun_flags(started.settings)]
        folder = dict(started.settings.get("options", {})).get("folder")
        link = [f"--rerun-of={started.run}"]
        return await self._start_process([*arguments, *names, *flags, *link], Path(folder or self._folder))

    async def close(self) -> None:
        """Interrupts running processes as Ctrl-C does."""
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
        if self._running:
            await asyncio.wait(self._running.values(), timeout=10)

    def _was_made_elsewhere(self, run: str) -> bool:
        """Its agents and inputs are not started on this machine then."""
        return History(self._folder / ".viva").was_made_elsewhere(run)

    def _is_project_file(self, text: str) -> bool:
        if not text or text.startswith("-") or "\0" in text:
            return False
        path = (self._folder / text).resolve()
        return path.exists() and path.is_relative_to(self._folder.resolve())

    async def _start_process(self, arguments: Sequence[str], folder: Path) -> str:
        """Starts the process and returns the run's id from its first event."""
        if len(self._running) >= _MAX_RUNNING:
            raise BadInput.of(f"{_MAX_RUNNING} runs are in progress. Wait until one of them ends")
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "viva", "test", "--json", *arguments),
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in the terminal of the viewer reaches it only through `close`
                limit=_LINE_BYTES,
            )
        except OSError as error:
            raise BadInput.of(f"Cannot start a run in {folder}: {error.strerror}") from error
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(_read_tail(process.stderr))
        try:
            first = await asyncio.wait_for(process.stdout.readline(), _START_TIMEOUT_S)
            run = codec.decode(first, type=RunStarted).run
        except (TimeoutError, codec.DecodeError) as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise BadInput.of((await errors).strip() or "The run did not start") from error
        self._running[process] = asyncio.create_task(self._wait_for_end(process, process.stdout, errors))
        return run

    async def _wait_for_end(
        self, process: asyncio.subprocess.Process, out: asyncio.StreamReader, errors: asyncio.Task[str]
    ) -> None:
        while await out.read(1 << 20):
            pass  # the journal has all events
        await errors
        await process.wait()
        self._running.pop(process, None)


async def _read_tail(stream: asyncio.StreamReader) -> str:
    """The last 4000 bytes of a stream."""
    tail = b""
    while piece := await stream.read(1 << 16):
        tail = (tail + piece)[-4000:]
    return tail.decode(errors="replace")


def _check_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise BadInput.of(f"only: {error}") from error
    return text

"""Runs that are started from the page: `viva test` as a process of its own, with arguments that were checked.

The page may ask for what is already known here: files of the project, and inputs and agents of the config or of earlier
runs. It can name no new code to run.
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
from viva.history.index import RunRow
from viva.model import codec
from viva.model.event import RunStarted
from viva.model.record import TrialRecord
from viva.reporters.commands import build_case_filter, list_rerun_flags

_MOST_AT_ONCE = 4
_PATIENCE_S = 30.0
_LINE_BYTES = 64 * 1024 * 1024


class RunRequest(Struct, forbid_unknown_fields=True):
    """What the page may ask for: inputs, and as little else as `viva test` needs."""

    inputs: list[str]
    agent: str | None = None
    only: str | None = None
    tags: list[str] = []
    runs: int = 1


class RunLauncher:
    """Starts runs in a project and ends those that are still running when the viewer ends."""

    def __init__(self, folder: Path, file: Path | None) -> None:
        self._folder = folder
        self._file = file
        self._running: dict[asyncio.subprocess.Process, asyncio.Task[None]] = {}

    async def start_run(self, wanted: RunRequest, known: Sequence[RunRow]) -> str:
        """A run of files, or of what an earlier run was of; gives its id."""
        return await self._run(await asyncio.to_thread(self._arguments, wanted, known), self._folder)

    def _arguments(self, wanted: RunRequest, known: Sequence[RunRow]) -> list[str]:
        agents = set(config.load_settings(self._file, self._folder).agents) | {row.agent for row in known}
        inputs = {text for row in known for text in row.inputs}
        if not wanted.inputs:
            raise BadInput.of("inputs: there is none")
        if wanted.agent and wanted.agent not in agents:
            raise BadInput.of(f"agent: {wanted.agent!r} is neither in the config nor in an earlier run")
        if not 1 <= wanted.runs <= 1000:
            raise BadInput.of("runs: from 1 to 1000")
        for text in wanted.inputs:
            if text not in inputs and not self._is_file_here(text):
                raise BadInput.of(f"inputs: {text!r} is neither a file of this project nor an input of an earlier run")
        arguments = [f"--input={text}" for text in wanted.inputs]
        arguments += [f"--name={wanted.agent}"] if wanted.agent else []
        arguments += [f"--run={_regex(wanted.only)}"] if wanted.only else []
        arguments += [f"--tag={tag}" for tag in wanted.tags]
        arguments += [f"--runs={wanted.runs}"] if wanted.runs > 1 else []
        arguments += [f"--config={self._file}"] if self._file else []
        return arguments

    async def rerun_case(self, started: RunStarted, record: TrialRecord) -> str:
        """One case of an earlier run, against the same agent and with the settings that the run had."""
        found = build_case_filter(record)
        if found is None:
            raise BadInput.of("no file holds this case: it cannot be run by itself")
        suite, pattern = found
        return await self._like(started, [f"--input={suite}", f"--run={pattern}"], record.agent)

    async def rerun(self, started: RunStarted) -> str:
        """A whole run once more: its inputs, its choice of cases, its agent, its settings."""
        options: dict[str, Any] = dict(started.settings.get("options", {}))
        arguments = [f"--input={text}" for text in started.inputs]
        arguments += [f"--run={options['only']}"] if options.get("only") else []
        arguments += [f"--tag={tag}" for tag in options.get("tags", ())]
        arguments += [f"--runs={options['runs']}"] if options.get("runs", 1) > 1 else []
        return await self._like(started, arguments, started.agent)

    async def _like(self, started: RunStarted, arguments: Sequence[str], agent: str | None) -> str:
        named = [f"--name={agent}"] if agent else []
        flags = [flag if value is None else f"{flag}={value}" for flag, value in list_rerun_flags(started.settings)]
        folder = dict(started.settings.get("options", {})).get("folder")
        return await self._run([*arguments, *named, *flags], Path(folder or self._folder))

    async def close(self) -> None:
        """Interrupts what still runs, as Ctrl-C would."""
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
        if self._running:
            await asyncio.wait(self._running.values(), timeout=10)

    def _is_file_here(self, text: str) -> bool:
        if not text or text.startswith("-") or "\0" in text:
            return False
        path = (self._folder / text).resolve()
        return path.exists() and path.is_relative_to(self._folder.resolve())

    async def _run(self, arguments: Sequence[str], folder: Path) -> str:
        """Starts the process and gives the run's id, which its first event says."""
        if len(self._running) >= _MOST_AT_ONCE:
            raise BadInput.of(f"{_MOST_AT_ONCE} runs go on already; wait for one of them to end")
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "viva", "test", "--json", *arguments),
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in the viewer's terminal reaches it through `close` only
                limit=_LINE_BYTES,
            )
        except OSError as wrong:
            raise BadInput.of(f"cannot start a run in {folder}: {wrong.strerror}") from wrong
        assert process.stdout is not None
        assert process.stderr is not None
        said = asyncio.create_task(_tail(process.stderr))
        try:
            first = await asyncio.wait_for(process.stdout.readline(), _PATIENCE_S)
            run = codec.decode(first, type=RunStarted).run
        except (TimeoutError, codec.DecodeError) as wrong:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise BadInput.of((await said).strip() or "the run did not start") from wrong
        self._running[process] = asyncio.create_task(self._wait(process, process.stdout, said))
        return run

    async def _wait(
        self, process: asyncio.subprocess.Process, out: asyncio.StreamReader, said: asyncio.Task[str]
    ) -> None:
        while await out.read(1 << 20):
            pass  # the journal has it all
        await said
        await process.wait()
        self._running.pop(process, None)


async def _tail(stream: asyncio.StreamReader) -> str:
    """The end of what a process says."""
    kept = b""
    while more := await stream.read(1 << 16):
        kept = (kept + more)[-4000:]
    return kept.decode(errors="replace")


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as wrong:
        raise BadInput.of(f"only: {wrong}") from wrong
    return text

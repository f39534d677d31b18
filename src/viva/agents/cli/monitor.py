"""Watches the output of a CLI outside its stream of events: errors of its provider, a missing login, the last lines."""

import asyncio
import os
import time
from collections import deque
from typing import Protocol

from viva.agents.cli.events import (
    CliEvent,
    CliTurn,
    SessionStarted,
    TextPrinted,
    ToolEnded,
    ToolStarted,
    TroubleReported,
)
from viva.agents.cli.output_text import find_provider_trouble, format_tail, is_provider_error, to_one_line
from viva.agents.cli.spec import CliSpec
from viva.errors import AgentFailed, TrialFault, Unreachable
from viva.model.ellipsis import cut_end, decode_end, decode_start
from viva.model.progress import CallProgress
from viva.workspace.safe_open import open_regular_file

_LOGIN_S = 5.0
"""A CLI that asks for a login and prints nothing more in this time waits for input."""
_OTHER_LINES = 40
_LINE_BYTES = 64_000
_LOG_BYTES = 64_000
_MIN_MESSAGE = 20
"""A shorter line is part of a longer message, such as `status: 503`."""


class HasStderr(Protocol):
    """A process with a standard error."""

    @property
    def stderr_tail(self) -> str: ...


class OutputMonitor:
    """Collects what a CLI prints in one turn apart from its stream of events, and finds errors in it."""

    def __init__(self, spec: CliSpec, turn: CliTurn, home: str = "") -> None:
        self.spec = spec
        self.turn = turn
        self.stderr = ""
        self._home = home
        self._log_start = 0
        self._other_lines: deque[str] = deque(maxlen=_OTHER_LINES)
        self._stderr_before = ""  # at the agent's last progress
        self._reported: str | None = None
        self._has_progress = False
        self._log_start = self._read_log()[0]  # earlier lines belong to earlier turns

    def add_unparsed_line(self, line: bytes) -> None:
        """Adds a line that is not part of the stream."""
        if line.strip():
            self._other_lines.append(decode_start(line, _LINE_BYTES))  # only the last lines are kept

    def add_event(self, event: CliEvent, process: HasStderr) -> None:
        match event:
            case SessionStarted():
                self._log_start = self._read_log()[0]
            case TextPrinted() | ToolStarted() | ToolEnded():  # the agent made progress; earlier trouble is over
                self._stderr_before, self._reported, self._has_progress = process.stderr_tail, None, True
                self._log_start = self._read_log()[0]
            case TroubleReported(text=text):
                self._reported = find_provider_trouble(text) or self._reported
            case _:
                return

    async def watch_for_login(self, process: HasStderr, deadline: asyncio.Timeout) -> None:
        """Ends the turn if the CLI asks for a login and waits."""
        since: float | None = None
        while self.turn.session is None:
            await asyncio.sleep(_LOGIN_S / 5)
            self.stderr = process.stderr_tail
            if self._find_login_line() is None:
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since >= _LOGIN_S and self.turn.session is None:
                deadline.reschedule(asyncio.get_running_loop().time())
                return

    def report_progress(self, progress: CallProgress) -> None:
        """Stores the current trouble of the provider and the end of the output."""
        progress.stderr_tail = self.output_tail()
        if self.turn.session is None and (line := self._find_login_line()):
            progress.provider_trouble = f"{self.spec.title} needs a login: {line}"
        elif trouble := self._find_trouble():
            progress.provider_trouble = f"{self.spec.title}: {trouble}"

    def find_fault(self, error: str | None) -> TrialFault | None:
        """The fault of a turn that ended with this error, or without a result; None if it is unknown."""
        if line := self._find_login_line(error or ""):
            return Unreachable(f"{self.spec.title} needs a login: {line}")
        if error is not None:
            text = to_one_line(error)
            return Unreachable(text) if is_provider_error(error) else AgentFailed(text)
        trouble = self._find_trouble()
        return Unreachable(trouble) if trouble else None

    def output_tail(self) -> str:
        return format_tail("\n".join((*self._other_lines, self.stderr)))

    def _find_login_line(self, error: str = "") -> str | None:
        """The line that says that a login is missing."""
        other = (cut_end(line, 2000) for line in self._other_lines)
        unparsed = () if self._has_progress else (*self.stderr.splitlines(), *other)  # later it may be output of a tool
        for line in (error, *unparsed):
            if self.spec.no_login_pattern.search(line):
                return to_one_line(line)
        return None

    def _find_trouble(self) -> str | None:
        """The current error of the provider, such as 429 or 5xx."""
        if self._reported:
            return self._reported
        before, now = self._stderr_before, self.stderr
        fresh = now.removeprefix(before) if now.startswith(before) else now.rpartition(before[-200:])[2]
        messages = [busy for line in fresh.splitlines() if (busy := find_provider_trouble(line))]
        messages += [busy for line in self._read_log()[1].splitlines() if (busy := self._find_log_trouble(line))]
        return next(
            (busy for busy in reversed(messages) if len(busy) > _MIN_MESSAGE), messages[-1] if messages else None
        )

    def _find_log_trouble(self, line: str) -> str | None:
        if self.spec.log_error_pattern is None:
            return find_provider_trouble(line)
        match = self.spec.log_error_pattern.search(line)
        return to_one_line(match[1]) if match else None

    def _read_log(self) -> tuple[int, str]:
        """The size of the CLI's log and the end of its new part. Links are not followed."""
        session, log_name = self.turn.session, self.spec.log_file
        if not log_name or ("{session}" in log_name and (session is None or "/" in session)):
            return 0, ""
        try:
            file = open_regular_file(f"{self._home}/{self.spec.log_file.format(session=session)}")
        except OSError:
            return 0, ""
        with os.fdopen(file, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            start = max(self._log_start, size - _LOG_BYTES)
            log.seek(start)
            raw = log.read(_LOG_BYTES)
            return size, raw.decode(errors="replace") if start == self._log_start else decode_end(raw)

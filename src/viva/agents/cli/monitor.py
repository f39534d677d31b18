"""Watches what a CLI says beside its stream: does its provider not answer, does it want a login, and what were its last words?"""

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
from viva.model.progress import CallProgress
from viva.workspace.safe_open import open_regular_file

_LOGIN_S = 5.0
"""One that asks for a login and says nothing more in this time waits for somebody who is not there."""
_NOISE_LINES = 40
_NOISE_BYTES = 64_000
_LOG_BYTES = 64_000
_TELLING = 20
"""A shorter line is one of several that tell of the same, such as `status: 503`."""


class HasStderr(Protocol):
    """A process with a standard error."""

    @property
    def stderr_tail(self) -> str: ...


class OutputMonitor:
    """What is known beside the stream of a turn."""

    def __init__(self, spec: CliSpec, turn: CliTurn, home: str = "") -> None:
        self.spec = spec
        self.turn = turn
        self.stderr = ""
        self._home = home
        self._log_from = 0
        self._noise: deque[bytes] = deque(maxlen=_NOISE_LINES)
        self._stderr_before = ""  # as it stood when the agent last got on
        self._told: str | None = None
        self._got_on = False
        self._log_from = self._log()[0]  # what stands there already is about earlier turns

    def add_other_line(self, line: bytes) -> None:
        """A line that is none of its stream."""
        if line.strip():
            self._noise.append(line[:_NOISE_BYTES])  # it may be one of very many: only the last are looked at

    def add_event(self, event: CliEvent, process: HasStderr) -> None:
        match event:
            case SessionStarted():
                self._log_from = self._log()[0]
            case TextPrinted() | ToolStarted() | ToolEnded():  # so far it has got; earlier trouble is over
                self._stderr_before, self._told, self._got_on = process.stderr_tail, None, True
                self._log_from = self._log()[0]
            case TroubleReported(text=text):
                self._told = find_provider_trouble(text) or self._told
            case _:
                return

    async def watch_for_login(self, process: HasStderr, patience: asyncio.Timeout) -> None:
        """Looks out whether it asks for a login and then waits: that ends our patience."""
        since: float | None = None
        while self.turn.session is None:
            await asyncio.sleep(_LOGIN_S / 5)
            self.stderr = process.stderr_tail
            if self._login_line() is None:
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since >= _LOGIN_S and self.turn.session is None:
                patience.reschedule(asyncio.get_running_loop().time())
                return

    def report_progress(self, progress: CallProgress) -> None:
        """What stands in the way of the turn, and the end of what was printed."""
        progress.stderr_tail = self.output_tail()
        if self.turn.session is None and (asks := self._login_line()):
            progress.provider_trouble = f"{self.spec.title} needs a login: {asks}"
        elif trouble := self._trouble():
            progress.provider_trouble = f"{self.spec.title}: {trouble}"

    def find_fault(self, error: str | None) -> TrialFault | None:
        """What a turn means that ended with this error, or with none at all; None if nothing more can be told."""
        if asks := self._login_line(error or ""):
            return Unreachable(f"{self.spec.title} needs a login: {asks}")
        if error is not None:
            said = to_one_line(error)
            return Unreachable(said) if is_provider_error(error) else AgentFailed(said)
        trouble = self._trouble()
        return Unreachable(trouble) if trouble else None

    def output_tail(self) -> str:
        return format_tail("\n".join((*(line.decode(errors="replace") for line in self._noise), self.stderr)))

    def _login_line(self, error: str = "") -> str | None:
        """What it says of a login that it has not."""
        noise = (line[:2000].decode(errors="replace") for line in self._noise)
        beside = () if self._got_on else (*self.stderr.splitlines(), *noise)  # later it may be a tool's complaint
        for line in (error, *beside):
            if self.spec.no_login_pattern.search(line):
                return to_one_line(line)
        return None

    def _trouble(self) -> str | None:
        """What stands in the way right now, by its own word: the provider's 429 or 5xx."""
        if self._told:
            return self._told
        before, now = self._stderr_before, self.stderr
        fresh = now.removeprefix(before) if now.startswith(before) else now.rpartition(before[-200:])[2]
        told = [busy for line in fresh.splitlines() if (busy := find_provider_trouble(line))]
        told += [busy for line in self._log()[1].splitlines() if (busy := self._logged_trouble(line))]
        return next((busy for busy in reversed(told) if len(busy) > _TELLING), told[-1] if told else None)

    def _logged_trouble(self, line: str) -> str | None:
        if self.spec.log_error_pattern is None:
            return find_provider_trouble(line)
        found = self.spec.log_error_pattern.search(line)
        return to_one_line(found[1]) if found else None

    def _log(self) -> tuple[int, str]:
        """How long its own log is, and the end of what is new in it; a link there is not followed."""
        session, log_name = self.turn.session, self.spec.log_file
        if not log_name or ("{session}" in log_name and (session is None or "/" in session)):
            return 0, ""
        try:
            file = open_regular_file(f"{self._home}/{self.spec.log_file.format(session=session)}")
        except OSError:
            return 0, ""
        with os.fdopen(file, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_from, size - _LOG_BYTES))
            return size, log.read(_LOG_BYTES).decode(errors="replace")

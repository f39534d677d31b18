"""The state of a running call: the engine reads it when the call fails or is cut off."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

from msgspec import Struct, field

from viva.model.message import Message, Reply
from viva.model.turn import Traceback

_RECENT_S = 0.1


class LoopLag:
    """How long agents blocked the event loop of a run. Only the agent that blocks it pays: the time limits of others are
    extended, and their latency does not include the wait.
    """

    def __init__(self) -> None:
        self.by_agent: dict[str, float] = {}
        self._last: tuple[float, float, CallProgress] | None = None  # the last block: length, end, agent
        self._limits: dict[asyncio.Timeout, CallProgress] = {}

    @contextmanager
    def extend_limit(self, limit: asyncio.Timeout, progress: "CallProgress") -> Generator[None]:
        """While this context is open, blocks by others extend the limit."""
        self._limits[limit] = progress
        try:
            yield
        finally:
            del self._limits[limit]

    def waited_s(self, began: float, progress: "CallProgress") -> float:
        """How long a reply that arrived now, to a call that `began` then, waited for the event loop: only if it is read right
        after a block by another agent.
        """
        if self._last is None or self._last[2] is progress or time.perf_counter() - self._last[1] > _RECENT_S:
            return 0.0
        seconds, ended, _ = self._last
        return max(0.0, min(seconds, ended - began))

    def add(self, seconds: float, blocker: "CallProgress") -> None:
        self._last = seconds, time.perf_counter(), blocker
        self.by_agent[blocker.agent] = self.by_agent.get(blocker.agent, 0.0) + seconds
        for limit, owner in self._limits.items():
            if owner is not blocker and (due := limit.when()) is not None and not limit.expired():
                limit.reschedule(due + seconds)


class CallProgress(Struct):
    """The state of the running call of a session. The agent writes it, the engine reads it.

    `partial` is the reply so far, `provider_trouble` the last provider failure that is being retried, `elapsed_ms` the
    duration if it is known better than by the clock (a replay, a time limit), `blocked_s` how long the agent's code
    blocked the event loop, `sent` what the model of a helper was sent last, word for word.
    """

    agent: str = ""
    partial: Reply | None = None
    provider_trouble: str | None = None
    stderr_tail: str = ""
    sent: tuple[Message, ...] = ()
    elapsed_ms: float | None = None
    tracebacks: list[Traceback] = field(default_factory=list[Traceback])
    warnings: list[str] = field(default_factory=list[str])
    blocked_s: float = 0.0
    lag: LoopLag = field(default_factory=LoopLag)

    def reset(self) -> None:
        """Clears the state for a new call."""
        self.partial = self.provider_trouble = self.elapsed_ms = None
        self.stderr_tail, self.sent = "", ()
        self.blocked_s = 0.0
        if self.tracebacks:
            self.tracebacks = []
        if self.warnings:
            self.warnings = []

    def ms_since(self, began: float) -> float:
        """How long ago that was, without the time that another agent has just blocked the event loop."""
        return (time.perf_counter() - began - self.lag.waited_s(began, self)) * 1e3

    def add_block(self, seconds: float) -> None:
        """The agent's code blocked the event loop for this long."""
        self.blocked_s += seconds
        self.lag.add(seconds, self)

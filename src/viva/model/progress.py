"""What is known of a call that has not returned: the engine reads it when the call fails or is cut off."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

from msgspec import Struct, field

from viva.model.message import Reply
from viva.model.tracebacks import Traceback

_RIGHT_AFTER_S = 0.1


class LoopLag:
    """How long agents blocked the event loop of a run. A block counts for nobody but the agent that caused it: time limits of
    others are extended by it, and what an answer had to wait for it is left out of their latency.
    """

    def __init__(self) -> None:
        self.by_agent: dict[str, float] = {}
        self._last: tuple[float, float, CallProgress] | None = None  # the last block: its length, its end, whose it was
        self._limits: dict[asyncio.Timeout, CallProgress] = {}

    @contextmanager
    def extend_limit(self, limit: asyncio.Timeout, progress: "CallProgress") -> Generator[None]:
        """While this is open, blocks of others extend the limit."""
        self._limits[limit] = progress
        try:
            yield
        finally:
            del self._limits[limit]

    def waited_s(self, began: float, progress: "CallProgress") -> float:
        """How long an answer that is here now, to a call that `began` then, had to wait for the loop: only where it was read
        right after a block of somebody else's.
        """
        if self._last is None or self._last[2] is progress or time.perf_counter() - self._last[1] > _RIGHT_AFTER_S:
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
    """The state of the call that is running in a session. The agent writes it, the engine reads it.

    `partial` is the reply so far, `provider_trouble` the last failure of a model provider that is being retried,
    `elapsed_ms` the duration where it is known better than by our clock (a replay, a time limit), `blocked_s` how long
    the agent's code blocked the event loop.
    """

    agent: str = ""
    partial: Reply | None = None
    provider_trouble: str | None = None
    stderr_tail: str = ""
    elapsed_ms: float | None = None
    tracebacks: list[Traceback] = field(default_factory=list[Traceback])
    warnings: list[str] = field(default_factory=list[str])
    blocked_s: float = 0.0
    lag: LoopLag = field(default_factory=LoopLag)

    def reset(self) -> None:
        """Starts a new call."""
        self.partial = self.provider_trouble = self.elapsed_ms = None
        self.stderr_tail = ""
        self.blocked_s = 0.0
        if self.tracebacks:
            self.tracebacks = []
        if self.warnings:
            self.warnings = []

    def add_block(self, seconds: float) -> None:
        """The agent's code kept the event loop from anything else for this long."""
        self.blocked_s += seconds
        self.lag.add(seconds, self)

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
    """How long agents blocked the event loop of a run. The time limits of all other agents are extended by that time, and
    their latencies do not include it.
    """

    def __init__(self) -> None:
        self.blocked_s_by_agent: dict[str, float] = {}
        self._last_block: tuple[float, float, CallProgress] | None = None  # the last block: length, end, agent
        self._limits: dict[asyncio.Timeout, CallProgress] = {}

    @contextmanager
    def extend_limit(self, limit: asyncio.Timeout, progress: "CallProgress") -> Generator[None]:
        """While this context is open, blocks by others extend the limit."""
        self._limits[limit] = progress
        try:
            yield
        finally:
            del self._limits[limit]

    def compute_wait_s(self, began: float, progress: "CallProgress") -> float:
        """How long, in seconds, a reply that is read now waited because another agent blocked the event loop.

        `began` is the start of the call. The result is 0 unless the block has just ended.
        """
        if (
            self._last_block is None
            or self._last_block[2] is progress
            or time.perf_counter() - self._last_block[1] > _RECENT_S
        ):
            return 0.0
        seconds, ended, _ = self._last_block
        return max(0.0, min(seconds, ended - began))

    def record_block(self, seconds: float, blocker: "CallProgress") -> None:
        self._last_block = seconds, time.perf_counter(), blocker
        self.blocked_s_by_agent[blocker.agent] = self.blocked_s_by_agent.get(blocker.agent, 0.0) + seconds
        for limit, owner in self._limits.items():
            if owner is not blocker and (due := limit.when()) is not None and not limit.expired():
                limit.reschedule(due + seconds)


class CallProgress(Struct):
    """The state of the running call of a session. The agent writes it, the engine reads it.

    `partial` is the reply so far, `provider_trouble` the last provider failure that is being retried, `elapsed_ms` the
    duration if it is not measured but known (a replay, a time limit), `blocked_s` how long the agent's code
    blocked the event loop, `sent` what the model of a helper was sent last, word for word.
    """

    agent: str = ""
    partial: Reply | None = None
    provider_trouble: str | None = None
    stderr_tail: str = ""
    sent_to_model: tuple[Message, ...] = ()
    elapsed_ms: float | None = None
    tracebacks: list[Traceback] = []
    warnings: list[str] = []
    blocked_s: float = 0.0
    loop_lag: LoopLag = field(default_factory=LoopLag)

    def reset(self) -> None:
        """Clears the state for a new call."""
        self.partial = self.provider_trouble = self.elapsed_ms = None
        self.stderr_tail, self.sent_to_model = "", ()
        self.blocked_s = 0.0
        if self.tracebacks:
            self.tracebacks = []
        if self.warnings:
            self.warnings = []

    def compute_elapsed_ms(self, began: float) -> float:
        """The time since `began` in ms, without the time for which another agent has just blocked the event loop."""
        return (time.perf_counter() - began - self.loop_lag.compute_wait_s(began, self)) * 1e3

    def record_block(self, seconds: float) -> None:
        """Records that the agent's code has blocked the event loop for `seconds`."""
        self.blocked_s += seconds
        self.loop_lag.record_block(seconds, self)

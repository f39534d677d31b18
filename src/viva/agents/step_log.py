"""The model calls and tool calls inside one reply, with their times."""

import time
from collections.abc import Iterable

from viva.model.message import ModelCall, Step

_MIN_STREAM_MS = 1.0
"""A result that arrives together with its call was not timed by its arrival."""


class StepLog:
    """Collects the steps of one reply. Times count from its creation, or from `started` (a value of `time.perf_counter`)."""

    def __init__(self, started: float | None = None) -> None:
        self._started = time.perf_counter() if started is None else started
        self._steps: list[Step] = []
        self._open: dict[str, tuple[str, float]] = {}

    def elapsed_ms(self) -> float:
        return (time.perf_counter() - self._started) * 1e3

    def add_model_call(self, call: ModelCall, began_ms: float) -> None:
        """Add a model call that has just ended."""
        tokens = call.input_tokens + call.output_tokens
        duration = round(self.elapsed_ms() - began_ms, 3)
        self._steps.append(Step("model", call.model, round(began_ms, 3), duration, tokens, call.cost_usd))

    def add_tool_step(self, name: str, began_ms: float) -> None:
        """Add a tool call that has just returned."""
        self._steps.append(Step("tool", name, round(began_ms, 3), round(self.elapsed_ms() - began_ms, 3)))

    def start_tool(self, key: str, name: str) -> None:
        """Record that a tool call began. The first report of a call counts."""
        self._open.setdefault(key, (name, self.elapsed_ms()))

    def end_tool(self, key: str) -> None:
        """Record that a tool call ended."""
        name, began_ms = self._open.pop(key, ("", 0.0))
        if name and self.elapsed_ms() - began_ms >= _MIN_STREAM_MS:
            self.add_tool_step(name, began_ms)

    def add_steps(self, steps: Iterable[Step]) -> None:
        """Add steps that the agent has measured itself."""
        self._steps += steps

    def build(self) -> tuple[Step, ...]:
        return tuple(self._steps)

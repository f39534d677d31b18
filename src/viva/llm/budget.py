"""The cost limit of a run. Reaching it stops the run; finished trials are kept."""

from collections.abc import Callable

from viva.errors import RunStopped
from viva.model.message import ModelCall

UNPRICED_WARNING = "calls of unknown price are not in the budget; `price` in the connector sets it"


class Budget:
    """Adds up the cost of every model call of a run, of agents and helpers."""

    def __init__(self, max_usd: float | None = None, spent_usd: float = 0.0) -> None:
        self.max_usd = max_usd
        self.spent_usd = spent_usd
        self.unpriced_calls = 0
        self._on_unpriced: Callable[[], None] | None = None

    def notify_on_unpriced_call(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, at the first call of unknown price; at once if there was one already."""
        if self.unpriced_calls:
            callback()
        else:
            self._on_unpriced = callback

    def spend(self, call: ModelCall) -> None:
        """Add the cost of a call; raise RunStopped once the budget is spent. A call of unknown price is counted separately."""
        if call.cost_usd is None:
            self.unpriced_calls += 1
            if self.unpriced_calls == 1 and self._on_unpriced is not None:
                self._on_unpriced()
            return
        self.spent_usd += call.cost_usd
        # The sum of ten times $0.01 is a little less than 0.1.
        if self.max_usd is not None and self.spent_usd >= self.max_usd * (1 - 1e-9):
            raise RunStopped(f"the budget of ${self.max_usd:g} is spent (${self.spent_usd:.4f})", is_budget=True)


class ModelCallCollector(Budget):
    """Collects the model calls of a worker. Its coordinator has the budget."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[ModelCall] = []

    def spend(self, call: ModelCall) -> None:
        self._calls.append(call)

    def pop_calls(self) -> tuple[ModelCall, ...]:
        """Remove and return the calls so far."""
        calls = tuple(self._calls)
        self._calls.clear()
        return calls

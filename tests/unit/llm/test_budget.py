"""The budget of a run."""

import pytest

from viva.errors import RunStopped
from viva.llm.budget import Budget
from viva.model.message import ModelCall


@pytest.mark.parametrize("calls", [1, 3, 6, 10, 100])
def test_a_budget_of_so_many_calls_is_spent_after_these(calls: int):
    """Sums of decimal fractions are a little too small or too large."""
    budget = Budget(round(calls * 0.01, 2))
    for _ in range(calls - 1):
        budget.spend(ModelCall(cost_usd=0.01))
    with pytest.raises(RunStopped, match="is spent"):
        budget.spend(ModelCall(cost_usd=0.01))

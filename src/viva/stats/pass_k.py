"""pass@k (at least one of k trials passes) and pass^k (all k trials pass), from repeated trials of a case.

Both are averages over all ways to pick k of n trials, of which c passed. They are unbiased if the trials of a case are
independent. The estimates (c/n)^k and 1 - (1 - c/n)^k are too high and too low.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from viva.stats.proportions import Tally


@dataclass(frozen=True, slots=True)
class PassK:
    """Means over cases. `excluded_cases` had fewer than k decided trials."""

    k: int
    pass_at_k: float
    pass_hat_k: float
    cases: int
    excluded_cases: int


def pass_at_k(tally: Tally, k: int) -> float | None:
    """Return the probability that at least one of k trials passes, 1 - C(n - c, k)/C(n, k). None with fewer decided trials."""
    if not _has_enough_trials(tally, k):
        return None
    total = math.comb(tally.decided, k)
    return (total - math.comb(tally.decided - tally.passed, k)) / total


def pass_hat_k(tally: Tally, k: int) -> float | None:
    """Return the probability that all k trials pass, C(c, k)/C(n, k), as in tau-bench. None with fewer decided trials."""
    return math.comb(tally.passed, k) / math.comb(tally.decided, k) if _has_enough_trials(tally, k) else None


def estimate_pass_k(tallies: Iterable[Tally], k: int) -> PassK | None:
    """Return pass@k and pass^k of a suite as means over its cases. None if no case has k decided trials."""
    cases = list(tallies)
    at_least_one = [chance for tally in cases if (chance := pass_at_k(tally, k)) is not None]
    all_of_them = [chance for tally in cases if (chance := pass_hat_k(tally, k)) is not None]
    if not at_least_one:
        return None
    counted = len(at_least_one)
    return PassK(k, math.fsum(at_least_one) / counted, math.fsum(all_of_them) / counted, counted, len(cases) - counted)


def _has_enough_trials(tally: Tally, k: int) -> bool:
    if k < 1:
        raise ValueError(f"k is {k}: must be at least 1")
    return tally.decided >= k

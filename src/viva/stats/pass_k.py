"""What repeats of a case tell: would one of k trials pass (pass@k), would all k of them (pass^k)?

Both are averages over all ways to pick k of the n trials that were run, c of which passed. They are unbiased where
trials of a case are independent. Plugging in c/n is not: (c/n)^k is too high, 1 - (1 - c/n)^k too low.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from viva.stats.proportions import Tally


@dataclass(frozen=True, slots=True)
class PassK:
    """Means over cases. `left_out` cases had fewer than k judged trials; they are in no mean."""

    k: int
    pass_at_k: float
    pass_hat_k: float
    cases: int
    excluded_cases: int


def pass_at_k(tally: Tally, k: int) -> float | None:
    """The chance that at least one of k trials passes: 1 - C(n - c, k)/C(n, k). None if fewer than k were judged."""
    if not _enough(tally, k):
        return None
    every = math.comb(tally.judged, k)
    return (every - math.comb(tally.judged - tally.passed, k)) / every


def pass_hat_k(tally: Tally, k: int) -> float | None:
    """The chance that k trials all pass, as tau-bench defines it: C(c, k)/C(n, k). None if fewer than k were judged."""
    return math.comb(tally.passed, k) / math.comb(tally.judged, k) if _enough(tally, k) else None


def estimate_pass_k(tallies: Iterable[Tally], k: int) -> PassK | None:
    """pass@k and pass^k of a suite: the mean over its cases. None if no case has k judged trials.

    Where cases are left out because errors used up their trials, the mean speaks for the rest only.
    """
    given = list(tallies)
    at_least_one = [chance for tally in given if (chance := pass_at_k(tally, k)) is not None]
    all_of_them = [chance for tally in given if (chance := pass_hat_k(tally, k)) is not None]
    if not at_least_one:
        return None
    cases = len(at_least_one)
    return PassK(k, math.fsum(at_least_one) / cases, math.fsum(all_of_them) / cases, cases, len(given) - cases)


def _enough(tally: Tally, k: int) -> bool:
    if k < 1:
        raise ValueError(f"k is {k}: it counts trials, from 1")
    return tally.judged >= k

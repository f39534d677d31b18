"""Mean and percentiles of measured values: latencies, costs, scores."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValueSummary:
    """`p50` and `p95` are values of the sample."""

    count: int
    mean: float
    p50: float
    p95: float


def summarize_values(values: Iterable[float]) -> ValueSummary | None:
    """Return count, mean, p50 and p95 of some values; None without values. With fewer than 20, p95 is the maximum."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ValueSummary(
        len(ordered), math.fsum(ordered) / len(ordered), nearest_rank(ordered, 50), nearest_rank(ordered, 95)
    )


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """Return the ⌈percent·n/100⌉th of the sorted values: the smallest one that `percent` % do not exceed."""
    if not 0 < percent <= 100:
        raise ValueError(f"percentile {percent}: must be a whole number from 1 to 100")
    return ordered[-(-percent * len(ordered) // 100) - 1]

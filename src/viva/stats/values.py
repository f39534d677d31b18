"""Many measured values (latencies, costs, scores) in a few numbers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValueSummary:
    """`p50` and `p95` are values that occurred."""

    count: int
    mean: float
    p50: float
    p95: float


def summarize_values(values: Iterable[float]) -> ValueSummary | None:
    """None without values. With fewer than 20 of them p95 is their maximum."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ValueSummary(
        len(ordered), math.fsum(ordered) / len(ordered), nearest_rank(ordered, 50), nearest_rank(ordered, 95)
    )


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """The smallest of the sorted values that at least `percent` % of them do not exceed: the ⌈percent·n/100⌉th."""
    if not 0 < percent <= 100:
        raise ValueError(f"there is no percentile {percent}: it is a whole number from 1 to 100")
    return ordered[-(-percent * len(ordered) // 100) - 1]

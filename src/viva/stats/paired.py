"""Did it change? Two runs of the same cases, compared case by case, so that hard and easy cases cancel out."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from random import Random

from viva.stats.proportions import Interval

_DRAWS = 9_999
_FEWEST_DRAWS = 1_999
_MOST_PICKS = 20_000_000
_BITS = bytes.maketrans(b"01", b"\0\1")


@dataclass(frozen=True, slots=True)
class Flips:
    """`broke` cases passed before and fail now, `fixed` ones the other way round."""

    pairs: int
    broke: int
    fixed: int
    p_value: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of (after - before). No interval: too few pairs for the confidence (95 % needs six)."""

    pairs: int
    mean: float
    interval: Interval | None
    p_value: float


def mcnemar(pairs: Iterable[tuple[bool, bool]]) -> Flips:
    """McNemar's exact test on (passed before, passed after) of each case.

    If nothing changed, a case that flips is as likely to break as to be fixed, so broke ~ Binomial(broke + fixed, ½);
    p = min(1, 2 · P(X ≤ min(broke, fixed))). Fewer than six flips never reach p ≤ 0.05. Several trials of one case
    are no pairs of their own: compare the cases' rates with `paired_difference`.
    """
    seen = list(pairs)
    broke = sum(1 for before, after in seen if before and not after)
    fixed = sum(1 for before, after in seen if after and not before)
    ways, total, flips = 1, 0, broke + fixed
    for rarer in range(min(broke, fixed) + 1):
        total += ways
        ways = ways * (flips - rarer) // (rarer + 1)
    return Flips(len(seen), broke, fixed, min(1.0, 2 * total / 2**flips))


def fisher(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Fisher's exact test, two-sided, on (passed, trials) of one case before and after: is the difference more than chance?

    If nothing changed, which of all trials failed has nothing to do with when they ran; p adds up the ways to deal them
    out that are no more likely than what was seen.
    """
    (passed, trials), (passed_now, trials_now) = before, after
    passes, fewest = passed + passed_now, max(0, passed + passed_now - trials_now)
    ways = {k: math.comb(trials, k) * math.comb(trials_now, passes - k) for k in range(fewest, min(trials, passes) + 1)}
    return sum(way for way in ways.values() if way <= ways[passed]) / sum(ways.values())


def paired_difference(
    pairs: Iterable[tuple[float, float]], confidence: float = 0.95, seed: int = 0
) -> Difference | None:
    """How the mean of a value (a rate, cost or latency for each case) changed from before to after. None without pairs.

    If nothing changed, before and after could be swapped in any case: each difference is as likely as its opposite.
    Then the mean of a random subset of the differences lies above 0 as often as below, and likewise around any other
    true difference (Hartigan's typical values). The interval runs between quantiles of the means of subsets: of all of
    them up to 13 pairs, else of 9,999 random ones (fewer beyond 2,000 pairs), the same for the same seed. p is that of
    the exact test which belongs to it, by flipping signs; on passes and failures it is McNemar's.

    Where nothing changed it raises a false alarm at most as often as promised, whatever the number of pairs and their
    distribution. Bootstrap intervals do not: with 10 pairs and 5 alarms in 100 promised, the percentile one was seen to
    raise up to 13, BCa up to 24. Where something did change and the differences are very skewed, this interval is as
    short as those are: what was never seen cannot be in it.
    """
    seen = list(pairs)
    if not seen:
        return None
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence} is not between 0 and 1")
    differences = [after - before for before, after in seen]
    rounding = 1e-12 * math.fsum(abs(before) + abs(after) for before, after in seen)
    means = sorted(_subset_means(differences, rounding, seed))
    # The empty subset, which has no mean, counts on either side: it is the data as they are.
    not_above = (bisect_right(means, 0.0) + 1) / (len(means) + 1)
    not_below = (len(means) - bisect_left(means, 0.0) + 1) / (len(means) + 1)
    beyond = math.floor((1 - confidence) / 2 * (len(means) + 1) + 1e-9)
    return Difference(
        pairs=len(seen),
        mean=math.fsum(differences) / len(seen),
        interval=Interval(means[beyond - 1], means[-beyond]) if beyond else None,
        p_value=min(1.0, 2 * min(not_above, not_below)),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for asking several questions at once: adjusted p-values, in the order given.

    The smallest of m is multiplied by m, the next by m - 1 and so on, never below the one before, never above 1. Who
    calls those that are at most alpha a finding is wrong about any of them with a chance of at most alpha, also if the
    questions depend on each other.
    """
    adjusted = [0.0] * len(p_values)
    floor = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = floor
    return adjusted


def _subset_means(differences: Sequence[float], rounding: float, seed: int) -> Iterator[float]:
    count = len(differences)
    for subset in _subsets(count, seed):
        chosen = format(subset, f"0{count}b").encode().translate(_BITS)
        total = sum(compress(differences, chosen))
        # 0.1 + 0.2 - 0.3 is a tie; taken for a gain it would raise false alarms.
        yield total / chosen.count(1) if abs(total) > rounding else 0.0


def _subsets(count: int, seed: int) -> Iterator[int]:
    """Non-empty subsets of `count` things, as the bits of a number: all of them if they are few, else random ones."""
    if 2**count <= _DRAWS:
        yield from range(1, 2**count)
        return
    random = Random(seed)  # noqa: S311 -- no secret: the same seed has to give the same subsets
    for _ in range(max(_FEWEST_DRAWS, min(_DRAWS, _MOST_PICKS // count))):
        yield random.randrange(1, 2**count)

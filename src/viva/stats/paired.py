"""Paired tests: two runs of the same cases, compared case by case, so that hard and easy cases cancel out."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from random import Random

from viva.stats.proportions import Interval, compute_two_sided_quantile, find_interval_end

_DRAWS = 9_999
_MAX_EXACT_FLIPS = 2_000
"""More flips are counted in floating point."""
_MAX_DRAWN_PAIRS = 2_000
"""The pairs that differ most are drawn one by one; a normal distribution stands for all others together."""
_BITS = bytes.maketrans(b"01", b"\0\1")


@dataclass(frozen=True, slots=True)
class Flips:
    """`broken` cases passed before and fail now, `fixed` ones the other way round."""

    pairs: int
    broken: int
    fixed: int
    p_value: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of (after - before). There is no interval with too few pairs (95 % needs six) or if no pair differs."""

    pairs: int
    mean: float
    interval: Interval | None
    p_value: float


@dataclass(frozen=True, slots=True)
class CaseTest:
    """The test of one case: its p, and the smallest p possible with this number of passes and trials."""

    p_value: float
    min_p_value: float


def mcnemar_test(pairs: Iterable[tuple[bool, bool]]) -> Flips:
    """Run McNemar's exact test on (passed before, passed after) of each case.

    If nothing changed, a case that flips breaks or is fixed with equal probability, so broken ~ Binomial(broken + fixed,
    ½) and p = min(1, 2 · P(X ≤ min(broken, fixed))). Fewer than six flips never reach p ≤ 0.05
    (`min_differing_pairs`). Several trials of one case are not separate pairs: compare the cases' rates with
    `estimate_paired_difference`.
    """
    cases = list(pairs)
    broken = sum(1 for before, after in cases if before and not after)
    fixed = sum(1 for before, after in cases if after and not before)
    return Flips(len(cases), broken, fixed, min(1.0, 2 * _binomial_tail(min(broken, fixed), broken + fixed)))


def _binomial_tail(most: int, flips: int) -> float:
    """P(X ≤ most) for X ~ Binomial(flips, ½)."""
    if flips <= _MAX_EXACT_FLIPS:
        ways, total = 1, 0
        for rarer in range(most + 1):
            total += ways
            ways = ways * (flips - rarer) // (rarer + 1)
        return total / 2**flips
    # Floating point from the largest term down, because integers of this size are slow.
    term = math.exp(
        math.lgamma(flips + 1) - math.lgamma(most + 1) - math.lgamma(flips - most + 1) - flips * math.log(2)
    )
    total = 0.0
    for rarer in range(most, -1, -1):
        total += term
        term *= rarer / (flips - rarer + 1)
        if term < total * 1e-17:
            break
    return total


@lru_cache(maxsize=65536)
def fisher_test(before: tuple[int, int], after: tuple[int, int]) -> CaseTest:
    """Run Fisher's exact two-sided test on (passed, trials) of one case before and after.

    If nothing changed, every distribution of the failures over both runs is equally likely; p sums those that are no
    more likely than the observed one. The trials of a case in one run are assumed to be independent.
    """
    (passed, trials), (passed_now, trials_now) = before, after
    passes, fewest = passed + passed_now, max(0, passed + passed_now - trials_now)
    ways = {k: math.comb(trials, k) * math.comb(trials_now, passes - k) for k in range(fewest, min(trials, passes) + 1)}
    total, rarest = sum(ways.values()), min(ways.values())
    return CaseTest(
        p_value=sum(way for way in ways.values() if way <= ways[passed]) / total,
        min_p_value=sum(way for way in ways.values() if way == rarest) / total,
    )


def tarone_correction(min_p_values: Iterable[float], alpha: float) -> int:
    """Return Tarone's correction for testing many cases: the divisor of alpha, at least 1.

    A case whose p can never be small, for example one that always passes, cannot raise an alarm and is not counted. The
    result is the smallest k for which at most k cases could reach alpha / k. If cases with p ≤ alpha / k are reported, the
    probability of any false report is at most alpha.
    """
    ordered = sorted(min_p_values)
    k = 1
    while bisect_right(ordered, alpha / k) > k:
        k += 1
    return k


def min_differing_pairs(alpha: float) -> int:
    """Return the minimum number of differing cases for a paired test to reach alpha: n on one side have p = 2 / 2^n."""
    return max(1, math.ceil(1 - math.log2(alpha) - 1e-9))


def min_trials_to_detect(alpha: float) -> int:
    """Return the minimum trials per run to show that one case went from always passing to never passing."""
    trials = 1
    while fisher_test((trials, trials), (0, trials)).p_value > alpha:
        trials += 1
    return trials


def estimate_difference_from_flips(flips: Flips, confidence: float = 0.95) -> Difference | None:
    """Return how the pass rate changed, from single trials of each case before and after. None without pairs.

    p is that of McNemar's exact test. The interval is Tango's: the differences that the score test does not reject. It has
    a width if nothing flipped. The two tests can disagree near alpha: an interval that contradicts p is made to
    end at 0.
    """
    if not flips.pairs:
        return None
    mean = (flips.fixed - flips.broken) / flips.pairs
    reach = compute_two_sided_quantile(confidence)

    def is_inside(difference: float) -> bool:
        return abs(_compute_tango_score(flips, difference)) <= reach

    low = -1.0 if _compute_tango_score(flips, -1.0) <= reach else find_interval_end(-1.0, mean, is_inside)
    high = 1.0 if -_compute_tango_score(flips, 1.0) <= reach else find_interval_end(1.0, mean, is_inside)
    if flips.p_value > 1 - confidence + 1e-12:
        low, high = min(low, 0.0), max(high, 0.0)
    elif mean > 0:
        low = max(low, 0.0)
    else:
        high = min(high, 0.0)
    return Difference(flips.pairs, mean, Interval(low, high), flips.p_value)


def _compute_tango_score(flips: Flips, difference: float) -> float:
    """Return how many standard errors (fixed - broken) / pairs lies above an assumed difference (Tango 1998)."""
    n, fixed, broke = flips.pairs, flips.fixed, flips.broken
    above = fixed - broke - n * difference
    if not above:
        return 0.0
    a, b = 2 * n, (2 * n - fixed + broke) * difference - fixed - broke
    root = math.sqrt(max(0.0, b * b + 4 * a * broke * difference * (1 - difference)))
    variance = n * (
        (root - b) / a + difference * (1 - difference)
    )  # (root - b) / 2a is the most likely share of broken
    return above / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, above)


def estimate_paired_difference(
    pairs: Iterable[tuple[float, float]], confidence: float = 0.95, seed: int = 0
) -> Difference | None:
    """Return how the mean of a value (a rate, cost or latency per case) changed. None without pairs.

    If nothing changed, before and after could be swapped in any case: each difference is as likely as its opposite. Then
    the mean of a random subset of the differences lies above 0 as often as below, and likewise around any other true
    difference (Hartigan's typical values). The interval runs between quantiles of the means of subsets: all subsets up to
    13 pairs, else 9,999 random ones, the same for the same seed. p is that of the matching exact test by flipping signs;
    on passes and failures it is McNemar's. Of more than 2,000 pairs that differ only the 2,000 that differ most are drawn:
    a normal distribution stands for the sum of the others, none of which outweighs them.

    If nothing changed, false alarms are at most as frequent as promised, for any number and distribution of pairs.
    Bootstrap intervals do not hold that: with 10 pairs and 5 alarms in 100 promised, the percentile interval raised up to
    13, BCa up to 24. If something changed and the differences are very skewed, this interval is as short as those.
    """
    values = list(pairs)
    if not values:
        return None
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: must be between 0 and 1")
    differences = [after - before for before, after in values]
    rounding = 1e-12 * math.fsum(abs(before) + abs(after) for before, after in values)
    if not any(differences):
        return Difference(len(values), 0.0, None, 1.0)
    means = sorted(_iterate_subset_means(differences, rounding, seed))
    # The empty subset has no mean and counts on both sides.
    not_above = (bisect_right(means, 0.0) + 1) / (len(means) + 1)
    not_below = (len(means) - bisect_left(means, 0.0) + 1) / (len(means) + 1)
    beyond = math.floor((1 - confidence) / 2 * (len(means) + 1) + 1e-9)
    return Difference(
        pairs=len(values),
        mean=math.fsum(differences) / len(values),
        interval=Interval(means[beyond - 1], means[-beyond]) if beyond else None,
        p_value=min(1.0, 2 * min(not_above, not_below)),
    )


def _iterate_subset_means(differences: Sequence[float], rounding: float, seed: int) -> Iterator[float]:
    differing = sorted(filter(None, differences), key=abs, reverse=True)
    if len(differing) > _MAX_DRAWN_PAIRS:
        yield from _draw_subset_means(
            differing[:_MAX_DRAWN_PAIRS], differing[_MAX_DRAWN_PAIRS:], len(differences), seed
        )
        return
    unchanged = len(differences) - len(differing)  # their bits only count
    for subset in _iterate_subsets(len(differences), seed):
        total = _add_chosen(differing, subset >> unchanged)
        # 0.1 + 0.2 - 0.3 must count as 0, else rounding raises false alarms.
        yield total / subset.bit_count() if abs(total) > rounding else 0.0


def _draw_subset_means(largest: Sequence[float], others: Sequence[float], count: int, seed: int) -> Iterator[float]:
    """Yield means of random subsets of `count` differences: the largest, the others, and those that are 0.

    How many of the others are chosen, and their sum, are drawn from the normal distribution with the same variances and
    covariance.
    """
    random = Random(seed)  # noqa: S311 -- reproducible, not secret
    rest = count - len(largest)
    total = math.fsum(others)
    spread = math.sqrt(max(0.0, math.fsum(value * value for value in others) - total * total / rest))
    for _ in range(_DRAWS):
        subset = random.getrandbits(len(largest))
        more = random.gauss() / math.sqrt(rest)  # the share by which more than half of the rest are chosen
        chosen_total = _add_chosen(largest, subset) + (total * (1 + more) + spread * random.gauss()) / 2
        yield chosen_total / (subset.bit_count() + rest * (1 + more) / 2)


def _add_chosen(values: Sequence[float], subset: int) -> float:
    return sum(compress(values, format(subset, f"0{len(values)}b").encode().translate(_BITS)))


def _iterate_subsets(count: int, seed: int) -> Iterator[int]:
    """Yield non-empty subsets of `count` items as the bits of a number: all if they are few, else random ones."""
    end = 2**count  # computed once: with 100,000 items it takes longer than a draw
    if end <= _DRAWS:
        yield from range(1, end)
        return
    random = Random(seed)  # noqa: S311 -- reproducible, not secret
    for _ in range(_DRAWS):
        yield random.randrange(1, end)

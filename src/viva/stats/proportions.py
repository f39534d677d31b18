"""Pass rates and how far to trust them: Wilson's interval for one case, and one for a suite whose cases are clusters."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends belong to it."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tally:
    """Trials of one case that passed, of those that were judged. An `error` trial is not judged."""

    passed: int
    judged: int

    def __post_init__(self) -> None:
        if not 0 <= self.passed <= self.judged:
            raise ValueError(f"{self.passed} of {self.judged} trials cannot have passed")


@dataclass(frozen=True, slots=True)
class SuiteRate:
    """A suite's pass rate. `effective_trials` independent trials would tell as much as these `trials` do;
    `unjudged` cases had only errors and are in no other number.
    """

    rate: float
    interval: Interval
    cases: int
    trials: int
    unjudged: int
    effective_trials: float


def wilson_interval(passed: int, judged: int, confidence: float = 0.95) -> Interval | None:
    """Wilson's score interval for a rate, from independent trials; None without any.

        (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n)

    Unlike p ± z·se it has a width at 0 and 1 and stays inside [0, 1]. Its coverage is right on average over rates,
    not for each: near 0 and 1 it can fall a few points below `confidence`.
    """
    tally = Tally(passed, judged)
    return _score_interval(tally.passed / tally.judged, tally.judged, confidence) if judged else None


def anytime_interval(passed: int, judged: int, confidence: float = 0.95) -> Interval | None:
    """An interval for a rate that holds however the number of trials was chosen, also by looking at them; None without any.

    The rates p for which the likelihood of the trials is more than (1 - confidence) of its mean over all rates,

        p^passed · (1 - p)^failed > (1 - confidence) · B(passed + 1, failed + 1)

    For the true p the mean divided by the likelihood is a martingale that starts at 1, so the chance that it ever reaches
    1/(1 - confidence) is at most 1 - confidence (Ville's inequality). Wilson's interval promises that for a fixed number
    of trials only; it is shorter.
    """
    tally = Tally(passed, judged)
    if not tally.judged:
        return None
    failed = judged - passed
    mean = math.lgamma(passed + 1) + math.lgamma(failed + 1) - math.lgamma(judged + 2)
    least = math.log(1 - confidence) + mean

    def is_inside(rate: float) -> bool:
        return _log_power(rate, passed) + _log_power(1 - rate, failed) > least

    best = passed / judged
    low = 0.0 if is_inside(0.0) else _border(0.0, best, is_inside)
    high = 1.0 if is_inside(1.0) else _border(1.0, best, is_inside)
    return Interval(low, high)


def _log_power(base: float, exponent: int) -> float:
    if not exponent:
        return 0.0
    return exponent * math.log(base) if base > 0 else -math.inf


def _border(outside: float, inside: float, is_inside: Callable[[float], bool]) -> float:
    """The end of an interval between a rate outside of it and one inside."""
    for _ in range(60):
        middle = (outside + inside) / 2
        outside, inside = (outside, middle) if is_inside(middle) else (middle, inside)
    return inside


def estimate_suite_rate(tallies: Iterable[Tally], confidence: float = 0.95) -> SuiteRate | None:
    """The mean of the cases' own rates, with an interval for cases like these; None if nothing was judged.

    Trials of one case resemble each other: a hard case fails again and again. Counting every trial as independent
    makes the interval far too short: with 10 cases, 5 trials each and a correlation of 0.5 a 95 % interval would hold
    the true rate 7 times in 10. So the trials are first counted for what they are worth,

        effective trials = k / (r + (1 - r) · mean(1/nᵢ)),      k cases, nᵢ trials, r the correlation within a case

    which runs from all trials (r = 0) to one a case (r = 1), and Wilson's interval is taken at that number. A bootstrap
    over cases was not chosen: where every case passed it would give an interval of no width.

    What the data say of r, r0, is pulled towards 1 as if one more case had shown full correlation,
    r = (f·r0 + 1)/(f + 1), since it shows only in the f cases that hold the rarer outcome. If all passed, f = 0:
    nothing tells whether failures would cluster, and a case counts once. That is why `all passed` can have a wider
    interval than `all but one`. In simulations its coverage was that of Wilson's interval on independent trials, or
    better: weak with two or three cases only.

    One case: there is nothing to generalise over, and the interval is that case's own.
    """
    given = list(tallies)
    judged = [tally for tally in given if tally.judged]
    if not judged:
        return None
    rate = math.fsum(tally.passed / tally.judged for tally in judged) / len(judged)
    correlation = _cautious_correlation(judged) if len(judged) > 1 else 0.0
    per_case = math.fsum(1 / tally.judged for tally in judged) / len(judged)
    effective = len(judged) / (correlation + (1 - correlation) * per_case)
    return SuiteRate(
        rate=rate,
        interval=_score_interval(rate, effective, confidence),
        cases=len(judged),
        trials=sum(tally.judged for tally in judged),
        unjudged=len(given) - len(judged),
        effective_trials=effective,
    )


def case_correlation(tallies: Sequence[Tally]) -> float | None:
    """How much more alike two trials of one case are than trials of two cases: ICC(1), by analysis of variance.

        (MSB - MSW) / (MSB + (n₀ - 1)·MSW),      n₀ = (N - Σnᵢ²/N)/(k - 1)

    from the mean squares between and within k cases, N trials in all.
    None where it cannot be told: fewer than two cases, one trial a case, or all trials ended alike.
    Chance can make it negative. It is very noisy if few cases hold both outcomes.
    """
    cases, trials = len(tallies), sum(tally.judged for tally in tallies)
    passed = sum(tally.passed for tally in tallies)
    if cases < 2 or trials <= cases or passed in {0, trials}:
        return None
    mean = passed / trials
    between = math.fsum(t.judged * (t.passed / t.judged - mean) ** 2 for t in tallies) / (cases - 1)
    within = math.fsum(t.passed * (t.judged - t.passed) / t.judged for t in tallies) / (trials - cases)
    size = (trials - sum(t.judged**2 for t in tallies) / trials) / (cases - 1)
    return (between - within) / (between + (size - 1) * within)


def _cautious_correlation(tallies: Sequence[Tally]) -> float:
    with_pass = sum(1 for tally in tallies if tally.passed)
    with_failure = sum(1 for tally in tallies if tally.passed < tally.judged)
    seen_in = min(with_pass, with_failure)
    estimate = case_correlation(tallies)
    if estimate is None:
        return 1.0
    return (seen_in * min(1.0, max(0.0, estimate)) + 1) / (seen_in + 1)


def _score_interval(rate: float, n: float, confidence: float) -> Interval:
    z = normal_quantile(confidence)
    scale = 1 + z * z / n
    middle = (rate + z * z / (2 * n)) / scale
    reach = z / scale * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # Rounding must push neither the rate out of its interval nor an end beyond 0 and 1.
    return Interval(max(0.0, min(rate, middle - reach)), min(1.0, max(rate, middle + reach)))


@lru_cache(maxsize=16)
def normal_quantile(confidence: float) -> float:
    from statistics import NormalDist  # 12 ms that only those pay who want an interval

    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence} is not between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)

"""Confidence intervals of pass rates: Wilson's for one case, and one for a suite whose cases are clusters of trials."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tally:
    """Passed and decided trials of one case. A trial is decided if it passed or failed; trials in error are not."""

    passed: int
    decided: int

    def __post_init__(self) -> None:
        if not 0 <= self.passed <= self.decided:
            raise ValueError(f"{self.passed} of {self.decided} trials passed: impossible")


@dataclass(frozen=True, slots=True)
class SuiteRate:
    """The pass rate of a suite. `effective_trials` independent trials carry as much information as these `trials`.

    `without_verdict` cases had only errors and count nowhere else.
    """

    rate: float
    interval: Interval
    cases: int
    trials: int
    without_verdict: int
    effective_trials: float


def wilson_interval(passed: int, decided: int, confidence: float = 0.95) -> Interval | None:
    """Return Wilson's score interval for the rate of independent trials; None without trials.

        (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n)

    Unlike p ± z·se it has a width at 0 and 1 and stays inside [0, 1]. Its coverage is right on average over all rates;
    near 0 and 1 it can be a few points below `confidence`.
    """
    tally = Tally(passed, decided)
    return _compute_wilson_interval(tally.passed / tally.decided, tally.decided, confidence) if decided else None


def anytime_interval(passed: int, decided: int, confidence: float = 0.95) -> Interval | None:
    """Return an interval for a rate that stays valid if the trials were stopped by looking at them; None without trials.

    It holds the rates p whose likelihood is more than (1 - confidence) of the mean likelihood over all rates,

        p^passed · (1 - p)^failed > (1 - confidence) · B(passed + 1, failed + 1)

    For the true p the mean divided by the likelihood is a martingale that starts at 1, so the probability that it ever
    reaches 1/(1 - confidence) is at most 1 - confidence (Ville's inequality). Wilson's interval is shorter but holds for
    a fixed number of trials only.
    """
    tally = Tally(passed, decided)
    if not tally.decided:
        return None
    failed = decided - passed
    mean = math.lgamma(passed + 1) + math.lgamma(failed + 1) - math.lgamma(decided + 2)
    least = math.log(1 - confidence) + mean

    def is_inside(rate: float) -> bool:
        return _log_power(rate, passed) + _log_power(1 - rate, failed) > least

    best = passed / decided
    low = 0.0 if is_inside(0.0) else find_interval_end(0.0, best, is_inside)
    high = 1.0 if is_inside(1.0) else find_interval_end(1.0, best, is_inside)
    return Interval(low, high)


def _log_power(base: float, exponent: int) -> float:
    if not exponent:
        return 0.0
    return exponent * math.log(base) if base > 0 else -math.inf


def find_interval_end(outside: float, inside: float, is_inside: Callable[[float], bool]) -> float:
    """Return the end of an interval by bisection between a rate outside and one inside."""
    for _ in range(60):
        middle = (outside + inside) / 2
        outside, inside = (outside, middle) if is_inside(middle) else (middle, inside)
    return inside


def estimate_suite_rate(tallies: Iterable[Tally], confidence: float = 0.95) -> SuiteRate | None:
    """Return the mean of the cases' rates, with an interval for the population of such cases; None without decided trials.

    Trials of one case are correlated: a hard case fails repeatedly. Counting all trials as independent makes the interval
    too short: with 10 cases, 5 trials each and a correlation of 0.5 a 95 % interval contains the true rate 7 times in
    10. So the number of trials is corrected,

        effective trials = k / (r + (1 - r) · mean(1/nᵢ)),      k cases, nᵢ trials, r the correlation within a case

    from all trials (r = 0) to one per case (r = 1), and Wilson's interval is computed for that number. A bootstrap over
    cases would give an interval without width if every case passed.

    The estimate r0 of r is shrunk towards 1 as if one more case had shown full correlation, r = (f·r0 + 1)/(f + 1),
    because it shows only in the f cases with the rarer outcome. If all passed, f = 0, and a case counts once. So `all
    passed` can have a wider interval than `all but one`. In simulations the coverage was that of Wilson's interval on
    independent trials, or better; it is weak with two or three cases.

    With one case the interval is that of the case.
    """
    cases = list(tallies)
    decided = [tally for tally in cases if tally.decided]
    if not decided:
        return None
    rate = math.fsum(tally.passed / tally.decided for tally in decided) / len(decided)
    correlation = _estimate_correlation_cautiously(decided) if len(decided) > 1 else 0.0
    per_case = math.fsum(1 / tally.decided for tally in decided) / len(decided)
    effective = len(decided) / (correlation + (1 - correlation) * per_case)
    return SuiteRate(
        rate=rate,
        interval=_compute_wilson_interval(rate, effective, confidence),
        cases=len(decided),
        trials=sum(tally.decided for tally in decided),
        without_verdict=len(cases) - len(decided),
        effective_trials=effective,
    )


def estimate_case_correlation(tallies: Sequence[Tally]) -> float | None:
    """Return the correlation of trials within a case: ICC(1), by analysis of variance.

        (MSB - MSW) / (MSB + (n₀ - 1)·MSW),      n₀ = (N - Σnᵢ²/N)/(k - 1)

    from the mean squares between and within k cases, N trials in all.
    None if it is undefined: fewer than two cases, one trial per case, or all trials ended alike. It can be negative by
    chance, and is noisy if few cases have both outcomes.
    """
    cases, trials = len(tallies), sum(tally.decided for tally in tallies)
    passed = sum(tally.passed for tally in tallies)
    if cases < 2 or trials <= cases or passed in {0, trials}:
        return None
    mean = passed / trials
    between = math.fsum(t.decided * (t.passed / t.decided - mean) ** 2 for t in tallies) / (cases - 1)
    within = math.fsum(t.passed * (t.decided - t.passed) / t.decided for t in tallies) / (trials - cases)
    size = (trials - sum(t.decided**2 for t in tallies) / trials) / (cases - 1)
    return (between - within) / (between + (size - 1) * within)


def _estimate_correlation_cautiously(tallies: Sequence[Tally]) -> float:
    with_pass = sum(1 for tally in tallies if tally.passed)
    with_failure = sum(1 for tally in tallies if tally.passed < tally.decided)
    mixed = min(with_pass, with_failure)
    estimate = estimate_case_correlation(tallies)
    if estimate is None:
        return 1.0
    return (mixed * min(1.0, max(0.0, estimate)) + 1) / (mixed + 1)


def _compute_wilson_interval(rate: float, n: float, confidence: float) -> Interval:
    z = compute_two_sided_quantile(confidence)
    scale = 1 + z * z / n
    middle = (rate + z * z / (2 * n)) / scale
    reach = z / scale * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # Rounding must not push the rate out of its interval, or an end beyond 0 and 1.
    return Interval(max(0.0, min(rate, middle - reach)), min(1.0, max(rate, middle + reach)))


@lru_cache(maxsize=16)
def compute_two_sided_quantile(confidence: float) -> float:
    from statistics import NormalDist  # takes 12 ms to import

    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: must be between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)

"""Intervals for pass rates, against scipy, published numbers and simulated suites whose true rate is known."""

import math
from functools import cache
from random import Random

import pytest
from scipy.stats import binomtest

from unit.stats.tau_bench import AIRLINE, RETAIL, Published
from viva.stats.proportions import (
    Interval,
    Tally,
    anytime_interval,
    estimate_case_correlation,
    estimate_suite_rate,
    wilson_interval,
)


@pytest.mark.parametrize("decided", [1, 2, 7, 20, 1000])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_wilson_is_scipys(decided, confidence):
    for passed in {0, 1, decided // 3, decided - 1, decided}:
        theirs = binomtest(passed, decided).proportion_ci(confidence, method="wilson")
        ours = wilson_interval(passed, decided, confidence)
        assert ours is not None
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilson_of_nothing_is_none():
    assert wilson_interval(0, 0) is None


def test_wilson_ends_exactly_at_zero_and_one():
    for decided in range(1, 200):
        none, all_of_them = wilson_interval(0, decided), wilson_interval(decided, decided)
        assert none is not None
        assert all_of_them is not None
        assert none.low == 0.0
        assert all_of_them.high == 1.0
        assert none.high == pytest.approx(1 - all_of_them.low)


def test_impossible_counts_and_confidences_are_refused():
    for passed, decided in [(2, 1), (-1, 3), (0, -1)]:
        with pytest.raises(ValueError, match="impossible"):
            wilson_interval(passed, decided)
    for confidence in (0.0, 1.0, 95.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            wilson_interval(1, 2, confidence)


def test_a_suite_without_decided_trials_has_no_rate():
    assert estimate_suite_rate([]) is None
    assert estimate_suite_rate([Tally(0, 0), Tally(0, 0)]) is None


def test_each_case_counts_once_with_any_number_of_trials():
    found = estimate_suite_rate([Tally(0, 1), Tally(99, 99), Tally(0, 0)])
    assert found is not None
    assert found.rate == 0.5
    assert (found.cases, found.trials, found.without_verdict) == (2, 100, 1)


def test_one_trial_a_case_is_plain_wilson():
    found = estimate_suite_rate([Tally(1, 1)] * 7 + [Tally(0, 1)] * 3)
    assert found is not None
    assert found.interval == wilson_interval(7, 10)


def test_cases_with_equal_outcomes_count_once_with_any_number_of_trials():
    found = estimate_suite_rate([Tally(8, 8)] * 7 + [Tally(0, 8)] * 3)
    assert found is not None
    assert found.effective_trials == pytest.approx(10)
    plain = wilson_interval(7, 10)
    assert plain is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((plain.low, plain.high))


def test_where_all_passed_a_case_counts_once():
    found = estimate_suite_rate([Tally(5, 5)] * 10)
    assert found is not None
    assert found.effective_trials == 10
    assert found.interval == wilson_interval(10, 10)


def test_one_case_has_its_own_interval():
    found = estimate_suite_rate([Tally(15, 20)])
    assert found is not None
    assert found.interval == wilson_interval(15, 20)


def test_alike_cases_are_worth_nearly_all_their_trials():
    found = estimate_suite_rate([Tally(2, 4), Tally(3, 4), Tally(2, 4), Tally(1, 4)] * 25)
    assert found is not None
    assert 380 < found.effective_trials <= 400


@pytest.mark.parametrize("published", [AIRLINE, RETAIL])
def test_the_correlation_within_cases_is_the_published_one(published: Published):
    assert estimate_case_correlation(published.tallies) == pytest.approx(published.icc, abs=5e-4)


@pytest.mark.parametrize(
    ("tallies", "correlation"),
    [
        ([Tally(4, 4), Tally(0, 4)], 1.0),
        ([Tally(2, 4), Tally(2, 4)], -1 / 3),
        ([Tally(2, 4)], None),
        ([Tally(1, 1), Tally(0, 1)], None),
        ([Tally(4, 4), Tally(4, 4)], None),
        ([Tally(0, 4), Tally(0, 4)], None),
    ],
)
def test_a_correlation_needs_two_cases_with_repeats_and_both_outcomes(tallies: list[Tally], correlation: float | None):
    assert estimate_case_correlation(tallies) == (None if correlation is None else pytest.approx(correlation))


def test_real_repeats_are_worth_half_their_number():
    """200 trials of 50 tasks with a correlation of 0.4: the interval is that of about 90 trials."""
    found = estimate_suite_rate(AIRLINE.tallies)
    assert found is not None
    assert found.trials == 200
    assert 80 < found.effective_trials < 95


def test_the_correlation_cannot_be_told_from_too_little():
    assert estimate_case_correlation([Tally(1, 3)]) is None
    assert estimate_case_correlation([Tally(1, 1), Tally(0, 1)]) is None
    assert estimate_case_correlation([Tally(3, 3), Tally(5, 5)]) is None


def share_held(rate: float, correlation: float, cases: int, trials: int, runs: int) -> tuple[float, float]:
    """How often the true rate is inside our interval, and inside one that takes all trials for independent.

    A case's own rate is drawn from a Beta distribution (or is 0 or 1 where the correlation is full).
    """
    random = Random(f"{rate} {correlation} {cases} {trials}")
    ours = naive = 0
    for _ in range(runs):
        tallies = [Tally(passes(random, rate, correlation, trials), trials) for _ in range(cases)]
        found = estimate_suite_rate(tallies)
        independent = wilson_interval(sum(tally.passed for tally in tallies), cases * trials)
        assert found is not None
        assert independent is not None
        ours += holds(found.interval, rate)
        naive += holds(independent, rate)
    return ours / runs, naive / runs


def passes(random: Random, rate: float, correlation: float, trials: int) -> int:
    if correlation == 1:
        own = float(random.random() < rate)
    elif correlation == 0:
        own = rate
    else:
        weight = (1 - correlation) / correlation
        own = random.betavariate(rate * weight, (1 - rate) * weight)
    return sum(random.random() < own for _ in range(trials))


def holds(interval: Interval, rate: float) -> bool:
    return interval.low <= rate <= interval.high


@pytest.mark.parametrize(("rate", "correlation"), [(0.5, 0.0), (0.8, 0.4), (0.9, 0.7)])
def test_the_interval_holds_the_true_rate_as_often_as_it_says(rate, correlation):
    """95 % is promised; simulating it 1,500 times leaves a doubt of 1.7 points."""
    ours, naive = share_held(rate, correlation, cases=20, trials=5, runs=1500)
    assert ours > 0.95 - 0.017
    if correlation:
        assert naive < 0.8


@pytest.mark.soak
@pytest.mark.parametrize("cases", [5, 10, 20, 50])
@pytest.mark.parametrize("rate", [0.5, 0.8, 0.95])
def test_the_interval_is_as_good_as_wilsons_on_independent_trials(cases, rate):
    """Where it falls short of 95 %, Wilson's on as many independent trials as there are cases does so too."""
    own = sum(
        math.comb(cases, passed) * rate**passed * (1 - rate) ** (cases - passed)
        for passed in range(cases + 1)
        if (interval := wilson_interval(passed, cases)) and holds(interval, rate)
    )
    for correlation in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        for trials in (3, 10):
            ours, _ = share_held(rate, correlation, cases, trials, runs=1500)
            assert ours > min(0.95, own) - 0.025, (correlation, trials)


def test_an_interval_for_any_number_of_trials_is_wider_than_wilsons_and_holds_the_rate():
    assert anytime_interval(0, 0) is None
    for passed, decided in ((0, 3), (3, 3), (12, 12), (33, 38), (50, 100)):
        found, fixed = anytime_interval(passed, decided), wilson_interval(passed, decided)
        assert found is not None
        assert fixed is not None
        assert 0 <= found.low <= fixed.low <= passed / decided <= fixed.high <= found.high <= 1


@pytest.mark.parametrize("rate", [0.5, 0.9, 0.97])
def test_it_contains_the_true_rate_after_any_number_of_looks(rate: float):
    """400 cases of 150 trials, looked at after each: at most 5 % of them ever have an interval without the rate."""
    random, missed, interval = Random(3), 0, cache(anytime_interval)
    for _ in range(400):
        passed = 0
        for decided in range(1, 151):
            passed += random.random() < rate
            found = interval(passed, decided)
            assert found is not None
            if not found.low <= rate <= found.high:
                missed += 1
                break
    print(f"{rate}: {missed / 400:.3f}")
    assert missed / 400 <= 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5  # N37

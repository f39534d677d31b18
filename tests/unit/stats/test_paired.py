"""Comparisons by case: against scipy and brute force, and silent where nothing changed."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import xlogy
from scipy.stats import binomtest, fisher_exact, multinomial, norm, permutation_test

from viva.stats.paired import (
    Flips,
    estimate_difference_from_flips,
    estimate_paired_difference,
    fisher_test,
    mcnemar_test,
    min_differing_pairs,
    min_trials_to_detect,
    tarone_correction,
)


@pytest.mark.parametrize(("broke", "fixed"), [(0, 0), (1, 0), (0, 6), (3, 3), (2, 9), (40, 61), (700, 800)])
def test_mcnemar_is_the_two_sided_binomial_test(broke, fixed):
    found = mcnemar_test([(True, False)] * broke + [(False, True)] * fixed + [(True, True), (False, False)] * 5)
    assert (found.pairs, found.broken, found.fixed) == (broke + fixed + 10, broke, fixed)
    expected = binomtest(broke, broke + fixed).pvalue if broke + fixed else 1.0
    assert found.p_value == pytest.approx(expected)


def test_fishers_test_is_scipys():
    for trials in (1, 3, 5, 10):
        for trials_now in (1, 4, 7):
            for passed in range(trials + 1):
                for passed_now in range(trials_now + 1):
                    table = [[passed, trials - passed], [passed_now, trials_now - passed_now]]
                    ours = fisher_test((passed, trials), (passed_now, trials_now))
                    assert ours.p_value == pytest.approx(fisher_exact(table)[1])
                    assert ours.min_p_value <= ours.p_value + 1e-12


def test_mcnemar_of_nothing_finds_nothing():
    assert mcnemar_test([]).p_value == 1.0


def flips(before: list[bool], after: list[bool]) -> tuple[float, float]:
    pairs = list(zip(before, after, strict=True))
    difference = estimate_paired_difference(pairs)
    assert difference is not None
    return mcnemar_test(pairs).p_value, difference.p_value


def test_on_passes_and_failures_the_difference_has_mcnemars_p():
    for broke in range(7):
        for fixed in range(6):
            before = [True] * broke + [False] * fixed + [True]
            after = [False] * broke + [True] * fixed + [True]
            ours, theirs = flips(before, after)
            assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("count", [2, 6, 10])
def test_p_is_that_of_the_exact_sign_flip_test(count):
    random = Random(count)
    for _ in range(5):
        before = [random.gauss(0, 1) for _ in range(count)]
        after = [random.gauss(0.7, 1) for _ in range(count)]
        theirs = permutation_test(
            (after, before), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=10_000
        )
        found = estimate_paired_difference(zip(before, after, strict=True))
        assert found is not None
        assert found.p_value == pytest.approx(theirs.pvalue)
        assert found.mean == pytest.approx(theirs.statistic)


def test_the_interval_holds_the_differences_that_the_test_would_not_reject():
    """Shifting `after` by an end of the interval leaves p just above 5 %, a little more brings it to 5 % or below."""
    random = Random(3)
    before = [random.gauss(10, 1) for _ in range(9)]
    after = [random.gauss(11, 1) for _ in range(9)]
    found = estimate_paired_difference(zip(before, after, strict=True))
    assert found is not None
    assert found.interval is not None
    assert found.interval.low < found.mean < found.interval.high
    for end, outwards in ((found.interval.low, -1e-6), (found.interval.high, 1e-6)):
        assert p_of_shift(before, after, end) > 0.05
        assert p_of_shift(before, after, end + outwards) <= 0.05


def p_of_shift(before: list[float], after: list[float], shift: float) -> float:
    found = estimate_paired_difference(zip(before, [value - shift for value in after], strict=True))
    assert found is not None
    return found.p_value


def test_many_pairs_give_the_interval_of_a_t_test():
    """With 400 normal differences of mean 1 and deviation 2 its half width is 1.97 · 2/√400."""
    random = Random(5)
    pairs = [(value := random.gauss(5, 3), value + random.gauss(1, 2)) for _ in range(400)]
    found = estimate_paired_difference(pairs)
    assert found is not None
    assert found.interval is not None
    assert found.interval.low < 1 < found.interval.high
    assert (found.interval.high - found.interval.low) / 2 == pytest.approx(0.197, rel=0.1)
    assert found.p_value < 0.001


def test_pairing_takes_out_how_hard_a_case_is():
    """A gain of 5 is found among costs that range over 1,000."""
    random = Random(6)
    pairs = [(cost := random.uniform(0, 1000), cost + random.gauss(5, 3)) for _ in range(15)]
    found = estimate_paired_difference(pairs)
    assert found is not None
    assert found.p_value < 0.01


def test_too_few_pairs_have_no_interval_and_no_alarm():
    assert estimate_paired_difference([]) is None
    for count in range(1, 6):
        found = estimate_paired_difference([(0.0, 1.0 + place) for place in range(count)])
        assert found is not None
        assert found.interval is None
        assert found.p_value > 0.05


def test_the_same_seed_gives_the_same_interval():
    pairs = [(random.random(), random.random()) for random in [Random(8)] for _ in range(30)]
    assert estimate_paired_difference(pairs, seed=1) == estimate_paired_difference(pairs, seed=1)
    assert estimate_paired_difference(pairs, seed=1) != estimate_paired_difference(pairs, seed=2)


@pytest.mark.parametrize("seed", range(3))
def test_draws_are_never_empty(seed: int):
    """An empty one would have the mean 0. If all cases gained, none is at or below 0, so p is the smallest possible."""
    found = estimate_paired_difference([(0.0, 1.0)] * 14, seed=seed)
    assert found is not None
    assert found.p_value == pytest.approx(2 / 10_000)


def test_differences_that_cancel_out_but_for_rounding_are_a_tie():
    """0.1 + 0.2 - 0.3 is 5.6e-17 to the machine: as a gain it would make p smaller than it is in whole numbers."""
    tenths = [1, 2, -3, 1, 2, -3, 4, 4]
    in_floats = estimate_paired_difference([(0.0, value / 10) for value in tenths])
    in_whole_numbers = estimate_paired_difference([(0, value) for value in tenths])
    assert in_floats is not None
    assert in_whole_numbers is not None
    assert in_floats.p_value == in_whole_numbers.p_value


def test_a_confidence_is_a_share():
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimate_paired_difference([(1.0, 2.0)], confidence=95)


def unchanged_rates(random: Random) -> tuple[float, float]:
    rate = random.random()
    return sum(random.random() < rate for _ in range(5)) / 5, sum(random.random() < rate for _ in range(5)) / 5


def unchanged_costs(random: Random) -> tuple[float, float]:
    return random.lognormvariate(0, 2), random.lognormvariate(0, 2)


def unchanged_latencies(random: Random) -> tuple[float, float]:
    usual = random.uniform(1, 60)
    return random.gauss(usual, 1), random.gauss(usual, 1)


def false_alarms(draw: Callable[[Random], tuple[float, float]], pairs: int, runs: int) -> float:
    random = Random(f"{draw.__name__} {pairs}")
    found = [estimate_paired_difference([draw(random) for _ in range(pairs)]) for _ in range(runs)]
    alarms = sum(1 for difference in found if difference is not None and difference.p_value <= 0.05)
    excluded = sum(
        1
        for difference in found
        if difference is not None
        and difference.interval is not None
        and not difference.interval.low <= 0 <= difference.interval.high
    )
    assert alarms == excluded  # interval and p say the same
    return alarms / runs


@pytest.mark.parametrize("draw", [unchanged_rates, unchanged_costs, unchanged_latencies])
def test_where_nothing_changed_alarms_are_as_rare_as_promised(draw):
    """At most 5 %; simulating it 1,000 times leaves a doubt of two points."""
    assert false_alarms(draw, pairs=8, runs=1000) <= 0.05 + 0.02


@pytest.mark.soak
@pytest.mark.parametrize("draw", [unchanged_rates, unchanged_costs, unchanged_latencies])
@pytest.mark.parametrize("pairs", [3, 6, 10, 20, 50])
def test_alarms_stay_rare_for_any_number_of_pairs(draw, pairs):
    assert false_alarms(draw, pairs, runs=1000) <= 0.05 + 0.02


def test_where_nothing_changed_mcnemar_alarms_are_as_rare_as_promised():
    random = Random(9)
    alarms = 0
    for _ in range(2000):
        rates = [random.random() for _ in range(40)]
        alarms += mcnemar_test([(random.random() < rate, random.random() < rate) for rate in rates]).p_value <= 0.05
    assert alarms / 2000 <= 0.05 + 0.015


def test_a_real_change_is_found():
    random = Random(10)
    alarms = 0
    for _ in range(200):
        pairs = [(random.random() < 0.9, random.random() < 0.6) for _ in range(60)]
        alarms += mcnemar_test(pairs).p_value <= 0.05
    assert alarms > 180


def flips_of(pairs: int, broke: int, fixed: int) -> Flips:
    unchanged = [(True, True)] * (pairs - broke - fixed)
    return mcnemar_test([(True, False)] * broke + [(False, True)] * fixed + unchanged)


def score_interval(pairs: int, broke: int, fixed: int, confidence: float) -> tuple[float, float]:
    """Tango's interval by brute force: the likeliest share of broken cases is looked for under each difference."""
    z = norm.ppf((1 + confidence) / 2)

    def is_kept(difference: float) -> bool:
        least, most = max(0.0, -difference), (1 - difference) / 2

        def likelihood(q: float) -> float:
            shares = ((fixed, q + difference), (broke, q), (pairs - broke - fixed, 1 - 2 * q - difference))
            return -sum(xlogy(count, max(share, 0.0)) for count, share in shares)

        found: Any = minimize_scalar(likelihood, bounds=(least, most), method="bounded", options={"xatol": 1e-10})
        q = found.x
        variance = pairs * (2 * q + difference * (1 - difference))
        return abs(fixed - broke - pairs * difference) <= z * variance**0.5

    kept = [step / 400 for step in range(-399, 400) if is_kept(step / 400)]
    return min(kept), max(kept)


@pytest.mark.parametrize(("pairs", "broke", "fixed"), [(100, 0, 0), (100, 15, 4), (40, 3, 10), (12, 2, 1)])
def test_the_interval_of_flips_is_that_of_the_score_test(pairs: int, broke: int, fixed: int):
    found = estimate_difference_from_flips(flips_of(pairs, broke, fixed))
    mirrored = estimate_difference_from_flips(flips_of(pairs, fixed, broke))
    assert found is not None
    assert mirrored is not None
    assert found.interval is not None
    assert mirrored.interval is not None
    low, high = score_interval(pairs, broke, fixed, 0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), abs=0.005)
    assert (mirrored.interval.low, mirrored.interval.high) == pytest.approx((-found.interval.high, -found.interval.low))


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.975, 0.999, 1 - 4e-6])
@pytest.mark.parametrize("pairs", [1, 5, 6, 20, 60])
def test_the_interval_of_flips_holds_0_just_where_p_does_not_reach_alpha(pairs: int, confidence: float):
    for broke in range(pairs + 1):
        for fixed in range(pairs + 1 - broke):
            found = estimate_difference_from_flips(flips_of(pairs, broke, fixed), confidence)
            assert found is not None
            assert found.interval is not None
            assert -1 <= found.interval.low <= found.mean <= found.interval.high <= 1
            if found.p_value <= 1 - confidence:  # N36
                assert not found.interval.low < 0 < found.interval.high
            else:
                assert found.interval.low <= 0 <= found.interval.high


def test_a_p_of_exactly_alpha_is_enough_for_an_interval_without_0():
    for broke, fixed in ((5, 0), (0, 5)):
        found = estimate_difference_from_flips(flips_of(20, broke, fixed), confidence=1 - 0.0625)
        assert found is not None
        assert found.p_value == 0.0625
        assert found.interval is not None
        assert found.interval.low * found.interval.high > 0  # N36


@pytest.mark.soak
@pytest.mark.parametrize(("broke", "fixed"), [(0.02, 0.02), (0.12, 0.02), (0.3, 0.2), (0.01, 0.1)])
@pytest.mark.parametrize("pairs", [20, 100])
def test_the_interval_of_flips_holds_the_true_difference_as_often_as_it_says(pairs: int, broke: float, fixed: float):
    """Exact, over every number of flips."""
    held = 0.0
    for b in range(pairs + 1):
        for f in range(pairs + 1 - b):
            chance = multinomial.pmf([b, f, pairs - b - f], pairs, [broke, fixed, 1 - broke - fixed])
            if chance > 1e-9:
                found = estimate_difference_from_flips(flips_of(pairs, b, f))
                assert found is not None
                assert found.interval is not None
                held += chance * (found.interval.low <= fixed - broke <= found.interval.high)
    print(f"{pairs} pairs, {broke} broke, {fixed} fixed: {held:.3f}")
    assert held >= 0.94


def test_many_flips_are_counted_in_floating_point_and_agree_with_scipy():
    for broke, fixed in ((1000, 1100), (15_000, 15_500), (3000, 2000)):
        expected = binomtest(broke, broke + fixed).pvalue
        assert flips_of(broke + fixed, broke, fixed).p_value == pytest.approx(expected, rel=1e-6)


def test_many_pairs_agree_with_drawn_signs():
    """Just below and just above the number of pairs of which some are no longer drawn."""
    random = Random(14)
    pairs = [(random.lognormvariate(0, 1), random.lognormvariate(0.05, 1)) for _ in range(2001)]
    drawn, normal = estimate_paired_difference(pairs[:2000]), estimate_paired_difference(pairs)
    assert drawn is not None
    assert normal is not None
    assert drawn.interval is not None
    assert normal.interval is not None
    assert normal.p_value == pytest.approx(drawn.p_value, abs=0.02)
    assert (normal.interval.low, normal.interval.high) == pytest.approx(
        (drawn.interval.low, drawn.interval.high), abs=0.01
    )


@pytest.mark.parametrize("unchanged", [100, 2100])
def test_few_cases_that_differ_raise_no_alarm_however_many_do_not(unchanged: int):
    found = estimate_paired_difference([(1.0, 0.5)] * 4 + [(1.0, 1.0)] * unchanged)
    assert found is not None
    assert found.interval is not None
    assert found.p_value == pytest.approx(2 / 2**4, abs=0.02)  # N36
    assert found.interval.high == 0.0


def test_four_differences_that_outweigh_thousands_raise_no_alarm():
    """Four calls that hung are on one side in one of eight comparisons, and in half of these the others are above 0 too.

    The normal distribution alone gives 0.046, which is an alarm.
    """
    random = Random(3)
    noise = [(5.0, random.gauss(5, 0.1)) for _ in range(1250)]
    found = estimate_paired_difference([*noise, *((b, a) for a, b in noise), *[(5.0, 300.0)] * 4])
    assert found is not None
    assert found.p_value == pytest.approx(1 / 16, abs=0.01)  # N36


def test_many_differences_that_cancel_out_are_a_tie():
    found = estimate_paired_difference([(0.0, 1.0), (1.0, 0.0)] * 1001)
    assert found is not None
    assert found.p_value == pytest.approx(1.0, abs=0.03)


def test_differences_that_are_all_nothing_have_no_interval():
    """An interval of no width would say that nothing can have changed."""
    found = estimate_paired_difference([(1.0, 1.0)] * 20)
    assert found is not None
    assert (found.mean, found.interval, found.p_value) == (0.0, None, 1.0)


@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.01, 0.03125, 0.5])
def test_fewer_cases_than_this_can_never_be_significant(alpha: float):
    fewest = min_differing_pairs(alpha)
    assert flips_of(fewest, fewest, 0).p_value <= alpha  # N36
    assert fewest == 1 or flips_of(fewest, fewest - 1, 0).p_value > alpha
    assert min_differing_pairs(0.05) == 6


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 100, 0.01])
def test_this_many_trials_can_show_a_single_broken_case(alpha: float):
    trials = min_trials_to_detect(alpha)
    whole: Any = fisher_exact([[trials, 0], [0, trials]])
    fewer: Any = fisher_exact([[trials - 1, 0], [0, trials - 1]])
    assert whole.pvalue <= alpha < fewer.pvalue  # N36


def test_cases_that_can_raise_no_alarm_do_not_count_in_the_correction():
    assert tarone_correction([], 0.05) == 1
    assert tarone_correction([1.0] * 100, 0.05) == 1
    assert tarone_correction([1.0] * 100 + [0.001] * 3, 0.05) == 3
    assert tarone_correction([0.008] * 25, 0.05) == 7  # beyond 6 none of them can reach it
    assert tarone_correction([0.0001] * 25, 0.05) == 25


@pytest.mark.parametrize("trials", [3, 5, 10])
def test_many_cases_raise_no_more_alarms_than_one(trials: int):
    """20 unchanged cases at a time: at most 5 % of the comparisons call any of them a finding."""
    random, alarms = Random(trials), 0
    for _ in range(1000):
        rates = [random.choice((0.2, 0.5, 0.9)) for _ in range(20)]
        counts = [[sum(random.random() < rate for _ in range(trials)) for _ in range(2)] for rate in rates]
        tests = [fisher_test((before, trials), (after, trials)) for before, after in counts]
        k = tarone_correction([test.min_p_value for test in tests], 0.05)
        alarms += any(test.p_value <= 0.05 / k for test in tests)
    print(f"{trials} trials: {alarms / 1000:.3f}")
    assert alarms / 1000 <= 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5  # N36

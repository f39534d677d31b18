"""Comparisons by case: against scipy and brute force, and silent where nothing changed."""

from collections.abc import Callable
from itertools import combinations
from random import Random

import numpy as np
import pytest
from scipy.stats import binomtest, fisher_exact, permutation_test

from viva.stats.paired import fisher, holm, mcnemar, paired_difference


@pytest.mark.parametrize(("broke", "fixed"), [(0, 0), (1, 0), (0, 6), (3, 3), (2, 9), (40, 61), (700, 800)])
def test_mcnemar_is_the_two_sided_binomial_test(broke, fixed):
    found = mcnemar([(True, False)] * broke + [(False, True)] * fixed + [(True, True), (False, False)] * 5)
    assert (found.pairs, found.broke, found.fixed) == (broke + fixed + 10, broke, fixed)
    expected = binomtest(broke, broke + fixed).pvalue if broke + fixed else 1.0
    assert found.p_value == pytest.approx(expected)


def test_fishers_test_is_scipys():
    for trials in (1, 3, 5, 10):
        for trials_now in (1, 4, 7):
            for passed in range(trials + 1):
                for passed_now in range(trials_now + 1):
                    table = [[passed, trials - passed], [passed_now, trials_now - passed_now]]
                    ours = fisher((passed, trials), (passed_now, trials_now))
                    assert ours == pytest.approx(fisher_exact(table)[1])


def test_mcnemar_of_nothing_finds_nothing():
    assert mcnemar([]).p_value == 1.0


def flips(before: list[bool], after: list[bool]) -> tuple[float, float]:
    pairs = list(zip(before, after, strict=True))
    difference = paired_difference(pairs)
    assert difference is not None
    return mcnemar(pairs).p_value, difference.p_value


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
        found = paired_difference(zip(before, after, strict=True))
        assert found is not None
        assert found.p_value == pytest.approx(theirs.pvalue)
        assert found.mean == pytest.approx(theirs.statistic)


def test_the_interval_holds_the_differences_that_the_test_would_not_reject():
    """Shifting `after` by an end of the interval leaves p just above 5 %, a little more brings it to 5 % or below."""
    random = Random(3)
    before = [random.gauss(10, 1) for _ in range(9)]
    after = [random.gauss(11, 1) for _ in range(9)]
    found = paired_difference(zip(before, after, strict=True))
    assert found is not None
    assert found.interval is not None
    assert found.interval.low < found.mean < found.interval.high
    for end, outwards in ((found.interval.low, -1e-6), (found.interval.high, 1e-6)):
        assert p_of_shift(before, after, end) > 0.05
        assert p_of_shift(before, after, end + outwards) <= 0.05


def p_of_shift(before: list[float], after: list[float], shift: float) -> float:
    found = paired_difference(zip(before, [value - shift for value in after], strict=True))
    assert found is not None
    return found.p_value


def test_many_pairs_give_the_interval_of_a_t_test():
    """With 400 normal differences of mean 1 and deviation 2 its half width is 1.97 · 2/√400."""
    random = Random(5)
    pairs = [(value := random.gauss(5, 3), value + random.gauss(1, 2)) for _ in range(400)]
    found = paired_difference(pairs)
    assert found is not None
    assert found.interval is not None
    assert found.interval.low < 1 < found.interval.high
    assert (found.interval.high - found.interval.low) / 2 == pytest.approx(0.197, rel=0.1)
    assert found.p_value < 0.001


def test_pairing_takes_out_how_hard_a_case_is():
    """A gain of 5 is found among costs that range over 1,000."""
    random = Random(6)
    pairs = [(cost := random.uniform(0, 1000), cost + random.gauss(5, 3)) for _ in range(15)]
    found = paired_difference(pairs)
    assert found is not None
    assert found.p_value < 0.01


def test_too_few_pairs_have_no_interval_and_no_alarm():
    assert paired_difference([]) is None
    for count in range(1, 6):
        found = paired_difference([(0.0, 1.0 + place) for place in range(count)])
        assert found is not None
        assert found.interval is None
        assert found.p_value > 0.05


def test_the_same_seed_gives_the_same_interval():
    pairs = [(random.random(), random.random()) for random in [Random(8)] for _ in range(30)]
    assert paired_difference(pairs, seed=1) == paired_difference(pairs, seed=1)
    assert paired_difference(pairs, seed=1) != paired_difference(pairs, seed=2)


def test_differences_that_cancel_out_but_for_rounding_are_a_tie():
    """0.1 + 0.2 - 0.3 is 5.6e-17 to the machine: as a gain it would make p smaller than it is in whole numbers."""
    tenths = [1, 2, -3, 1, 2, -3, 4, 4]
    in_floats = paired_difference([(0.0, value / 10) for value in tenths])
    in_whole_numbers = paired_difference([(0, value) for value in tenths])
    assert in_floats is not None
    assert in_whole_numbers is not None
    assert in_floats.p_value == in_whole_numbers.p_value


def test_a_confidence_is_a_share():
    with pytest.raises(ValueError, match="not between 0 and 1"):
        paired_difference([(1.0, 2.0)], confidence=95)


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
    found = [paired_difference([draw(random) for _ in range(pairs)]) for _ in range(runs)]
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
def test_alarms_stay_rare_whatever_the_number_of_pairs(draw, pairs):
    assert false_alarms(draw, pairs, runs=1000) <= 0.05 + 0.02


def test_where_nothing_changed_mcnemar_alarms_are_as_rare_as_promised():
    random = Random(9)
    alarms = 0
    for _ in range(2000):
        rates = [random.random() for _ in range(40)]
        alarms += mcnemar([(random.random() < rate, random.random() < rate) for rate in rates]).p_value <= 0.05
    assert alarms / 2000 <= 0.05 + 0.015


def test_a_real_change_is_found():
    random = Random(10)
    alarms = 0
    for _ in range(200):
        pairs = [(random.random() < 0.9, random.random() < 0.6) for _ in range(60)]
        alarms += mcnemar(pairs).p_value <= 0.05
    assert alarms > 180


def by_closed_testing(p_values: list[float]) -> list[float]:
    """Holm by its meaning: a hypothesis falls when every set that holds it falls by Bonferroni."""
    places = range(len(p_values))
    sets = [chosen for size in range(1, len(p_values) + 1) for chosen in combinations(places, size)]
    return [
        max(min(1.0, len(chosen) * min(p_values[i] for i in chosen)) for chosen in sets if place in chosen)
        for place in places
    ]


def test_holm_is_bonferroni_on_every_set_of_questions():
    random = Random(11)
    for count in range(1, 8):
        p_values = [random.random() ** 3 for _ in range(count)]
        assert holm(p_values) == pytest.approx(by_closed_testing(p_values))


def test_holm_of_a_worked_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_asking_ten_questions_at_once_raises_no_more_alarms_than_one():
    random = Random(12)
    alarms = sum(min(holm([random.random() for _ in range(10)])) <= 0.05 for _ in range(4000))
    assert alarms / 4000 <= 0.05 + 0.011

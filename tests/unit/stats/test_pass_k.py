"""pass@k and pass^k: against every way to pick k trials, and against a published table."""

import math
from itertools import combinations

import pytest

from unit.stats.tau_bench import AIRLINE, RETAIL, Published
from viva.stats.pass_k import estimate_pass_k, pass_at_k, pass_hat_k
from viva.stats.proportions import Tally


@pytest.mark.parametrize("decided", range(1, 8))
def test_both_are_means_over_all_picks_of_k_trials(decided):
    for passed in range(decided + 1):
        outcomes = [True] * passed + [False] * (decided - passed)
        for k in range(1, decided + 1):
            picks = list(combinations(outcomes, k))
            assert pass_at_k(Tally(passed, decided), k) == pytest.approx(sum(map(any, picks)) / len(picks))
            assert pass_hat_k(Tally(passed, decided), k) == pytest.approx(sum(map(all, picks)) / len(picks))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_both_are_unbiased(rate):
    """The mean over everything that 6 independent trials can give is the true chance for k trials."""
    chances = [math.comb(6, c) * rate**c * (1 - rate) ** (6 - c) for c in range(7)]
    for k in range(1, 7):
        at_least_one = sum(chance * (pass_at_k(Tally(c, 6), k) or 0) for c, chance in enumerate(chances))
        all_of_them = sum(chance * (pass_hat_k(Tally(c, 6), k) or 0) for c, chance in enumerate(chances))
        assert at_least_one == pytest.approx(1 - (1 - rate) ** k)
        assert all_of_them == pytest.approx(rate**k)


@pytest.mark.parametrize("published", [AIRLINE, RETAIL])
def test_pass_hat_k_is_the_published_one(published: Published):
    for k, expected in enumerate(published.pass_hat, start=1):
        found = estimate_pass_k(published.tallies, k)
        assert found is not None
        assert round(found.pass_hat_k, 3) == expected
    flips = sum(0 < tally.passed < 4 for tally in published.tallies)
    assert round(flips / len(published.tallies), 2) == published.flip_share


def test_more_than_was_run_cannot_be_told():
    assert pass_at_k(Tally(3, 3), 4) is None
    assert pass_hat_k(Tally(3, 3), 4) is None
    assert estimate_pass_k([Tally(3, 3), Tally(0, 0)], 4) is None
    assert estimate_pass_k([], 1) is None


def test_cases_with_too_few_trials_are_left_out_and_counted():
    found = estimate_pass_k([Tally(2, 2), Tally(0, 2), Tally(1, 1)], 2)
    assert found is not None
    assert (found.pass_at_k, found.pass_hat_k, found.cases, found.excluded_cases) == (0.5, 0.5, 2, 1)


def test_k_counts_from_one():
    for count in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="at least 1"):
            count(Tally(1, 1), 0)


def test_thousands_of_trials_stay_exact():
    assert pass_hat_k(Tally(4_999, 5_000), 2_500) == pytest.approx(0.5)
    assert pass_at_k(Tally(1, 5_000), 2_500) == pytest.approx(0.5)

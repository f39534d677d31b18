"""Laws of the statistics that hold for any numbers."""

from hypothesis import assume, given
from hypothesis import strategies as st

from viva.stats.paired import estimate_paired_difference, mcnemar_test, tarone_correction
from viva.stats.pass_k import estimate_pass_k, pass_at_k, pass_hat_k
from viva.stats.proportions import Interval, Tally, estimate_suite_rate, wilson_interval
from viva.stats.sequential import SequentialTest
from viva.stats.values import summarize_values

confidences = st.floats(0.5, 0.999)
values = st.floats(-1e6, 1e6)
chances = st.floats(0, 1)


@st.composite
def tallies(draw, least=1) -> Tally:
    decided = draw(st.integers(least, 30))
    return Tally(draw(st.integers(0, decided)), decided)


@st.composite
def sequential_tests(draw) -> SequentialTest:
    min_pass = draw(st.floats(0.05, 1))
    return SequentialTest(
        min_pass=min_pass,
        max_runs=draw(st.integers(1, 60)),
        alpha=draw(st.floats(0.001, 0.4)),
        beta=draw(st.floats(0.001, 0.4)),
        margin=draw(st.none() | st.floats(0.1, 0.9).map(lambda share: share * min_pass)),
    )


def inside(rate: float, interval: Interval | None) -> bool:
    return interval is not None and 0 <= interval.low <= rate <= interval.high <= 1


@given(tallies(), confidences)
def test_wilson_holds_the_rate_and_stays_between_0_and_1(tally, confidence):
    assert inside(tally.passed / tally.decided, wilson_interval(tally.passed, tally.decided, confidence))


@given(tallies(), confidences)
def test_wilson_rises_with_every_pass_and_mirrors_failures(tally, confidence):
    here, mirror = (
        wilson_interval(tally.passed, tally.decided, confidence),
        wilson_interval(tally.decided - tally.passed, tally.decided, confidence),
    )
    assert here is not None
    assert mirror is not None
    assert abs(here.low - (1 - mirror.high)) < 1e-12
    if tally.passed < tally.decided:
        above = wilson_interval(tally.passed + 1, tally.decided, confidence)
        assert above is not None
        assert above.low > here.low
        assert above.high > here.high or above.high == 1


@given(tallies(), confidences, confidences)
def test_more_confidence_makes_wilson_wider(tally, one, other):
    assume(one < other)
    narrow, wide = (
        wilson_interval(tally.passed, tally.decided, one),
        wilson_interval(tally.passed, tally.decided, other),
    )
    assert narrow is not None
    assert wide is not None
    assert wide.low <= narrow.low
    assert narrow.high <= wide.high


@given(st.lists(tallies(least=0), max_size=20), confidences)
def test_a_suites_trials_are_worth_at_least_one_a_case_and_at_most_themselves(suite, confidence):
    found = estimate_suite_rate(suite, confidence)
    decided = [tally for tally in suite if tally.decided]
    if found is None:
        assert not decided
        return
    assert inside(found.rate, found.interval)
    assert found.cases + found.without_verdict == len(suite)
    assert found.cases - 1e-9 <= found.effective_trials <= found.trials + 1e-9


@given(st.lists(tallies(), min_size=1, max_size=20), st.randoms())
def test_the_order_of_cases_does_not_matter(suite, random):
    shuffled = random.sample(suite, len(suite))
    one, other = estimate_suite_rate(suite), estimate_suite_rate(shuffled)
    assert one is not None
    assert other is not None
    assert abs(one.rate - other.rate) < 1e-12
    assert abs(one.interval.low - other.interval.low) < 1e-9


@given(tallies(), st.integers(1, 30))
def test_all_of_k_is_rarer_than_one_of_k(tally, k):
    one, everyone = pass_at_k(tally, k), pass_hat_k(tally, k)
    if one is None or everyone is None:
        assert k > tally.decided
        assert one is everyone
        return
    assert 0 <= everyone <= tally.passed / tally.decided <= one <= 1
    assert (one, everyone) == (1, 1) if tally.passed == tally.decided else everyone < 1


@given(tallies(), st.integers(1, 29))
def test_a_larger_k_is_easier_for_one_and_harder_for_all(tally, k):
    assume(k < tally.decided)
    one, one_more = pass_at_k(tally, k), pass_at_k(tally, k + 1)
    all_k, all_more = pass_hat_k(tally, k), pass_hat_k(tally, k + 1)
    assert one is not None
    assert one_more is not None
    assert all_k is not None
    assert all_more is not None
    assert one <= one_more
    assert all_more <= all_k


@given(st.lists(tallies(), min_size=1, max_size=10))
def test_for_one_trial_both_are_the_suites_rate(suite):
    found, rate = estimate_pass_k(suite, 1), estimate_suite_rate(suite)
    assert found is not None
    assert rate is not None
    assert abs(found.pass_at_k - rate.rate) < 1e-12
    assert abs(found.pass_hat_k - rate.rate) < 1e-12


@given(st.lists(values, min_size=1))
def test_a_summary_lies_between_the_least_and_the_greatest_value(several):
    found = summarize_values(several)
    assert found is not None
    assert min(several) <= found.p50 <= found.p95 <= max(several)
    assert min(several) - 1e-6 <= found.mean <= max(several) + 1e-6
    assert sum(value <= found.p95 for value in several) >= 0.95 * len(several)
    assert sum(value < found.p95 for value in several) < 0.95 * len(several)


@given(sequential_tests(), st.lists(st.booleans() | st.none(), min_size=60, max_size=60))
def test_a_sequential_test_always_comes_to_an_end_within_its_runs(test, outcomes):
    found = test.evaluate(outcomes)
    assert found is not None
    assert found.passed + found.failed + found.errors <= test.max_runs


@given(sequential_tests(), st.integers(0, 60), st.integers(0, 60))
def test_one_more_pass_never_makes_a_case_worse(test, passed, failed):
    scale = {"fails": 0, None: 1, "undecided": 1, "passes": 2}
    assert scale[test.decide(passed, failed)] <= scale[test.decide(passed + 1, failed)]
    assert scale[test.decide(passed, failed + 1)] <= scale[test.decide(passed, failed)]


@given(sequential_tests(), st.integers(0, 60), st.integers(0, 60))
def test_undecided_is_final(test, passed, failed):
    """When it stops undecided, no course of the runs that were left would have decided."""
    if test.decide(passed, failed) == "undecided":
        left = max(0, test.max_runs - passed - failed)
        for passes in range(left + 1):
            assert test.decide(passed + passes, failed + left - passes) == "undecided"


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_mcnemar_is_the_same_in_both_directions(pairs):
    there, back = mcnemar_test(pairs), mcnemar_test([(after, before) for before, after in pairs])
    assert 0 <= there.p_value <= 1
    assert there.p_value == back.p_value
    assert (there.broken, there.fixed) == (back.fixed, back.broken)


@given(st.lists(st.tuples(values, values), min_size=1, max_size=9), confidences)
def test_a_difference_holds_its_mean_and_turns_around_with_its_pairs(pairs, confidence):
    there = estimate_paired_difference(pairs, confidence)
    back = estimate_paired_difference([(after, before) for before, after in pairs], confidence)
    assert there is not None
    assert back is not None
    assert 0 < there.p_value <= 1
    assert there.p_value == back.p_value
    assert abs(there.mean + back.mean) < 1e-6
    if there.interval and back.interval:
        assert there.interval.low - 1e-6 <= there.mean <= there.interval.high + 1e-6
        assert abs(there.interval.low + back.interval.high) < 1e-6


@given(st.lists(chances, max_size=12), st.floats(0.001, 0.5))
def test_no_more_cases_than_are_corrected_for_can_raise_an_alarm(smallest, alpha):
    k = tarone_correction(smallest, alpha)
    assert 1 <= k <= max(1, len(smallest))
    assert sum(each <= alpha / k for each in smallest) <= k

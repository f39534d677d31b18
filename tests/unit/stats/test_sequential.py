"""The sequential test keeps its promises: exactly, by following every course that the runs can take, and simulated."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import pytest
from scipy.stats import binom

from viva.stats.sequential import SequentialResult, SequentialTest


@dataclass
class Course:
    """Where a case of some true rate ends up: chances, and the mean number of runs."""

    passes: float = 0.0
    fails: float = 0.0
    undecided: float = 0.0
    runs: float = 0.0


def course_of(test: SequentialTest, rate: float) -> Course:
    """Exact: the chance of each (runs, passed) that is reached without a decision, run after run."""
    course, undecided = Course(), {0: 1.0}
    for run in range(1, test.max_runs + 1):
        reached: dict[int, float] = defaultdict(float)
        for passed, chance in undecided.items():
            reached[passed + 1] += chance * rate
            reached[passed] += chance * (1 - rate)
        undecided = {}
        for passed, chance in reached.items():
            if not chance:
                continue
            if decision := test.decide(passed, run - passed):
                setattr(course, decision, getattr(course, decision) + chance)
                course.runs += chance * run
            else:
                undecided[passed] = chance
    assert not undecided
    return course


def fixed_runs(test: SequentialTest) -> int:
    """How many runs the exact binomial test with a fixed number needs for the same promise."""
    for runs in count(1):
        needed = int(binom.isf(test.alpha, runs, test.too_low)) + 1
        if binom.cdf(needed - 1, runs, test.min_pass) <= test.beta:
            return runs
    raise AssertionError


TESTS = [
    SequentialTest(min_pass=0.9, max_runs=300, margin=0.1, beta=0.05),
    SequentialTest(min_pass=0.9, max_runs=300, alpha=0.01, beta=0.1, margin=0.2),
    SequentialTest(min_pass=0.95, max_runs=200, alpha=0.2, beta=0.05, margin=0.1),
    SequentialTest(min_pass=0.5, max_runs=400, margin=0.1, beta=0.05),
    SequentialTest(min_pass=0.1, max_runs=400, margin=0.05, beta=0.05),
    SequentialTest(min_pass=1.0, max_runs=100, margin=0.1, beta=0.05),
]


@pytest.mark.parametrize("test", TESTS, ids=str)
def test_wrong_decisions_are_as_rare_as_promised_for_any_number_of_runs(test: SequentialTest):
    for max_runs in (1, 5, 20, 50, test.max_runs):
        cut = SequentialTest(
            min_pass=test.min_pass, max_runs=max_runs, alpha=test.alpha, beta=test.beta, margin=test.margin
        )
        for rate in (0.0, test.too_low / 2, test.too_low):
            assert course_of(cut, rate).passes <= test.alpha
        for rate in (test.min_pass, (1 + test.min_pass) / 2, 1.0):
            assert course_of(cut, rate).fails <= test.beta


@pytest.mark.parametrize("test", TESTS, ids=str)
def test_the_chances_are_those_of_every_course_followed_run_by_run(test: SequentialTest):
    for rate in (0.0, test.too_low, 0.77, test.min_pass, 1.0):
        found, course = test.chances(rate), course_of(test, rate)
        assert (found.passes, found.fails, found.undecided) == pytest.approx(
            (course.passes, course.fails, course.undecided), abs=1e-9
        )


@pytest.mark.parametrize("min_pass", [0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0])
@pytest.mark.parametrize(("alpha", "beta", "margin"), [(0.05, 0.1, None), (0.01, 0.05, 0.1), (0.2, 0.3, 0.05)])
def test_the_default_number_of_runs_is_the_smallest_that_decides_on_a_case_that_is_exactly_good_enough(
    min_pass: float, alpha: float, beta: float, margin: float | None
):
    asked: dict[str, Any] = {"min_pass": min_pass, "alpha": alpha, "beta": beta, "margin": margin}
    test = SequentialTest(**asked)
    course = course_of(test, min_pass)
    print(f"{test}: {course}")
    assert course.undecided <= beta  # N37
    assert course.fails <= beta
    assert course_of(test, test.too_low).passes <= alpha
    fewer = SequentialTest(**asked, max_runs=test.max_runs - 1)
    assert course_of(fewer, min_pass).undecided > beta or fewer.max_runs < test.min_passes


def test_the_defaults_of_the_command_line_take_39_trials_at_most():
    """20 left a case of exactly 0.9 undecided 47 times in 100."""
    test = SequentialTest(min_pass=0.9)
    assert test.max_runs == 39
    assert course_of(SequentialTest(min_pass=0.9, max_runs=20), 0.9).undecided == pytest.approx(0.47, abs=0.01)


def test_a_default_of_20_000_runs_is_accepted():
    assert SequentialTest(min_pass=0.9999, margin=3.8729e-4).max_runs == 20_000


@pytest.mark.parametrize("test", TESTS, ids=str)
def test_it_takes_far_fewer_runs_than_a_fixed_number_and_nearly_always_decides(test: SequentialTest):
    fixed = fixed_runs(test)
    bad, good = course_of(test, test.too_low), course_of(test, test.min_pass)
    assert bad.runs < 0.7 * fixed
    assert good.runs < 0.7 * fixed or test.min_pass == 1  # a case that always passes leaves no shorter way to be sure
    assert good.runs <= fixed
    assert max(bad.undecided, good.undecided) < 0.05


def test_clear_cases_are_decided_in_a_fraction_of_the_runs():
    test = SequentialTest(min_pass=0.9, max_runs=300, margin=0.1, beta=0.05)
    assert fixed_runs(test) == 135
    assert course_of(test, 0.5).runs < 12
    assert course_of(test, 1.0).runs == test.min_passes == 26


def test_simulated_cases_get_the_decision_they_deserve():
    """1,000 cases at each of the two rates: wrong decisions within three standard errors of 5 %, half the runs."""
    test = SequentialTest(min_pass=0.8, max_runs=400, margin=0.1, beta=0.05)
    random = Random(7)
    for rate, error in ((test.too_low, "passes"), (test.min_pass, "fails")):
        ends = [test.evaluate(random.random() < rate for _ in range(test.max_runs)) for _ in range(1000)]
        decided = [end for end in ends if end is not None]
        assert len(decided) == 1000
        assert sum(end.decision == error for end in decided) / 1000 <= 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5
        assert sum(end.passed + end.failed for end in decided) / 1000 < 0.6 * fixed_runs(test)


def test_a_case_that_must_always_pass_fails_at_its_first_failure():
    test = SequentialTest(min_pass=1.0, max_runs=100, margin=0.1, beta=0.05)
    assert test.decide(20, 0) is None
    assert test.decide(20, 1) == "fails"
    assert test.decide(29, 0) == "passes"


def test_it_stops_as_soon_as_no_decision_can_be_reached():
    """26 passes in a row would have done; after a failure 30 runs are too few, and after 22 passes too few to fail."""
    test = SequentialTest(min_pass=0.9, max_runs=30, margin=0.1, beta=0.05)
    assert test.decide(21, 1) is None
    assert test.decide(22, 1) == "undecided"
    assert test.evaluate([True] * 5 + [False] + [True] * 24) == SequentialResult("undecided", 22, 1, 0)


def test_a_decision_that_the_last_run_can_still_bring_is_waited_for():
    test = SequentialTest(min_pass=0.9, max_runs=26, margin=0.1, beta=0.05)
    assert test.decide(25, 0) is None
    assert test.decide(25, 0, errors=1) == "undecided"
    assert test.decide(26, 0) == "passes"


def test_too_few_runs_to_pass_can_be_told_beforehand():
    test = SequentialTest(min_pass=0.9, max_runs=10, margin=0.1, beta=0.05)
    assert test.min_passes > test.max_runs
    assert all(test.decide(passed, 0) != "passes" for passed in range(11))
    assert test.decide(0, 5) == "fails"


@pytest.mark.parametrize(("margin", "runs"), [(0.8, 2), (0.2, 12), (0.1, 26)])
def test_the_fewest_passes_in_a_row_that_decide_are_known(margin: float, runs: int):
    test = SequentialTest(min_pass=0.9, max_runs=40, margin=margin)
    assert test.min_passes == runs
    assert (test.decide(runs - 1, 0), test.decide(runs, 0)) == (None, "passes")


def test_errors_use_up_runs_and_are_not_evidence():
    test = SequentialTest(min_pass=0.9, max_runs=40, margin=0.1, beta=0.05)
    assert test.evaluate([None] * 14 + [True] * 26) == SequentialResult("passes", 26, 0, 14)
    assert test.evaluate([None] * 40) == SequentialResult("undecided", 0, 0, 36)


def test_runs_behind_the_decision_do_not_change_it():
    test = SequentialTest(min_pass=0.9, max_runs=100, margin=0.1, beta=0.05)
    assert test.evaluate([False] * 5 + [True] * 90) == SequentialResult("fails", 0, 5, 0)


def test_unfinished_runs_are_undetermined_not_undecided():
    test = SequentialTest(min_pass=0.9, max_runs=100, margin=0.1, beta=0.05)
    assert test.evaluate([]) is None
    assert test.evaluate([True] * 25) is None


@pytest.mark.parametrize(
    ("min_pass", "margin", "max_runs"), [(0.6, 0.4, 15), (0.9, 0.2, 15), (1.0, 0.2, 15), (0.5, 0.2, 12)]
)
def test_no_mixture_of_outcomes_decides_before_the_runs_that_are_surely_needed(min_pass, margin, max_runs):
    """Otherwise the number of trials would depend on which of them end first."""
    test = SequentialTest(min_pass=min_pass, margin=margin, max_runs=max_runs)
    triples = [
        (passed, failed, errors)
        for passed in range(max_runs + 1)
        for failed in range(max_runs + 1 - passed)
        for errors in range(max_runs + 1 - passed - failed)
    ]
    for passed, failed, errors in triples:
        if test.decide(passed, failed, errors) is None:
            needed = test.min_trials_left(passed, failed, errors)
            assert needed >= 1
            for more in (each for each in triples if sum(each) < needed):
                assert test.decide(passed + more[0], failed + more[1], errors + more[2]) is None


def test_the_margin_shrinks_with_a_low_threshold():
    assert SequentialTest(min_pass=0.9, max_runs=1).too_low == pytest.approx(0.7)
    assert SequentialTest(min_pass=0.1, max_runs=1).too_low == pytest.approx(0.05)
    assert SequentialTest(min_pass=0.9, max_runs=1, margin=0.3).too_low == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"min_pass": 0.0}, "min_pass is 0.0"),
        ({"min_pass": 1.1}, "min_pass is 1.1"),
        ({"margin": 0.0}, "margin is 0.0"),
        ({"margin": 0.9}, "margin is 0.9"),
        ({"margin": 1e-18}, "margin is 1e-18"),
        ({"alpha": 0.0}, "alpha 0.0"),
        ({"beta": 0.0}, "beta 0.0"),
        ({"alpha": 0.5, "beta": 0.5}, "their sum below 1"),
        ({"max_runs": -1}, "max_runs is -1"),
        ({"max_runs": 0, "margin": 1e-4}, "takes more than 20,000 runs"),
        ({"max_runs": 0, "min_pass": 0.9999, "margin": 3.8726e-4}, "takes more than 20,000 runs"),  # 20,001
    ],
)
def test_what_makes_no_test_is_refused(error, message):
    with pytest.raises(ValueError, match=message):
        SequentialTest(**{"min_pass": 0.9, "max_runs": 10} | error)

"""What the trials of a case come to, by share or by a sequential test."""

import pytest

from viva.model.record import Status
from viva.stats.pass_rule import PassRule
from viva.stats.sequential import SequentialTest

TEST = SequentialTest(min_pass=0.9, max_runs=20, alpha=0.05, beta=0.1, margin=0.2)
RULE = PassRule(0.9, TEST)


@pytest.mark.parametrize(
    ("trials", "decision", "status"),
    [
        (["passed"] * 12, "passes", "passed"),
        (["failed"] * 3, "fails", "failed"),
        (["passed"] * 11, None, "error"),
        (["passed", "failed"] * 2 + ["passed"], None, "error"),
        (["error"] * 20, "undecided", "error"),
        (["skipped"], None, "skipped"),
    ],
)
def test_three_decisions_are_three_statuses(trials: list[Status], decision: str | None, status: Status):
    """Undecided, or cut off before a decision, is an error: nothing has been shown."""
    assert (RULE.decide(trials), RULE.status(trials)) == (decision, status)


def test_trials_behind_the_decision_do_not_change_it():
    passed: list[Status] = ["passed"] * 12
    assert RULE.status([*passed, "failed", "failed", "failed", "failed"]) == "passed"


def test_a_case_that_is_left_out_once_is_not_tried_again():
    assert RULE.needs_no_more_trials(["skipped"])
    assert not RULE.needs_no_more_trials(["passed"])
    assert not RULE.needs_no_more_trials(["passed", "skipped"])
    assert not PassRule(0.5).needs_no_more_trials(["passed", "passed", "passed"])


def test_without_a_test_it_is_the_share():
    trials: list[Status] = ["passed", "failed", "passed", "error"]
    assert PassRule(0.5).status(trials) == "passed"  # N33
    assert PassRule(0.6).status(trials) == "error"
    assert PassRule().status(trials) == "failed"


@pytest.mark.parametrize(
    ("trials", "min_pass", "can"),
    [
        (["failed"], None, False),
        (["error"], None, False),
        (["passed"] * 9, None, True),
        (["failed"] * 2, 0.8, True),
        (["failed", "error"], 0.8, True),
        (["failed"] * 3, 0.8, False),
        (["failed", "error", "error"], 0.8, False),
        (["skipped"], None, True),
    ],
)
def test_a_case_can_pass_as_long_as_the_trials_to_come_could_make_it(
    trials: list[Status], min_pass: float | None, can: bool
):
    assert PassRule(min_pass).can_pass(trials, 10) is can  # N33


@pytest.mark.parametrize(
    ("rule", "trials", "is_undecided"),
    [
        (RULE, (["passed"] * 5 + ["failed"]) * 3, True),
        (RULE, ["passed"], True),
        (RULE, ["error"] * 20, False),
        (RULE, ["passed"] * 12, False),
        (PassRule(0.9), ["passed", "error"], False),
    ],
)
def test_undecided_is_a_test_that_saw_verdicts_and_came_to_no_decision(
    rule: PassRule, trials: list[Status], is_undecided: bool
):
    assert rule.is_undecided(trials) is is_undecided  # N37


@pytest.mark.parametrize("rule", [PassRule(), PassRule(0.5), RULE])
def test_a_report_judges_as_the_run_did(rule: PassRule):
    assert PassRule.from_settings(rule.to_settings()) == rule
    assert PassRule.from_settings({}) == PassRule()

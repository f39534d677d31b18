"""What trials add up to."""

import pytest

from viva.model.record import Status
from viva.stats.pass_rate import PassRate, decide_case_status, pass_rate, stability


@pytest.mark.parametrize(
    ("trials", "min_pass", "status"),
    [
        (["passed"], None, "passed"),
        (["passed", "failed"], None, "failed"),
        (["passed", "failed"], 0.5, "passed"),
        (["passed", "failed", "failed"], 0.5, "failed"),
        (["passed"] * 7 + ["failed"] * 3, 0.7, "passed"),
        (["passed", "error"], None, "error"),
        (["passed"] + ["error"] * 9, None, "error"),
        (["passed"] + ["error"] * 9, 0.1, "passed"),
        (["passed"] * 8 + ["error"] * 2, 0.8, "passed"),
        (["passed"] * 7 + ["error"] * 3, 0.8, "error"),
        (["failed"] * 3 + ["error"] * 7, 0.8, "failed"),
        (["failed"] * 2 + ["error"] * 8, 0.8, "error"),
        (["failed", "error", "error"], None, "failed"),
        (["error", "error"], 0.0, "error"),
        (["error", "skipped"], None, "error"),
        (["skipped", "skipped"], None, "skipped"),
        (["skipped", "passed"], None, "passed"),
        ([], None, "error"),
    ],
)
def test_a_case_passes_or_fails_only_if_trials_in_error_leave_no_doubt(
    trials: list[Status], min_pass: float | None, status: Status
) -> None:  # N33
    assert decide_case_status(trials, min_pass) == status


@pytest.mark.parametrize(
    ("trials", "missing", "min_pass", "status"),
    [
        (["passed"], 9, None, "error"),
        (["failed"], 9, None, "failed"),
        (["passed"] * 8, 2, 0.8, "passed"),
        (["failed"] * 2, 8, 0.8, "error"),
        (["failed"] * 3, 7, 0.8, "failed"),
        (["skipped"], 9, None, "skipped"),
    ],
)
def test_a_trial_that_did_not_run_could_have_passed_or_failed(
    trials: list[Status], missing: int, min_pass: float | None, status: Status
) -> None:  # N33
    assert decide_case_status(trials, min_pass, missing) == status


@pytest.mark.parametrize(
    ("passed", "failed", "name"),
    [
        (5, 0, "stable"),
        (4, 1, "mostly_stable"),
        (99, 1, "mostly_stable"),
        (7, 3, "unstable"),
        (1, 1, "unstable"),
        (49, 51, "highly_unstable"),
        (0, 3, "highly_unstable"),
        (0, 0, None),
    ],
)
def test_the_class_follows_the_pass_rate_and_errors_do_not_count(
    passed: int, failed: int, name: str | None
) -> None:  # N33
    good, bad = list[Status](("passed",)), list[Status](("failed",))
    assert stability([*good * passed, *bad * failed, "error", "skipped"]) == name


def test_without_a_decided_trial_there_is_no_rate() -> None:  # N33
    assert pass_rate(["error", "skipped"]) == PassRate(0, 0, None)
    assert pass_rate(["passed", "failed", "failed", "error"]) == PassRate(1, 3, 1 / 3)

"""Two runs side by side: each kind of change, each metric, and what fails a comparison. How often chance alone looks like
a change is in test_alarms.py.
"""

from typing import Any

import pytest

from viva.history.comparison import ChangeKind, Comparison, Gate, TrialCounts, compare_runs
from viva.history.index import ResultRow
from viva.model.record import Status

P, F, E, S = "passed", "failed", "error", "skipped"


def rows(case: str, *statuses: str, digest: str = "d", **fields) -> list[ResultRow]:
    return [
        ResultRow(suite="s", case=case, trial=number, status=status, digest=digest, **fields)  # pyright: ignore[reportArgumentType]
        for number, status in enumerate(statuses, 1)
    ]


def compared(before: list[ResultRow], after: list[ResultRow], **asked: Any) -> Comparison:
    return compare_runs(("base", iter(before)), ("head", iter(after)), **asked)


GATES: tuple[Gate, ...] = ("pass-rate", "score", "time", "cost", "broken")


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ([F], [P], "fixed"),
        ([P], [F], "broken"),
        ([F], [F], "still failing"),
        ([P], [P], "still passing"),
        ([P, P, P], [P, F, P], "flaky"),
        ([P, F], [F, F], "flaky"),
        ([F, F], [P, P], "maybe fixed"),
        ([P] * 5, [F] * 5, "broken"),
        ([P] * 5, [P] + [F] * 4, "broken"),
        ([P] * 5, [P] * 2 + [F] * 3, "flaky"),
        ([F] * 5, [P] * 5, "fixed"),
        ([P] * 3 + [F] * 2, [P] * 2 + [F] * 3, "flaky"),
        ([P, F] * 4, [F, P] * 4, "flaky"),
        ([P], [F] * 5, "suspect"),
        ([P], [E], "not decided"),
        ([S], [P], "not decided"),
        ([P, E], [F, F], "suspect"),
        ([], [P], "new"),
        ([P], [], "gone"),
    ],
)
def test_each_kind_of_change(before: list[str], after: list[str], change: ChangeKind):
    (found,) = compared(rows("c", *before), rows("c", *after)).cases
    assert found.change == change


def test_a_case_whose_definition_changed_is_never_compared():
    """It is set apart, and counts in no metric and for no regression."""
    found = compared(rows("a", P, digest="old") + rows("b", P), rows("a", F, digest="new") + rows("b", P))
    assert [(case.case, case.change) for case in found.cases] == [("a", "changed"), ("b", "still passing")]
    assert [metric.pairs for metric in found.metrics] == [1] * len(found.metrics)
    assert found.list_failed_gates(GATES) == []


def test_the_same_id_in_another_suite_is_another_case():
    other = [ResultRow(suite="t", case="c", trial=1, status="failed", digest="d")]
    assert {case.change for case in compared(rows("c", P), other).cases} == {"new", "gone"}


def many(count: int, status: Status, **fields) -> list[ResultRow]:
    return [row for number in range(count) for row in rows(f"c{number}", status, **fields)]


@pytest.mark.parametrize(
    ("broken", "failed"), [(0, []), (1, ["broken"]), (5, ["broken"]), (6, ["pass-rate", "score", "broken"])]
)
def test_a_regression_is_what_was_asked_for(broken: int, failed: list[Gate]):
    """N36: the default gate is the paired test; single cases gate only where that is asked for."""
    head = many(broken, "failed") + [row for row in many(20, "passed") if int(row.case[1:]) >= broken]
    assert compared(many(20, "passed"), head).list_failed_gates(GATES) == failed


def named(found: Comparison) -> dict[str, tuple[float | None, str]]:
    return {metric.name: (metric.p, metric.verdict) for metric in found.metrics}


def test_time_and_cost_are_shown_and_tested_only_where_they_gate():
    base = many(12, "passed", cost_usd=1.0, duration_ms=100.0, score=1.0)
    head = many(12, "passed", cost_usd=1.5, duration_ms=200.0, score=1.0)
    found = compared(base, head)
    assert named(found) == {
        "pass rate": (1.0, "no change shown"),
        "time ms": (None, "not tested"),
        "cost USD": (None, "not tested"),
    }  # N36
    assert found.list_failed_gates(GATES) == []
    time = found.metrics[1]
    assert (time.base, time.head, time.delta, time.pairs, time.low, time.high) == (
        100.0,
        200.0,
        100.0,
        12,
        100.0,
        100.0,
    )
    asked = compared(base, head, gates=("cost",))
    assert asked.list_failed_gates(GATES) == ["cost"]
    assert asked.list_failed_gates(("pass-rate",)) == []
    assert compared(base, head, gates=("cost", "time")).list_failed_gates(GATES) == ["time", "cost"]
    assert compared(head, base, gates=("cost", "time")).list_failed_gates(GATES) == []


def test_the_score_is_tested_only_where_it_differs_from_the_pass_rate():
    same = compared(many(12, "passed", score=1.0), many(12, "failed", score=0.0))
    assert named(same) == {"pass rate": (2 / 2**12, "worse")} | {"time ms": (None, "not tested")}  # N36
    assert same.list_failed_gates(("score",)) == ["score"], "it is the same number"
    other = compared(many(12, "passed", score=1.0), many(12, "failed", score=0.5))
    assert other.metrics[1].name == "score"
    assert named(other)["pass rate"] == (2 * 2 / 2**12, "worse"), "two metrics share the alpha"


def test_a_trial_that_failed_before_anything_was_checked_scores_nothing():
    found = compared(
        many(2, "passed", score=1.0) + rows("x", F, score=0.5), many(2, "failed") + rows("x", F, score=0.5)
    )
    score = found.metrics[1]
    assert (score.name, score.pairs, score.head) == ("score", 3, pytest.approx(0.5 / 3))


def test_p_and_interval_are_corrected_together():
    """N36: with two metrics tested, p is doubled and the interval holds 0 just where p is above alpha."""
    for broken in range(12):
        head = many(broken, "failed", score=0.4) + [
            r for r in many(12, "passed", score=1.0) if int(r.case[1:]) >= broken
        ]
        found = compared(many(12, "passed", score=1.0), head)
        for metric in found.metrics[: 2 if broken else 1]:
            assert metric.confidence == pytest.approx(0.975 if broken else 0.95)
            assert metric.p is not None
            if metric.low is not None and metric.high is not None:
                assert (metric.p > 0.05) == (metric.low < 0 < metric.high or 0 in (metric.low, metric.high))
            assert (metric.verdict == "worse") == (metric.p <= 0.05)


def test_what_is_as_likely_as_not_is_neither_better_nor_worse():
    """p = 1 was called `better`."""
    before = rows("a", F) + rows("b", P) + rows("c", P)
    after = rows("a", P) + rows("b", P) + rows("c", P)
    metric = compared(before, after).metrics[0]
    assert (metric.delta > 0, metric.p, metric.verdict) == (True, 1.0, "no change shown")


def noted(found: Comparison, text: str) -> bool:
    return any(text in note for note in found.notes)


def test_too_few_flips_for_the_exact_test_are_noted():
    head = many(5, "failed") + [row for row in many(20, "passed") if int(row.case[1:]) >= 5]
    found = compared(many(20, "passed"), head)
    assert noted(found, "5 of 20 cases differ; fewer than 6 can never be significant at 0.05")  # N36
    strict = compared(many(20, "passed"), head, alpha=0.01)
    assert noted(strict, "fewer than 8 can never be significant at 0.01")
    more = many(6, "failed") + [row for row in many(20, "passed") if int(row.case[1:]) >= 6]
    assert not noted(compared(many(20, "passed"), more), "can never be significant")


def test_the_limits_of_single_trials_are_noted():
    found = compared(many(20, "passed"), many(20, "failed"))
    assert noted(found, "20 of 20 cases flipped in single trials")  # N36
    assert noted(found, "--runs 6 on both sides can show a single broken case")
    assert not noted(compared(many(20, "passed"), many(20, "passed")), "single trials")
    known = {(row.suite, row.case, str(row.digest)) for row in many(8, "passed")}
    flaky = compared(many(20, "passed"), many(20, "failed"), flaky=known)
    assert noted(flaky, "20 of 20 cases flipped"), "those of flaky cases are flips too"


def test_cases_are_listed_in_the_order_of_their_numbers():
    names = ["c1", "c2", "c10", "c" + "9" * 5000]
    found = compared([row for name in names for row in rows(name, P)], [row for name in names for row in rows(name, F)])
    assert [case.case for case in found.cases] == names


def test_too_few_repeats_make_suspects_and_the_needed_number_is_noted():
    """20 cases of 5 trials, half of which fail: no single one could be shown to have broken."""
    mixed = [row for n in range(19) for row in rows(f"m{n}", P, P, P, F, F)]
    other = [row for n in range(19) for row in rows(f"m{n}", P, P, F, F, F)]
    found = compared(mixed + rows("c", *[P] * 5), other + rows("c", *[F] * 5))
    (suspect,) = [case for case in found.cases if case.change == "suspect"]
    assert (suspect.case, suspect.base_trials, suspect.head_trials) == (
        "c",
        TrialCounts(5, 5),
        TrialCounts(0, 5),
    )  # N36
    assert suspect.p is not None
    assert suspect.p > 0.05
    assert noted(found, "1 suspect: in 1 of")
    assert noted(found, "--runs 6 on both sides")
    assert found.list_failed_gates(("broken",)) == []
    more = [row for n in range(19) for row in rows(f"m{n}", *[P, F] * 3)]
    shown = compared(more + rows("c", *[P] * 6), more + rows("c", *[F] * 6))
    assert next((case.case, case.change) for case in shown.cases) == ("c", "broken")
    assert shown.list_failed_gates(("broken",)) == ["broken"]


def test_the_test_of_single_cases_keeps_to_alpha():
    base, head = rows("c", *[P] * 5), rows("c", P, *[F] * 4)
    assert compared(base, head, alpha=0.05).cases[0].change == "broken"
    assert compared(base, head, alpha=0.01).cases[0].change == "flaky"
    assert compared(base, rows("c", *[F] * 5), alpha=0.001).cases[0].change == "suspect"  # N36


def test_a_case_that_the_history_knows_as_flaky_never_gates():
    known = {("s", "c", "d")}
    for before, after in (([P], [F]), ([F], [P]), ([P] * 9, [F] * 9), ([P, P], [F, F])):
        found = compared(rows("c", *before), rows("c", *after), flaky=known)
        assert found.cases[0].change == "flaky"  # N36
        assert found.list_failed_gates(("broken",)) == []
    assert compared(rows("c", P), rows("c", P), flaky=known).cases[0].change == "still passing"
    other = compared(rows("c", P, digest="e"), rows("c", F, digest="e"), flaky=known)
    assert other.cases[0].change == "broken", "another definition is another case"


def test_trials_in_error_are_not_compared_and_are_counted():
    found = compared(rows("c", P, P, E), rows("c", P, P, E, E)).cases[0]
    assert (found.change, found.base_trials, found.head_trials) == (
        "still passing",
        TrialCounts(2, 2, 1),
        TrialCounts(2, 2, 2),
    )


def test_a_cost_that_is_not_known_on_one_side_is_not_compared():
    found = compared(many(3, "passed", cost_usd=1.0), many(3, "passed"))
    assert "cost USD" not in {metric.name for metric in found.metrics}


def test_runs_without_common_cases_are_noted():
    found = compared(rows("a", P), rows("b", P))
    assert (found.metrics, found.list_failed_gates(GATES)) == ((), [])
    assert noted(found, "nothing to compare")

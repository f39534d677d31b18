"""Thresholds of suites: how trials add up, and which parts are not met."""

from typing import Any

import pytest

from viva.engine.summary import RunTally, exit_code
from viva.engine.thresholds import SuiteTally, score_case, score_trial
from viva.model.case import Baseline, Threshold
from viva.model.event import PlannedSuite, SuiteSummary, TrialRetried
from viva.model.finding import Finding
from viva.model.message import Usage
from viva.model.record import Status, TrialRecord, TurnRecord
from viva.stats.pass_rule import PassRule
from viva.stats.sequential import SequentialTest

LEAK = Finding("secret-leak", "high")


def record(
    case: str = "a",
    status: Status = "passed",
    score: float | None = 1.0,
    *,
    ms: float | None = 100.0,
    usage: Usage | None = None,
    trial: int = 1,
    suite: str = "s",
    **fields: Any,
) -> TrialRecord:
    turns = [] if ms is None else [TurnRecord(1, "", "static", "", False, [], [], ms)]
    return TrialRecord(
        case,
        case,
        status,
        turns,
        [],
        len(turns),
        9_000.0,
        suite,
        trial,
        1,
        score=score,
        usage=usage,
        checks=1,
        **fields,
    )


def suite(threshold: Threshold) -> PlannedSuite:
    return PlannedSuite(suite="s", threshold=threshold)


def summary_of(
    threshold: Threshold, *records: TrialRecord, cases: int | None = None, rule: PassRule | None = None
) -> SuiteSummary:
    count = len({each.id for each in records}) if cases is None else cases
    tally = SuiteTally(suite(threshold), count, rule or PassRule())
    for each in records:
        tally.count_trial(each)
    return tally.summary()


def test_the_score_of_a_suite_is_the_mean_of_its_cases():
    summary = summary_of(
        Threshold(0.5), record("a", score=1.0), record("b", "failed", 0.25), record("c", "failed", None)
    )
    assert summary.score == pytest.approx(1.25 / 3, abs=1e-6)  # section 4: aggregate
    assert (summary.cases, summary.passed_cases, summary.failed_cases) == (3, 1, 2)
    assert summary.unmet == ("score 0.4167, needs 0.5",)  # R16


def test_a_score_that_is_exactly_the_threshold_is_enough():
    records = record("a"), record("b", "failed", 0.0), record("c", "failed", 0.0)
    assert summary_of(Threshold(1 / 3), *records).unmet == ()
    assert summary_of(Threshold(0.333335), *records).unmet == ("score 0.3333, needs 0.333335",)


def test_a_suite_can_pass_although_a_case_fails():
    summary = summary_of(Threshold(0.5), record("a"), record("b", "failed", 0.0))
    assert (summary.passed, summary.score) == (True, 0.5)


def test_without_a_pass_score_every_case_must_pass():
    assert summary_of(Threshold(), record("a")).passed
    assert summary_of(Threshold(), record("a"), record("b", "failed", 0.9)).unmet == ("1 of 2 cases failed",)


def test_means_of_decimal_fractions_reach_their_value():
    trials = [record(f"c{n}", score=score) for n, score in enumerate((0.1, 0.2, 0.3))]
    assert summary_of(Threshold(0.2), *trials).passed


def test_an_error_is_not_a_zero_of_the_agents_but_the_suite_does_not_pass():
    """W4."""
    records = (record("a"), record("b", "error", None, fault="judge"))
    for threshold in (Threshold(0.0), Threshold(1.0), Threshold()):
        summary = summary_of(threshold, *records)
        assert summary.unmet == ("1 case ended in an error that is not the agent's",)
        assert not summary.passed
    assert summary_of(Threshold(1.0), record("a", "failed", 0.5), records[1]).unmet[1:] == ("score 0.5, needs 1",)


def test_a_case_without_a_verdict_is_an_error_only_if_there_was_one():
    """N37: undecided is reported as such."""
    mixed = record(trial=1), record("a", "failed", 0.0, trial=2)
    rule = PassRule(test=SequentialTest(min_pass=0.8, max_runs=2))
    assert summary_of(Threshold(0.0), *mixed, rule=rule).unmet == ("1 case undecided",)
    stopped = summary_of(Threshold(0.0), record(trials=3), record("b", trials=3))
    assert stopped.unmet == ("not all trials of 2 cases ran",)
    broken = summary_of(Threshold(0.0), record(trials=3), record("a", "error", None, trial=2, trials=3))
    assert broken.unmet == ("1 case ended in an error that is not the agent's",)


def test_cases_that_did_not_run_keep_a_suite_from_passing():
    assert summary_of(Threshold(0.0), record("a"), cases=3).unmet == ("1 of 3 cases ran",)
    assert summary_of(Threshold(0.0), cases=2).unmet == ("no case ran",)


PRICED = Usage(calls=1, cost_usd=0.02)
CHEAP = Usage(calls=1, cost_usd=0.01)
DEAR = Usage(calls=1, cost_usd=19.98002)
UNPRICED = Usage(calls=1, cost_usd=None)


@pytest.mark.parametrize(
    ("usages", "cost", "missed"),
    [
        ((None, None), 0.0, ()),  # no model call at all is nothing
        ((PRICED, None), 0.02, ()),
        ((PRICED, CHEAP), 0.03, ()),  # the limit itself is allowed
        ((PRICED, PRICED), 0.04, ("cost $0.04, at most $0.03",)),
        ((DEAR, PRICED), 20.00002, ("cost $20.00002, at most $0.03",)),
        ((PRICED, UNPRICED), None, ("cost unknown (a model call has no price), at most $0.03",)),
        ((UNPRICED, None), None, ("cost unknown (a model call has no price), at most $0.03",)),
    ],
)
def test_the_cost_fails_closed(usages: Any, cost: float | None, missed: Any):
    records = [record(f"c{n}", usage=usage) for n, usage in enumerate(usages)]
    summary = summary_of(Threshold(0.5, max_cost_usd=0.03), *records)
    assert (summary.cost_usd, summary.unmet) == (cost, missed)  # R16, section 4: cost
    assert summary_of(Threshold(0.5), *records).passed  # without a limit an unknown price is only unknown


def test_a_cost_above_the_limit_beats_a_perfect_score():
    assert not summary_of(Threshold(1.0, max_cost_usd=0.01), record(usage=PRICED)).passed  # R16


def test_what_was_run_again_cost_too():
    tally = RunTally(1, PassRule(), [SuiteTally(suite(Threshold(0.5, max_cost_usd=0.03)), 1)])
    tally.append(TrialRetried(record().key, 0, 2, usage=PRICED))
    tally.count_trial(record(usage=PRICED))
    assert tally.summary().suites[0].unmet == ("cost $0.04, at most $0.03",)


def test_p95_is_by_nearest_rank_over_all_cases_failed_ones_included():
    """Section 4: latency. Of 20 values the 19th; judges are not in it."""
    records = [record(f"c{n}", "failed" if n == 19 else "passed", ms=n * 10.0) for n in range(1, 21)]
    assert summary_of(Threshold(0.0), *records).p95_ms == 190
    assert summary_of(Threshold(0.0, max_p95_ms=190), *records).passed
    assert summary_of(Threshold(0.0, max_p95_ms=189), *records).unmet == ("p95 latency 190 ms, at most 189 ms",)
    assert summary_of(Threshold(0.0), *records[:1]).p95_ms == 10


def test_an_unmeasured_latency_fails_closed():
    summary = summary_of(Threshold(0.0, max_p95_ms=100), record(status="failed", score=None, ms=None))
    assert summary.unmet == ("p95 latency unknown (nothing was measured), at most 100 ms",)


def test_repeats_count_by_their_mean():
    """With --runs the score and latency of a case are the mean of its trials, its cost is the sum."""
    trials = [
        record(score=1.0, ms=100, usage=PRICED, trial=1),
        record(status="failed", score=0.0, ms=300, usage=PRICED, trial=2, findings=(LEAK,)),
        record(status="error", score=None, ms=None, trial=3, fault="judge"),
    ]
    summary = score_case("a", [score_trial(each) for each in trials], PassRule(min_pass=0.3))
    assert (summary.status, summary.score, summary.latency_ms, summary.cost_usd) == ("passed", 0.5, 200, 0.04)
    assert summary.findings == (LEAK,)
    assert summary_of(Threshold(0.5), *trials, rule=PassRule(min_pass=0.3)).passed


def test_a_score_below_the_baseline_is_reported_and_fails_only_on_request():
    """W4."""
    before = Baseline("run-1", 1.0, {"a": 1.0, "b": 0.5})
    records = (record("a", "failed", 0.0), record("b", score=1.0))
    summary = summary_of(Threshold(0.5, baseline=before), *records)
    assert (summary.passed, summary.regression, summary.worse_cases) == (
        True,
        "score 0.5, was 1 in run-1",
        ("a 1, now 0",),
    )
    assert code(Threshold(0.5, baseline=before), *records) == 0
    assert code(Threshold(0.5, baseline=before, fail_on_regression=True), *records) == 1
    assert summary_of(Threshold(0.5, baseline=Baseline("run-1", 0.5)), *records).regression is None


@pytest.mark.parametrize(
    ("before", "records"),
    [
        ({"a": 1.0, "b": 1.0}, (record("a"), record("b", "error", None, fault="judge"))),
        ({"a": 1.0, "b": 1.0}, (record("a"),)),  # cut short by --fail-fast
        ({"a": 1.0}, (record("a"), record("b", "failed", 0.0))),  # b had no verdict then
        ({}, (record("b"),)),  # no case had one
    ],
)
def test_a_case_without_a_verdict_is_not_a_regression_but_nothing_is_compared(before: Any, records: Any):
    """W4: an error never counts as the agent's failure in a comparison; where worse must fail, unknown fails too."""
    baseline = Baseline("run-1", 1.0, before)
    summary = summary_of(Threshold(0.0, baseline=baseline), *records)
    assert (summary.regression, summary.worse_cases, summary.uncompared_cases, summary.score_change) == (
        None,
        (),
        ("b",),
        None,
    )
    strict = summary_of(Threshold(0.0, baseline=baseline, fail_on_regression=True), *records)
    assert strict.failures[-1] == "not compared with the baseline: b"


def code(threshold: Threshold, *records: TrialRecord, cases: int | None = None) -> int:
    count = len({(each.suite, each.id) for each in records}) if cases is None else cases
    tally = RunTally(count, PassRule(), [SuiteTally(suite(threshold), count)])
    for each in records:
        tally.count_trial(each)
    return exit_code(tally.summary(), None)


def test_the_exit_code_follows_the_suite():
    """W4: by its threshold, whatever single cases do; errors and cases that did not run still fail it."""
    assert code(Threshold(0.5), record("a"), record("b", "failed", 0.0)) == 0
    assert code(Threshold(0.6), record("a"), record("b", "failed", 0.0)) == 1
    assert code(Threshold(0.0), record("b", "failed", 0.0)) == 0
    assert code(Threshold(0.5), record("a"), record("b", "error", None)) == 1
    assert code(Threshold(0.5), record("a"), cases=2) == 1
    assert code(Threshold(0.5, max_cost_usd=0.0), record("a", usage=PRICED)) == 1


def test_a_failure_outside_of_the_suite_still_fails_the_run():
    tally = RunTally(2, PassRule(), [SuiteTally(suite(Threshold(0.0)), 1)])
    tally.count_trial(record("a", "failed", 0.0))
    assert exit_code(tally.summary(), None) == 1  # the other case has not run
    tally.count_trial(record("x", "failed", 0.0, suite="native.jsonl"))
    assert exit_code(tally.summary(), None) == 1

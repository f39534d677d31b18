"""The EvalSummary: complete, valid by its schema, and without a word of any content."""

import json
from typing import Any

import pytest

from openwop import official
from viva.errors import BadInput
from viva.formats.openwop.summary import build_eval_summary, build_task_summary, parse_eval_summary
from viva.model import codec
from viva.model.case import Baseline, Threshold
from viva.model.event import SuiteSummary
from viva.model.finding import Finding
from viva.model.message import Usage
from viva.model.record import Status, ToolCallRecord, TrialRecord, TurnRecord
from viva.stats.pass_rule import PassRule

SUITE = "acme.support.evals.demo"
MARK = "MARKER-8f3a"


def record(case: str = "a", status: Status = "passed", score: float | None = 1.0, **fields: Any) -> TrialRecord:
    """Every place that can hold content holds the marker."""
    assertions: list[dict[str, Any]] = fields.pop(
        "assertions", [{"type": "golden", "value": MARK, "passed": status == "passed", "reason": MARK}]
    )
    turn = TurnRecord(
        1,
        MARK,
        "static",
        MARK,
        False,
        [ToolCallRecord(MARK, {"q": MARK}, result=MARK)],
        assertions,
        fields.pop("ms", 100.4),
        data={"x": MARK},
        error=MARK,
    )
    made = TrialRecord(case, MARK, status, [turn], [], 1, 500.0, SUITE, fields.pop("trial", 1), 1, score=score)
    made.error, made.agent, made.session_id, made.notes = MARK, MARK, MARK, [MARK]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def standing(**fields: Any) -> SuiteSummary:
    known: dict[str, Any] = {
        "suite": SUITE,
        "version": "1.2.3",
        "score": 0.5,
        "passed": True,
        "cases": 1,
        "passed_cases": 1,
        "threshold": Threshold(0.5),
    }
    return SuiteSummary(**{**known, **fields})


def written(*records: TrialRecord, **fields: Any) -> dict[str, Any]:
    asked = {name: fields.pop(name) for name in ("model_class", "diff_ref", "rule") if name in fields}
    return json.loads(codec.encode(build_eval_summary(standing(**fields), records, **asked)))


def test_all_that_is_known_is_there_and_nothing_else():
    """R13, R20."""
    found = written(
        record("a", usage=Usage(calls=1, cost_usd=0.01), findings=(Finding("pii-leak", "low"),)),
        record("b", "failed", 0.25),
        cost_usd=0.01,
        model_class="writing",
        unmet=("score 0.5, needs 0.9",),
    )
    assert found == {
        "suiteId": SUITE,
        "suiteVersion": "1.2.3",
        "evaluatedModelClass": "writing",
        "aggregateScore": 0.5,
        "passed": True,
        "taskCount": 1,
        "passedCount": 1,
        "totalCostUsd": 0.01,
        "tasks": [
            {
                "taskId": "a",
                "score": 1.0,
                "passed": True,
                "costUsd": 0.01,
                "latencyMs": 100,
                "safetyFindings": [{"kind": "pii-leak", "severity": "low"}],
            },
            {"taskId": "b", "score": 0.25, "passed": False, "costUsd": 0.0, "latencyMs": 100},
        ],
    }


def test_nothing_that_was_said_or_expected_leaks(capsys: pytest.CaptureFixture[str]):
    """R14: whatever the records hold."""
    found = written(record(), record("b", "error", None, fault="judge"), model_class="general", cost_usd=0.0)
    assert MARK not in json.dumps(found)
    validator = official("eval-summary", capsys)
    if validator is not None:
        validator.validate(found)


def test_a_cost_that_is_unknown_is_left_out():
    found = written(record(usage=Usage(calls=1, cost_usd=None)), cost_usd=None)
    assert "totalCostUsd" not in found
    assert "costUsd" not in found["tasks"][0]  # section 4: never 0


def test_a_task_that_ended_before_it_could_be_checked_has_no_score():
    for status in ("failed", "error", "skipped"):
        found = build_task_summary([record(status=status, score=None)])
        assert (found.score, found.passed) == (0.0, False)  # section 3: score 0, passed false


def test_the_schema_is_valid_only_where_there_is_one():
    """Section 4: schemaValid."""
    assert "schemaValid" not in written(record())["tasks"][0]
    for passed in (True, False):
        found = written(record(assertions=[{"type": "return_schema", "passed": passed}]))
        assert found["tasks"][0]["schemaValid"] is passed


def test_findings_are_listed_where_they_were_looked_for():
    assert "safetyFindings" not in written(record())["tasks"][0]
    assert written(record(assertions=[{"type": "safety", "passed": True}]))["tasks"][0]["safetyFindings"] == []


def test_the_baseline_is_there_with_the_difference(capsys: pytest.CaptureFixture[str]):
    """Semantics of regression: current minus baseline; negative is worse."""
    threshold = Threshold(0.5, baseline=Baseline("run-7", 0.8))
    found = written(record(), threshold=threshold, diff_ref="/v1/runs/x:diff?against=run-7")
    assert found["regression"] == {
        "baselineRunId": "run-7",
        "scoreDelta": -0.3,
        "diffRef": "/v1/runs/x:diff?against=run-7",
    }
    validator = official("eval-summary", capsys)
    if validator is not None:
        validator.validate(found)


def test_without_a_verdict_on_every_task_there_is_no_difference():
    """W4."""
    assert "regression" not in written(
        record(), threshold=Threshold(0.5, baseline=Baseline("run-7", 0.8)), uncompared_cases=("b",)
    )


def test_records_of_other_suites_are_not_looked_at():
    other = record("x")
    other.suite = "native.jsonl"
    assert [task["taskId"] for task in written(other, record("a"))["tasks"]] == ["a"]


def test_repeats_are_one_task():
    found = written(record(trial=2, score=0.0, status="failed"), record(trial=1), rule=PassRule(min_pass=0.5))
    assert found["tasks"] == [{"taskId": "a", "score": 0.5, "passed": True, "costUsd": 0.0, "latencyMs": 100}]


def test_a_summary_that_was_written_can_be_read():
    made = build_eval_summary(standing(), [record()])
    assert parse_eval_summary(codec.encode(made), "s.json") == made


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"suiteId": "x"}',
        b'{"suiteId":"a.evals.b","suiteVersion":"1.0.0","aggregateScore":2,"passed":true,"taskCount":0,"passedCount":0,"tasks":[]}',
        b'{"suiteId":"a.evals.b","suiteVersion":"1.0.0","aggregateScore":1,"passed":true,"taskCount":0,"passedCount":0,"tasks":[],"output":"x"}',
    ],
)
def test_what_is_not_a_summary_is_refused(raw: bytes):
    with pytest.raises(BadInput, match=r"s\.json: is not an eval summary"):
        parse_eval_summary(raw, "s.json")

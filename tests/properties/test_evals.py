"""Laws of eval suites: golden values, scores, summaries, and our schema beside the official one."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openwop import official
from viva.checks.compare import is_same_json
from viva.checks.golden import Golden, to_canonical_text
from viva.checks.leaks import redact_secrets
from viva.checks.safety import Safety
from viva.engine.thresholds import SuiteTally
from viva.errors import BadInput, Problem
from viva.formats.documents import Document, parse_json_document
from viva.formats.openwop.suite import parse_suite
from viva.formats.openwop.summary import build_eval_summary
from viva.model import codec
from viva.model.case import Baseline, Threshold
from viva.model.event import PlannedSuite
from viva.model.finding import FINDING_KINDS, SEVERITIES, Finding
from viva.model.message import Reply, Usage
from viva.model.record import TrialRecord, TurnRecord
from viva.schemas.validation import find_violations
from viva.testing.check_context import make_check_context

numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def shuffled(value: Any) -> Any:
    """The same value with its keys in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(list(value))}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


def holds(strategy: Any, value: Any, reply: Reply) -> bool:
    return Golden(strategy=strategy, value=value).check(make_check_context(reply)).passed


@given(values)
def test_every_value_matches_itself_by_every_strategy(value: Any):
    """Section 4. Data that is null is no data, and an empty string as data is one."""
    if value is not None:
        for strategy in ("exact", "contains"):
            assert holds(strategy, value, Reply(data=shuffled(value)))
    if not isinstance(value, str) and value is not None:
        assert holds("json-match", value, Reply(data=shuffled(value)))
    assert holds("json-match", value, Reply(json.dumps(shuffled(value), indent=3)))


@given(values, values)
def test_json_match_is_equality_and_symmetric(one: Any, other: Any):
    told = Reply(json.dumps(other))
    assert holds("json-match", one, told) == is_same_json(one, json.loads(json.dumps(other)))
    assert holds("json-match", other, Reply(json.dumps(one))) == holds("json-match", one, told)


@given(values)
def test_a_stringified_value_is_equivalent_json_independent_of_key_order(value: Any):
    text = to_canonical_text(value)
    assert text == to_canonical_text(shuffled(value))
    if not isinstance(value, str):
        assert is_same_json(json.loads(text), value)
        assert text == codec.encode_canonically(json.loads(text)).decode()


@given(st.text())
def test_no_text_breaks_a_detector_and_every_finding_is_of_the_list(text: str):
    found = Safety().check(make_check_context(text, inputs=[text[::-1]])).findings
    assert all(each.kind in FINDING_KINDS and each.severity in SEVERITIES for each in found)


@given(values)
def test_a_value_without_secrets_keeps_its_shape(value: Any):
    assert type(redact_secrets(value)) is type(value)
    clean = redact_secrets(value)
    assert is_same_json(redact_secrets(clean), clean)


findings = st.builds(Finding, st.sampled_from(FINDING_KINDS), st.sampled_from(SEVERITIES))
usages = st.none() | st.builds(
    Usage, calls=st.just(1), cost_usd=st.none() | st.floats(0, 10, allow_nan=False, allow_infinity=False)
)
turns = st.lists(
    st.builds(
        TurnRecord,
        turn=st.just(1),
        input=st.text(max_size=3),
        input_source=st.just("static"),
        output=st.text(max_size=3),
        awaiting_input=st.booleans(),
        tool_calls=st.just([]),
        assertions=st.lists(
            st.fixed_dictionaries(
                {
                    "type": st.sampled_from(["golden", "safety", "return_schema"]),
                    "passed": st.sampled_from([True, False, None]),
                }
            ),
            max_size=2,
        ),
        duration_ms=st.floats(0, 1e6),
    ),
    max_size=1,
)
records = st.builds(
    TrialRecord,
    id=st.sampled_from(["a", "b", "c-1"]),
    name=st.text(max_size=3),
    status=st.sampled_from(["passed", "failed", "error", "skipped"]),
    turns=turns,
    final_assertions=st.just([]),
    total_turns=st.just(1),
    duration_ms=st.floats(0, 1e6),
    suite=st.just("a.evals.b"),
    trial=st.integers(1, 3),
    attempt=st.just(1),
    score=st.none() | st.floats(0, 1),
    usage=usages,
    findings=st.lists(findings, max_size=2).map(tuple),
)
thresholds = st.builds(
    Threshold,
    pass_score=st.none() | st.floats(0, 1),
    max_cost_usd=st.none() | st.floats(0, 10),
    max_p95_ms=st.none() | st.integers(0, 1000),
    baseline=st.none() | st.builds(Baseline, name=st.text(min_size=1, max_size=5), score=st.floats(0, 1)),
)


def test_a_summary_is_valid_for_any_records(capsys: pytest.CaptureFixture[str]) -> None:
    """R13, R14, R15: scores from 0 to 1, no more passed than there are, `passed` only if nothing was missed."""
    validator = official("eval-summary", capsys)

    @given(thresholds, st.lists(records, max_size=8, unique_by=lambda each: (each.id, each.trial)))
    def holds_for_all(threshold: Threshold, ended: list[TrialRecord]) -> None:
        tally = SuiteTally(
            PlannedSuite(suite="a.evals.b", kind="eval_suite", version="1.0.0", cases=3, threshold=threshold)
        )
        for record in ended:
            tally.count_trial(record)
        summary = tally.summary()
        found = json.loads(codec.encode(build_eval_summary(summary, ended, model_class="general")))
        if validator is not None:
            validator.validate(found)
        assert 0 <= found["aggregateScore"] <= 1
        assert found["passedCount"] <= found["taskCount"] == len(found["tasks"])
        assert found["passedCount"] == sum(task["passed"] for task in found["tasks"])
        assert found["passed"] is (not summary.unmet)
        if found["passed"] and threshold.pass_score is not None:
            assert found["aggregateScore"] >= threshold.pass_score - 1e-9  # R16
        if found["passed"] and threshold.max_cost_usd is not None:
            assert found["totalCostUsd"] <= threshold.max_cost_usd + 1e-9

    holds_for_all()


texts = st.sampled_from(
    ["", "a", "a.evals.b", "A.evals.b", "a.evals.b.c", "1.0.0", "1.0", "01.2.3", "1.0.0-x", "a-b", "-a", "a b"]
)
odd: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.sampled_from([-1, 0, 0.5, 1, 1.0, 2]) | texts | st.just([]) | st.just({})
)
modes = (
    st.lists(st.sampled_from(["golden", "rubric", "adversarial", "regression", "live-shadow", "x"]), max_size=3) | odd
)
classes = st.lists(st.sampled_from(["reasoning", "writing", "general", "chat"]), max_size=3) | odd
match = st.fixed_dictionaries(
    {},
    optional={"strategy": st.sampled_from(["exact", "contains", "json-match", "regex"]) | odd, "value": odd, "x": odd},
)
line = st.fixed_dictionaries({}, optional={"criterion": texts | odd, "weight": odd, "x": odd})
expected = (
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["golden", "rubric", "x"])},
        optional={"match": match | odd, "rubric": st.lists(line, max_size=2) | odd, "x": odd},
    )
    | odd
)
response = st.fixed_dictionaries({}, optional={"tool": texts | odd, "response": odd, "x": odd}) | odd
fixtures = (
    st.fixed_dictionaries(
        {},
        optional={
            "toolResponses": st.lists(response, max_size=2) | odd,
            "memorySeed": st.lists(odd, max_size=2) | odd,
            "x": odd,
        },
    )
    | odd
)
task = (
    st.fixed_dictionaries(
        {"taskId": texts, "input": odd, "expected": expected}, optional={"fixtures": fixtures, "x": odd}
    )
    | st.fixed_dictionaries({}, optional={"taskId": texts, "input": odd, "expected": expected})
    | odd
)
limits = (
    st.fixed_dictionaries({}, optional={"passScore": odd, "maxCostUsd": odd, "maxP95LatencyMs": odd, "x": odd}) | odd
)
good_task = st.fixed_dictionaries(
    {
        "taskId": st.sampled_from(["a", "b-1"]),
        "input": odd,
        "expected": st.just({"kind": "golden", "match": {"strategy": "exact", "value": 1}}),
    }
)
suites = st.fixed_dictionaries(
    {
        "suiteId": st.just("a.evals.b") | texts,
        "version": st.just("1.0.0") | texts,
        "modes": st.just(["golden"]) | modes,
        "tasks": st.lists(good_task, min_size=1, max_size=2) | st.lists(task, max_size=2) | odd,
    },
    optional={"targetAgentId": texts | odd, "allowedModels": classes, "thresholds": limits, "x": odd},
) | st.dictionaries(st.sampled_from(["suiteId", "version", "modes", "tasks", "x"]), odd)


def test_our_schema_accepts_and_refuses_what_the_official_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    """R3: in our own words, but equal in fields and limits."""
    validator = official("agent-eval-suite", capsys)
    if validator is None:
        return
    seen: set[bool] = set()

    @settings(max_examples=600)
    @given(suites)
    def same(value: Any) -> None:
        accepted = validator.is_valid(value)
        seen.add(accepted)
        assert (not find_violations("openwop", value)) == accepted

    same()
    assert seen == {True, False}


@settings(max_examples=300)
@given(suites)
@example(
    {
        "suiteId": "a.evals.b",
        "version": "1.0.0",
        "modes": ["golden"],
        "tasks": [],
        "thresholds": {"maxP95LatencyMs": 1.0},
    }
)
def test_any_value_is_a_suite_or_a_clear_complaint(value: Any) -> None:
    problems = _problems(parse_json_document(codec.encode(value), "s.json"))
    assert all(problem.file == "s.json" and problem.line >= 1 and problem.message for problem in problems)


def _problems(document: Document) -> tuple[Problem, ...]:
    try:
        assert parse_suite(document)[0].tasks
    except BadInput as wrong:
        return wrong.problems
    return ()


def _shape(schema: Any) -> Any:
    """A schema without its words."""
    if isinstance(schema, dict):
        words = {"description", "title", "$id", "$schema", "$comment"}
        found = {key: _shape(value) for key, value in schema.items() if key not in words or isinstance(value, dict)}
        return {key: sorted(value) if key == "required" else value for key, value in found.items()}
    return [_shape(item) for item in schema] if isinstance(schema, list) else schema


def test_our_schema_is_the_official_one_but_for_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    from openwop import OFFICIAL
    from viva.schemas.validation import read_schema

    if official("agent-eval-suite", capsys) is not None:
        theirs = json.loads((OFFICIAL / "agent-eval-suite.schema.json").read_text(encoding="utf-8"))
        assert _shape(codec.decode(read_schema("openwop"))) == _shape(theirs)

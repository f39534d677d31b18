"""Assertions that Python code writes are those of a suite file, and are checked like them."""

import pytest

import viva
from viva.check import build_assertion

WRITTEN = {
    "equals": (viva.check.equals({"a": 1}), {"type": "equals", "value": {"a": 1}}),
    "contains": (viva.check.contains("x"), {"type": "contains", "value": "x"}),
    "any case": (viva.check.contains("x", ignore_case=True), {"type": "contains", "value": "x", "ignore_case": True}),
    "not_contains": (viva.check.not_contains("x"), {"type": "not_contains", "value": "x"}),
    "regex": (viva.check.regex("a+"), {"type": "regex", "pattern": "a+"}),
    "json_path": (viva.check.json_path("$.a"), {"type": "json_path", "path": "$.a"}),
    "null": (viva.check.json_path("$.a", None), {"type": "json_path", "path": "$.a", "value": None}),
    "operators": (viva.check.json_path("$.a", gt=0, lte=9), {"type": "json_path", "path": "$.a", "gt": 0, "lte": 9}),
    "absent": (viva.check.json_path("$.a", exists=False), {"type": "json_path", "path": "$.a", "exists": False}),
    "type_is": (viva.check.type_is("array", "$.a"), {"type": "type", "value": "array", "path": "$.a"}),
    "json_schema": (viva.check.json_schema({"type": "object"}), {"type": "json_schema", "schema": {"type": "object"}}),
    "tool_called": (
        viva.check.tool_called(("a", "b"), arguments={"x": 1}, times={"min": 1}, status="ok"),
        {"type": "tool_called", "name": ["a", "b"], "arguments": {"x": 1}, "times": {"min": 1}, "status": "ok"},
    ),
    "never": (viva.check.tool_called("a", times=0), {"type": "tool_called", "name": "a", "times": 0}),
    "tool_not_called": (viva.check.tool_not_called("a"), {"type": "tool_not_called", "name": "a"}),
    "tool_sequence": (
        viva.check.tool_sequence("a", "b", exact=True),
        {"type": "tool_sequence", "names": ["a", "b"], "exact": True},
    ),
    "tool_result": (viva.check.tool_result("a", None), {"type": "tool_result", "name": "a", "result": None}),
    "max_latency": (viva.check.max_latency("2s"), {"type": "max_latency", "value": "2s"}),
    "max_cost": (viva.check.max_cost(0.5), {"type": "max_cost", "value": 0.5}),
    "max_tokens": (viva.check.max_tokens(5), {"type": "max_tokens", "value": 5}),
    "max_turns": (viva.check.max_turns(5), {"type": "max_turns", "value": 5}),
    "agent": (viva.check.agent_says("polite", votes=3), {"type": "agent", "criteria": "polite", "votes": 3}),
    "rubric": (
        viva.check.rubric("a", {"criterion": "b", "weight": 2}, min_score=0.5),
        {"type": "rubric", "criteria": ["a", {"criterion": "b", "weight": 2}], "min_score": 0.5},
    ),
    "all": (
        viva.check.all_of(viva.check.contains("x")),
        {"type": "all", "assertions": [{"type": "contains", "value": "x"}]},
    ),
    "any": (
        viva.check.any_of(viva.check.contains("x")),
        {"type": "any", "assertions": [{"type": "contains", "value": "x"}]},
    ),
    "not": (
        viva.check.not_(viva.check.contains("x")),
        {"type": "not", "assertion": {"type": "contains", "value": "x"}},
    ),
}


@pytest.mark.parametrize(("assertion", "written"), WRITTEN.values(), ids=WRITTEN)
def test_each_writes_what_a_file_would_hold(assertion, written):  # N25
    assert assertion == written
    assert build_assertion(assertion, ".").definition == written


def test_a_script_is_found_from_the_folder(tmp_path):  # N8
    (tmp_path / "vv_expect.py").write_text("def amount(output): return True")
    assert (
        build_assertion(viva.check.script("vv_expect:amount"), str(tmp_path)).check.label == 'script "vv_expect:amount"'
    )


@pytest.mark.parametrize(
    ("assertion", "what"),
    [
        ({"type": "contain", "value": "x"}, "$.type: unknown assertion type"),
        ({"type": "contains", "valu": "x"}, "did you mean 'value'"),
        (viva.check.regex("("), "is no regular expression"),
        (viva.check.json_path("$["), "is no JSONPath"),
        ({"value": "x"}, "misses 'type'"),
        ({"type": "equals", "value": object()}, "cannot stand in a suite"),
        (viva.check.all_of(), "assertions"),
    ],
)
def test_what_is_wrong_is_said_as_for_a_file(assertion, what):  # N2, N24
    with pytest.raises(viva.errors.BadInput) as raised:
        build_assertion(assertion, ".")
    assert what in str(raised.value)


def test_a_message_can_be_added():
    assertion = build_assertion(viva.check.contains("x") | {"message": "It must say x", "weight": 2}, ".", scope="case")
    assert (assertion.message, assertion.weight, assertion.over) == ("It must say x", 2.0, "case")

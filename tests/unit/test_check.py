"""Assertions that Python code writes are those of a suite file, and are checked like them."""

import pytest

from viva import check
from viva.check import build_assertion
from viva.errors import BadInput

WRITTEN = {
    "equals": (check.equals({"a": 1}), {"type": "equals", "value": {"a": 1}}),
    "contains": (check.contains("x"), {"type": "contains", "value": "x"}),
    "any case": (check.contains("x", ignore_case=True), {"type": "contains", "value": "x", "ignore_case": True}),
    "not_contains": (check.not_contains("x"), {"type": "not_contains", "value": "x"}),
    "regex": (check.regex("a+"), {"type": "regex", "pattern": "a+"}),
    "json_path": (check.json_path("$.a"), {"type": "json_path", "path": "$.a"}),
    "null": (check.json_path("$.a", None), {"type": "json_path", "path": "$.a", "value": None}),
    "operators": (check.json_path("$.a", gt=0, lte=9), {"type": "json_path", "path": "$.a", "gt": 0, "lte": 9}),
    "absent": (check.json_path("$.a", exists=False), {"type": "json_path", "path": "$.a", "exists": False}),
    "type_is": (check.type_is("array", path="$.a"), {"type": "type", "value": "array", "path": "$.a"}),
    "json_schema": (check.json_schema({"type": "object"}), {"type": "json_schema", "schema": {"type": "object"}}),
    "tool_called": (
        check.tool_called(("a", "b"), arguments={"x": 1}, times={"min": 1}, status="ok"),
        {"type": "tool_called", "name": ["a", "b"], "arguments": {"x": 1}, "times": {"min": 1}, "status": "ok"},
    ),
    "never": (check.tool_called("a", times=0), {"type": "tool_called", "name": "a", "times": 0}),
    "tool_not_called": (check.tool_not_called("a"), {"type": "tool_not_called", "name": "a"}),
    "tool_sequence": (
        check.tool_sequence("a", "b", exact=True),
        {"type": "tool_sequence", "names": ["a", "b"], "exact": True},
    ),
    "tool_result": (check.tool_result("a", None), {"type": "tool_result", "name": "a", "result": None}),
    "max_latency": (check.max_latency("2s"), {"type": "max_latency", "value": "2s"}),
    "max_cost": (check.max_cost(0.5), {"type": "max_cost", "value": 0.5}),
    "max_tokens": (check.max_tokens(5), {"type": "max_tokens", "value": 5}),
    "max_turns": (check.max_turns(5), {"type": "max_turns", "value": 5}),
    "judge": (check.judge("polite", votes=3), {"type": "judge", "criteria": "polite", "votes": 3}),
    "rubric": (
        check.rubric("a", {"criterion": "b", "weight": 2}, min_score=0.5),
        {"type": "rubric", "criteria": ["a", {"criterion": "b", "weight": 2}], "min_score": 0.5},
    ),
    "all": (check.all_of(check.contains("x")), {"type": "all", "assertions": [{"type": "contains", "value": "x"}]}),
    "any": (check.any_of(check.contains("x")), {"type": "any", "assertions": [{"type": "contains", "value": "x"}]}),
    "not": (check.not_(check.contains("x")), {"type": "not", "assertion": {"type": "contains", "value": "x"}}),
}


@pytest.mark.parametrize(("assertion", "written"), WRITTEN.values(), ids=WRITTEN)
def test_each_function_returns_the_assertion_of_a_file(assertion, written):  # N25
    assert assertion == written
    assert build_assertion(assertion, ".").definition == written


def test_a_script_is_found_from_the_folder(tmp_path):  # N8
    (tmp_path / "vv_expect.py").write_text("def amount(output): return True")
    assert build_assertion(check.script("vv_expect:amount"), str(tmp_path)).check.label == 'script "vv_expect:amount"'


@pytest.mark.parametrize(
    ("assertion", "what"),
    [
        ({"type": "contain", "value": "x"}, "$.type: unknown assertion type"),
        ({"type": "contains", "valu": "x"}, "did you mean 'value'"),
        (check.regex("("), "is not a regular expression"),
        (check.json_path("$["), "is not a JSONPath"),
        ({"value": "x"}, "is missing 'type'"),
        ({"type": "equals", "value": object()}, "cannot be written in a suite"),
        (check.all_of(), "assertions"),
    ],
)
def test_problems_are_reported_as_for_a_file(assertion, what):  # N2, N24
    with pytest.raises(BadInput) as raised:
        build_assertion(assertion, ".")
    assert what in str(raised.value)


def test_a_message_can_be_added():
    assertion = build_assertion(check.contains("x") | {"message": "It must say x", "weight": 2}, ".", scope="case")
    assert (assertion.message, assertion.weight, assertion.over) == ("It must say x", 2.0, "case")

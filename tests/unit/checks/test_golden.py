"""golden, and the return schema."""

import math
from typing import Any

import pytest

from viva.checks.golden import Golden, ReturnSchema, to_canonical_text
from viva.model.message import Reply
from viva.state.trial_state import get_reply_output
from viva.testing.check_context import make_check_context


def holds(strategy: Any, value: Any, reply: Reply | str) -> bool:
    verdict = Golden(strategy=strategy, value=value).check(make_check_context(reply))
    assert verdict.score == (1.0 if verdict.passed else 0.0)  # section 4: 1.0 or 0.0, passed iff 1.0
    return verdict.passed


STRINGIFIED = [
    ("as it is ", "as it is "),
    ({"b": 1, "a": [1, {"d": None, "c": True}]}, '{"a":[1,{"c":true,"d":null}],"b":1}'),
    ("é", "é"),
    ({"é": "ü"}, '{"é":"ü"}'),
    (1, "1"),
    (True, "true"),
    (None, "null"),
]


@pytest.mark.parametrize(("value", "text"), STRINGIFIED)
def test_a_string_stays_and_anything_else_is_json_with_sorted_keys_and_no_spaces(value: Any, text: str):
    assert to_canonical_text(value) == text  # section 4: stringify


EXACT = [
    ("yes", "yes", True),
    ("yes", "Yes", False),
    ("yes", " yes", False),
    ("yes", "yes\n", False),
    ({"a": 1}, '{"a":1}', True),
    ({"a": 1}, '{"a": 1}', False),
    (5, "5", True),
    ("", "", True),
]


@pytest.mark.parametrize(("value", "output", "same"), EXACT)
def test_exact_compares_texts_without_changes(value: Any, output: str, same: bool):
    assert holds("exact", value, output) is same  # section 4: no trimming or case folding


def test_exact_compares_both_sides_as_text():
    assert holds("exact", {"b": 1, "a": 2}, Reply(data={"a": 2, "b": 1}))
    assert holds("exact", '{"a":2}', Reply(data={"a": 2}))


CONTAINS = [
    ("30 days", Reply("within 30 days."), True),
    ("30 Days", Reply("within 30 days."), False),
    ('"a":1', Reply(data={"b": 2, "a": 1}), True),
    ({"a": 1}, Reply('it is {"a":1} then'), True),
    (42, Reply("the answer is 42"), True),
    ("", Reply("anything"), True),
]


@pytest.mark.parametrize(("value", "reply", "there"), CONTAINS)
def test_contains_searches_the_output_as_text(value: Any, reply: Reply, there: bool):
    assert holds("contains", value, reply) is there  # section 4: contains


JSON_MATCH = [
    ({"a": 1, "b": [2]}, Reply('{ "b": [2],\n "a": 1 }'), True),
    ({"a": 1}, Reply(data={"a": 1.0}), True),
    (1, Reply("1.0"), True),
    (1, Reply("true"), False),
    (True, Reply("1"), False),
    (0, Reply("false"), False),
    ({"a": True}, Reply(data={"a": 1}), False),
    ("5", Reply("5"), False),
    ("5", Reply('"5"'), True),
    (None, Reply("null"), True),
    (None, Reply(""), False),
    ([1, 2], Reply("[2, 1]"), False),
    ({"a": 1}, Reply('{"a": 1, "b": 2}'), False),
    ({"a": 1}, Reply('Sure: {"a": 1}'), False),
    ({"a": 1}, Reply("not JSON"), False),
    (1, Reply("NaN"), False),
]


@pytest.mark.parametrize(("value", "reply", "same"), JSON_MATCH)
def test_json_match_is_deep_and_strict_about_types(value: Any, reply: Reply, same: bool):
    assert holds("json-match", value, reply) is same  # section 4: json-match


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("strategy", ["exact", "contains", "json-match"])
def test_nan_is_refused_on_both_sides(strategy: Any, odd: float):
    with pytest.raises(ValueError, match="NaN"):
        Golden(strategy=strategy, value={"a": [odd]})
    for expected in (None, "null", {"a": None}):
        assert not holds(strategy, expected, Reply(data={"a": odd}))  # section 4: NaN refused


def test_the_output_is_the_data_if_there_is_some():
    assert get_reply_output(Reply("text", data={"a": 1})) == {"a": 1}  # W1
    assert get_reply_output(Reply("text", data=False)) is False
    assert get_reply_output(Reply("text")) == "text"


def test_a_rubric_judges_the_output_too():
    """W1: its data where it has some, whatever it says beside."""
    assert make_check_context(Reply("text", data={"a": 1}), on="output").text == '{"a":1}'
    assert make_check_context("text", on="output").text == "text"


def test_a_failure_shows_expected_and_actual():
    verdict = Golden(strategy="contains", value="hello").check(make_check_context("bye"))
    assert (verdict.reason, verdict.expected, verdict.actual) == ('"hello" is not in "bye"', "hello", "bye")
    for output, actual in (("a" * 5000, "a" * 3999 + "…"), ({"a": 1}, {"a": 1})):
        reply = Reply(output) if isinstance(output, str) else Reply(data=output)
        assert Golden(strategy="exact", value="hello").check(make_check_context(reply)).actual == actual


SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}


@pytest.mark.parametrize(
    ("reply", "valid"),
    [
        (Reply(data={"id": "x"}), True),
        (Reply('{"id": "x"}'), True),
        (Reply(data={"id": 1}), False),
        (Reply("just text"), False),
    ],
)
def test_the_return_schema_validates_the_output(reply: Reply, valid: bool):
    verdict = ReturnSchema(schema=SCHEMA).check(make_check_context(reply))
    assert verdict.passed is valid  # section 4: schemaValid
    assert ReturnSchema(schema=SCHEMA).label == "valid by the agent's return schema"
    assert ReturnSchema(schema={"type": "string"}).check(make_check_context("just text")).passed

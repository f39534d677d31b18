"""`t.assert_`: what each assertion holds of, and what it says where it does not."""

import asyncio
import re

import pytest

from viva import check
from viva.errors import BadInput
from viva.model.message import Reply, ToolCall
from viva.session.scripts.soft_assertions import SoftAssertions
from viva.session.scripts.tester import FailTest, SkipTest, T, collect_results
from viva.testing.check_context import make_trial_state

REPLY = Reply("I submitted it", data={"total": 3500, "items": ["taxi", "hotel"], "ok": True})


def broken():
    raise ValueError("boom")


# method, arguments that hold, arguments that do not, what is said then
TABLE = [
    ("true_", (1,), (0,), "0 is not true"),
    ("false_", ([],), ([1],), "[1] is not false"),
    ("equal", ({"a": [1]}, {"a": [1.0]}), (5, "5"), 'expected "5", was 5'),
    ("equal", (True, True), (True, 1), "expected 1, was true"),
    ("equal", ((1, 2), [1, 2]), (None, 0), "expected 0, was null"),
    ("not_equal", (5, "5"), ([1], [1]), "must not be [1], but is"),
    ("nil", (None,), (0,), "expected nothing, was 0"),
    ("not_nil", (0,), (None,), "expected a value, was None"),
    ("contains", ("expense report", "expense"), ("expense", "Expense"), '"Expense" is not in "expense"'),
    ("contains", (REPLY, "submitted"), (REPLY, "refused"), '"refused" is not in'),
    ("contains", ([{"a": 1}], {"a": 1}), ([1], "1"), '"1" is not in [1]'),
    ("contains", ({"a": 1}, "a"), ({"a": 1}, "b"), '"b" is not in {"a":1}'),
    ("contains", ({1, 2}, 2), (None, "x"), '"x" is not in null'),
    ("not_contains", ("abc", "x"), ("abc", "b"), '"b" must not be in "abc"'),
    ("len", ([1, 2], 2), ("abc", 2), 'expected 2, was 3: "abc"'),
    ("len", ({"a": 1}, 1), (None, 1), "null has no length"),
    ("greater", (2, 1), (1, 1), "expected > 1, was 1"),
    ("greater_or_equal", (1, 1), (0, 1), "expected >= 1, was 0"),
    ("less", (1, 2), ("a", 2), '"a" cannot be compared with 2'),
    ("less_or_equal", (2, 2), (3, 2), "expected <= 2, was 3"),
    ("error", (broken,), (lambda: 1,), "expected an error, there was none"),
    ("error", (ValueError("x"),), (None,), "expected an error, there was none"),
    ("no_error", (lambda: 1,), (broken,), "expected no error, was ValueError: boom"),
    ("no_error", (None,), ("refused",), 'expected no error, was "refused"'),
    ("panic", (broken,), (lambda: 1,), "the function did not raise"),
    ("no_panic", (lambda: 1,), (broken,), "the function raised ValueError: boom"),
    ("match", ("order 15", r"\d+"), ("order", r"\d+"), r'"\d+" matches nothing in "order"'),
    ("match", ({"a": 15}, "15"), (None, "x"), '"x" matches nothing in ""'),
    ("not_match", ("order", r"\d"), ("order 1", r"\d"), r'"\d" must not match, but does, in "order 1"'),
    ("type", ([1], "array"), ("1", "number"), 'is of type string, not number: "1"'),
    ("type", (1, "number"), (True, "integer"), "is of type boolean, not integer: true"),
    ("type", (1, int), ("1", int), 'is of type str, not int: "1"'),
    ("json_path", (REPLY, "$.total", 3500), (REPLY, "$.total", "3500"), '$.total: expected "3500", was 3500'),
    ("json_path", ({"a": None}, "a"), ({"a": 1}, "b"), '$.b finds nothing in {"a":1}'),
    ("json_path", ('```json\n{"a": 1}\n```', "$.a", [1, 2]), ("no json", "$.a"), "has no JSON"),
]


def alone(_work):
    raise AssertionError("no call has to be waited for")


@pytest.fixture
def t():
    return T(make_trial_state("hello"), alone)


@pytest.mark.parametrize(
    ("method", "good", "bad", "expected"), TABLE, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_assertion_holds_or_says_why_not(t, method, good, bad, expected):  # N31
    check = getattr(t.assert_, method)
    assert check(*good) is True
    assert check(*bad, message="so it must be") is False
    passed, failed = collect_results(t._state)
    assert passed.verdict.passed
    assert failed.verdict.status == "failed"
    assert expected in failed.verdict.reason
    assert failed.assertion.message == "so it must be"


def test_each_name_of_the_specification_is_the_same_as_its_snake_case_name():  # N31
    names = [
        "True_",
        "False_",
        "Equal",
        "NotEqual",
        "Nil",
        "NotNil",
        "Contains",
        "NotContains",
        "Len",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Error",
        "NoError",
        "Panic",
        "NoPanic",
        "Match",
        "NotMatch",
        "Type",
        "JSONPath",
        "Agent",
    ]
    for name in names:
        snake = "json_path" if name == "JSONPath" else re.sub("(?<!^)(?=[A-Z])", "_", name).lower()
        assert getattr(SoftAssertions, name) is getattr(SoftAssertions, snake)


def test_every_assertion_is_in_the_table():
    tested = {row[0] for row in TABLE} | {"agent", "run_check"}
    assert tested == {name for name in vars(SoftAssertions) if not name.startswith("_") and name.islower()}


def test_every_check_is_a_method_with_the_arguments_of_its_function():
    t = T(make_trial_state("hello"), asyncio.run)
    reply = Reply("order 17 is on its way", tool_calls=(ToolCall("ship", {"order": 17}),))
    assert t.assert_.regex(reply, "order [0-9]+")
    assert t.assert_.tool_called(reply, "ship", arguments={"order": 17}, times=1)
    assert not t.assert_.tool_not_called(reply, "ship", message="It must not ship")
    assert t.assert_.all_of(reply, check.contains("order"), check.not_(check.contains("refund")))
    last = collect_results(t._state)[2]
    assert (last.assertion.definition["type"], last.assertion.message) == ("tool_not_called", "It must not ship")
    with pytest.raises(BadInput, match="is not a regular expression"):
        t.assert_.regex(reply, "(")


def test_an_assertion_that_cannot_be_evaluated_is_an_error(t):  # N24
    assert t.assert_.match("x", "(") is False
    assert t.assert_.json_path({}, "$[") is False
    assert [each.verdict.status for each in collect_results(t._state)] == ["error", "error"]
    assert not t.failed


@pytest.mark.parametrize(
    "value", [object(), {(1, 2): 3}, 2**80, float("nan"), {"x": {1, 2}}, b"\xff", "\ud800", broken]
)
def test_any_value_can_be_recorded(t, value):
    """The record can be written for any value that a test passes."""
    from viva.model import codec

    t.assert_.equal(value, "something else")
    t.assert_.contains(value, "something else")
    for each in collect_results(t._state):
        codec.encode(each.verdict)
        assert each.verdict.status == "failed"


def test_assertions_are_soft_and_belong_to_the_last_turn():
    state = make_trial_state("one", "two")
    t = T(state, alone)
    assert t.assert_.nil(1) is False
    t.error("wrong", 5)
    assert [len(turn.results) for turn in state.turns] == [0, 2]
    assert [each.verdict.reason for each in state.turns[1].results] == ["expected nothing, was 1", "wrong 5"]
    assert t.failed


def test_before_the_first_turn_they_belong_to_the_case():
    state = make_trial_state()
    T(state, alone).assert_.true_(True)
    assert len(state.final_results) == 1


def test_fatal_notes_and_ends(t):
    with pytest.raises(FailTest):
        t.fatal("no", "way")
    assert [(each.assertion.definition["type"], each.verdict.reason) for each in collect_results(t._state)] == [
        ("fatal", "no way")
    ]


def test_a_test_that_catches_exceptions_does_not_catch_its_own_end(t):
    assert not issubclass(FailTest, Exception)
    assert not issubclass(SkipTest, Exception)
    with pytest.raises(SkipTest, match="not today"):
        t.skip("not today")


def test_what_is_logged_is_kept(t):
    t.log("took", 5, "ms")
    assert t._state.notes == ["took 5 ms"]
    assert t.name == t._state.case.id

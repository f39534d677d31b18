"""contains, flow_contains, not_contains, regex."""

import pytest

from viva.model.message import Reply, ToolCall
from viva.testing.check_context import make_check_context


@pytest.mark.parametrize(
    ("definition", "text", "status"),
    [
        ({"type": "contains", "value": "type of expense"}, "What type of expense?", "passed"),
        ({"type": "contains", "value": "Type"}, "What type of expense?", "failed"),
        ({"type": "contains", "value": "Type", "ignore_case": True}, "What type of expense?", "passed"),
        ({"type": "contains", "value": "STRASSE", "ignore_case": True}, "Die Straße", "passed"),
        ({"type": "contains", "value": "x"}, "", "failed"),
        ({"type": "contains", "value": "a+b"}, "aab", "failed"),
        ({"type": "not_contains", "value": "sorry"}, "Done.", "passed"),
        ({"type": "not_contains", "value": "sorry"}, "I am sorry.", "failed"),
        ({"type": "not_contains", "value": "sorry"}, "I am SORRY.", "passed"),
        ({"type": "not_contains", "value": "sorry"}, "sorry", "failed"),
        ({"type": "not_contains", "value": "sorry", "ignore_case": True}, "I am SORRY.", "failed"),
        ({"type": "regex", "pattern": r"order-\d+"}, "see order-15.", "passed"),
        ({"type": "regex", "pattern": r"^order"}, "see order-15.", "failed"),
        ({"type": "regex", "pattern": r"(?i)ORDER"}, "see order-15.", "passed"),
        ({"type": "regex", "pattern": r"ORDER"}, "see order-15.", "failed"),
        ({"type": "contains", "value": "sorry", "negate": True}, "Done.", "passed"),
        ({"type": "contains", "value": "sorry", "negate": True}, "sorry", "failed"),
    ],
)
def test_text_checks(bench, definition, text, status):  # N25
    assert bench.evaluate(definition, make_check_context(text)).status == status


def test_data_is_the_text_of_a_reply_without_content(bench):  # N24
    context = make_check_context(Reply(data={"status": "ok", "n": 1}))
    assert bench.evaluate({"type": "contains", "value": '{"status":"ok","n":1}'}, context).passed


def test_the_text_of_a_checkpoint_contains_tool_results(bench):  # N14
    reply = Reply("Done", tool_calls=(ToolCall("create", result={"id": "EXP-1"}), ToolCall("log", result="written")))
    definition = {"type": "contains", "value": '"EXP-1"}\nwritten'}
    assert bench.evaluate(definition, make_check_context(reply, on="reply_and_tools")).passed
    assert bench.evaluate(definition, make_check_context(reply)).status == "failed"


@pytest.mark.parametrize(
    ("definition", "text", "reason"),
    [
        ({"type": "contains", "value": "x y"}, "abc", '"x y" is not in "abc"'),
        ({"type": "contains", "value": "x"}, "", '"x" is not there: the text is empty'),
        ({"type": "contains", "value": "ABC"}, "abc", '"ABC" is there only in another case (see ignore_case): "abc"'),
        ({"type": "not_contains", "value": "b"}, "abc", '"b" must not be there, but is: "abc"'),
        ({"type": "regex", "pattern": r"\d"}, "a\nb", r'"\d" matches nothing in "a\nb"'),
    ],
)
def test_a_failure_shows_expected_and_actual(bench, definition, text, reason):
    verdict = bench.evaluate(definition, make_check_context(text))
    assert verdict.reason == reason
    assert verdict.expected == definition.get("value", definition.get("pattern"))
    assert verdict.actual == text


def test_a_long_text_is_shortened_in_the_reason(bench):
    verdict = bench.evaluate({"type": "contains", "value": "x"}, make_check_context("a" * 100_000))
    assert len(verdict.reason) < 200
    assert len(verdict.actual) <= 4000


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("", "", '"no"'),
        ("a" * 30, "b" * 30, f'"{"a" * 30}no{"b" * 30}"'),
        ("a" * 31, "b" * 31, f'"…{"a" * 30}no{"b" * 30}…"'),
        ("ß" * 40, "", f'"…{"ß" * 30}no"'),  # ß is two characters once case is ignored
    ],
)
def test_a_text_that_must_not_be_there_is_shown_with_30_characters_on_each_side(bench, before, after, shown):
    for ignore_case in (False, True):
        definition = {"type": "not_contains", "value": "no", "ignore_case": ignore_case}
        verdict = bench.evaluate(definition, make_check_context(f"{before}no{after}"))
        assert verdict.reason == f'"no" must not be there, but is: {shown}'


def test_a_pattern_that_never_ends_is_an_error(bench):  # N27
    for negate in (False, True):
        definition = {"type": "regex", "pattern": "(a|aa)+$", "negate": negate}
        verdict = bench.evaluate(definition, make_check_context("a" * 80 + "b"))
        assert verdict.status == "error"
        assert "(a|aa)+$" in verdict.reason


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"type_": "contains", "value": "type of expense"}, 'contains "type of expense"'),
        ({"type_": "contains", "value": "x", "ignore_case": True}, 'contains "x" (any case)'),
        ({"type_": "not_contains", "value": "a\nb"}, r'not_contains "a\nb"'),
        ({"type_": "regex", "pattern": r"order-\d+"}, r'regex "order-\d+"'),
        (
            {"type_": "contains", "value": "\U0001f469\u200d\U0001f4bb\u200b"},
            'contains "\U0001f469\u200d\U0001f4bb\\u200b"',
        ),
    ],
)
def test_labels(bench, fields, label):
    assert bench.label(**fields) == label


def test_a_label_is_cut_off(bench):
    assert len(bench.label("contains", value="x" * 500)) == 80


def test_flow_contains_searches_all_turns(bench):  # P9
    tools = (ToolCall("t", result="only in a tool result"),)
    context = make_check_context("first", Reply("second", tool_calls=tools), "third", inputs=["asked by the user"])
    for value, status in (("first", "passed"), ("third", "passed"), ("user", "failed"), ("tool", "failed")):
        assert bench.evaluate({"type": "flow_contains", "value": value}, context).status == status
    assert bench.evaluate({"type": "flow_contains", "value": "FIRST", "ignore_case": True}, context).passed
    assert bench.evaluate({"type": "flow_contains", "value": "first", "negate": True}, context).status == "failed"
    assert bench.label("flow_contains", value="a") == 'flow_contains "a"'

"""The laws of comparison, and what every check keeps to whatever an agent answers."""

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from viva import catalog
from viva.checks.compare import explain_mismatch, get_json_type, is_same_json
from viva.checks.formatting import quote_value
from viva.model.case import Assertion
from viva.model.component import BuildContext
from viva.model.ellipsis import cut_end
from viva.model.message import ModelCall, Reply, ToolCall
from viva.model.turn import AssertionResult, Verdict
from viva.state.evaluation import start_evaluation
from viva.testing.check_context import make_check_context
from viva.text.embedded_json import find_json, parse_whole_json

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=4), values, max_size=5)


@given(values)
def test_equality_is_reflexive(value):
    assert is_same_json(value, json.loads(json.dumps(value)))


@given(values, values)
def test_equality_is_symmetric_and_implies_equal_types(one, other):
    assert is_same_json(one, other) == is_same_json(other, one)
    if is_same_json(one, other):
        assert get_json_type(one) == get_json_type(other)


@given(values, values, values)
def test_equality_is_transitive(one, two, three):
    if is_same_json(one, two) and is_same_json(two, three):
        assert is_same_json(one, three)


@given(st.integers(-(2**53), 2**53))
def test_types_are_strict_but_whole_numbers_are_numbers(number):  # N25
    assert is_same_json(number, float(number))
    assert not is_same_json(number, str(number))
    assert not is_same_json(bool(number), int(bool(number)))
    assert not is_same_json([True], [1])
    assert not is_same_json({"a": False}, {"a": 0})
    assert not is_same_json(float("nan"), float("nan"))


@given(objects)
def test_the_order_of_keys_does_not_matter(value):  # N25
    assert is_same_json(value, dict(reversed(value.items())))


@given(st.lists(values, min_size=2, max_size=5))
def test_the_order_of_items_does(items):
    backwards = items[::-1]
    assert is_same_json(items, backwards) == all(map(is_same_json, items, backwards))


@given(values)
def test_a_value_is_a_part_of_itself(value):
    assert explain_mismatch(value, value) is None


@given(values, values)
def test_equal_values_are_parts_of_each_other(one, other):
    if is_same_json(one, other):
        assert explain_mismatch(one, other) is None
        assert explain_mismatch(other, one) is None


@given(objects, st.data())
def test_dropping_keys_keeps_a_part_a_part(whole, data):
    kept = data.draw(st.sets(st.sampled_from(sorted(whole))) if whole else st.just(set()))
    part = {key: value for key, value in whole.items() if key in kept}
    assert explain_mismatch(part, whole) is None
    assert (explain_mismatch(whole, part) is None) == (len(part) == len(whole))


@given(values, objects)
def test_a_part_of_a_part_is_a_part(value, more):
    whole = {**more, "x": value}
    assert explain_mismatch({"x": value}, whole) is None
    assert explain_mismatch([{"x": value}], [whole]) is None
    assert explain_mismatch({"deep": {"x": value}}, {"deep": whole, "other": 1}) is None


@given(objects, st.text(max_size=4))
def test_a_key_that_does_not_exist_is_missing(whole, key):
    if key not in whole:
        assert explain_mismatch({key: None}, whole) == f"$.{key} is missing"


@given(
    st.dictionaries(st.text(max_size=4), values, min_size=1, max_size=4)
    | st.lists(values.filter(lambda v: not isinstance(v, int)), min_size=1)
)
def test_json_is_found_whole_fenced_and_among_words(value):  # N25, N29
    text = json.dumps(value, ensure_ascii=False)
    assert is_same_json(parse_whole_json(text), value)
    assert is_same_json(parse_whole_json(f"```json\n{text}\n```"), value) or "```" in text
    assert is_same_json(find_json(f"So it is: {text} and no more"), value)


@given(st.text())
def test_any_text_holds_json_or_none(text):
    found = find_json(text)
    assert found is UNSET or isinstance(found, dict | list)


@given(values, st.integers(2, 50))
def test_quoted_values_are_short_and_printable(value, limit):
    assert quote_value(value, limit).isprintable()
    assert len(cut_end(str(value), limit)) <= limit


WRITTEN = [
    {"type": "equals", "value": {"a": 1}},
    {"type": "contains", "value": "a", "ignore_case": True},
    {"type": "not_contains", "value": "a"},
    {"type": "regex", "pattern": "a+"},
    {"type": "json_path", "path": "$..a", "value": [1, 2], "gt": 0, "matches": "1"},
    {"type": "type", "path": "$.a", "value": "number"},
    {"type": "json_schema", "schema": {"required": ["a"]}},
    {"type": "tool_called", "name": "t", "arguments": {"a": {"matches": "1"}}, "times": {"min": 1, "max": 2}},
    {"type": "tool_not_called", "name": ["t", "u"], "arguments": {"a": 1}},
    {"type": "tool_sequence", "names": ["t", "t"]},
    {"type": "tool_result", "name": "t", "result": {"a": "regex:1"}},
    {"type": "max_latency", "value": "50ms"},
    {"type": "max_cost", "value": 0.5},
    {"type": "max_tokens", "value": 10},
    {"type": "max_turns", "value": 1},
]


def assertion_of(written, *, negate=False):
    kind = catalog.find_component("check", written["type"])
    assert kind is not None
    fields = {key: value for key, value in written.items() if key != "type"}
    return Assertion(kind.build(fields, BuildContext(".", (), assertion_of)), negate=negate)


replies = st.builds(
    Reply,
    content=st.text(max_size=20) | values.map(json.dumps),
    data=values,
    tool_calls=st.lists(
        st.builds(
            ToolCall,
            name=st.sampled_from(["t", "x__t", "u"]),
            arguments=values | values.map(json.dumps),
            result=values | st.just(UNSET),
            error=st.none() | st.text(max_size=5),
        ),
        max_size=3,
    ).map(tuple),
    calls=st.lists(
        st.builds(ModelCall, input_tokens=st.integers(0, 99), cost_usd=st.none() | st.floats(0, 1)), max_size=2
    ).map(tuple),
)
COMBINED = [
    {"type": "all", "assertions": WRITTEN},
    {"type": "any", "assertions": WRITTEN},
    {"type": "not", "assertion": {"type": "all", "assertions": WRITTEN}},
]


@given(
    st.lists(replies, min_size=1, max_size=3), st.sampled_from(["turn", "case"]), st.sampled_from(WRITTEN + COMBINED)
)
def test_every_check_comes_to_a_verdict_and_its_negation_to_the_opposite(answers, over, written):  # N24
    verdict = verdict_of(assertion_of(written), make_check_context(*answers, over=over))
    opposite = verdict_of(assertion_of(written, negate=True), make_check_context(*answers, over=over))
    assert opposite.status == {"passed": "failed", "failed": "passed", "error": "error"}[verdict.status]
    if verdict.status == "error":
        assert written["type"] in ("max_cost", "max_tokens", "all", "any", "not"), verdict.reason
    if verdict.status == "failed":
        assert verdict.reason.isprintable()


def verdict_of(assertion, evidence) -> Verdict:
    found = start_evaluation(assertion, evidence)
    assert isinstance(found, AssertionResult)
    return found.verdict

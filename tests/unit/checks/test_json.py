"""equals, json_path, type, json_schema."""

import pytest

from viva.model.message import Reply, ToolCall
from viva.testing.check_context import make_check_context


@pytest.mark.parametrize(
    ("value", "reply", "status"),
    [
        ("OK", "OK", "passed"),
        ("OK", "OK.", "failed"),
        ("OK", " OK", "failed"),
        ("", "", "passed"),
        ("5", "5", "passed"),
        (5, "5", "failed"),
        (True, "true", "failed"),
        (None, "null", "failed"),
        (None, "", "failed"),
        ({"a": 1}, '{"a": 1}', "passed"),
        ({"a": 1}, ' \n{"a": 1.0}\n', "passed"),
        ({"a": 1}, '```json\n{"a": 1}\n```', "passed"),
        ({"a": 1}, 'Here: {"a": 1}', "failed"),
        ([1, 2], "[1,2]", "passed"),
        ([1, 2], "[2,1]", "failed"),
        (5, Reply(data=5), "passed"),
        (5, Reply(data="5"), "failed"),
        ("5", Reply(data="5"), "passed"),
        (True, Reply(data=1), "failed"),
        (1, Reply(data=True), "failed"),
        (False, Reply(data=False), "passed"),
        (0, Reply(data=0), "passed"),
        (0, Reply(data=False), "failed"),
        ({"a": 1, "b": [True]}, Reply(data={"b": [True], "a": 1.0}), "passed"),
        ({"a": 1}, Reply(data={"a": 1, "b": 2}), "failed"),
        ({"a": (1, 2)}, Reply(data={"a": [1, 2]}), "passed"),
        ({"a": 1}, Reply('{"a": 1}', data={"a": 2}), "failed"),
        ('{"a":1}', Reply(data={"a": 1}), "passed"),
    ],
)
def test_equals_is_deep_and_type_strict(bench, value, reply, status):  # N25
    assert bench.evaluate({"type": "equals", "value": value}, make_check_context(reply)).status == status


def test_equals_needs_a_value(bench):
    with pytest.raises(ValueError, match="missing required field `value`"):
        bench.assertion({"type": "equals"})


def test_equals_explains_that_a_text_is_not_data(bench):
    verdict = bench.evaluate({"type": "equals", "value": 5}, make_check_context("5"))
    assert verdict.reason == 'expected 5, was "5" (a text, not data)'
    assert (verdict.expected, verdict.actual) == (5, "5")


DATA = {
    "status": "ok",
    "n": 5,
    "f": 1.5,
    "t": True,
    "none": None,
    "list": ["a", "b"],
    "items": [{"p": 1}, {"p": 2}],
    "o": {"k": 1},
}


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"path": "$.status", "value": "ok"}, "passed"),
        ({"path": "status", "value": "ok"}, "passed"),
        ({"path": "o.k", "value": 1}, "passed"),
        ({"path": "['o']['k']", "value": 1}, "passed"),
        ({"path": "..k", "value": 1}, "passed"),
        ({"path": "$.status", "value": "no"}, "failed"),
        ({"path": "$.n", "value": "5"}, "failed"),
        ({"path": "$.n", "value": 5.0}, "passed"),
        ({"path": "$.t", "value": 1}, "failed"),
        ({"path": "$.none", "value": None}, "passed"),
        ({"path": "$.nowhere", "value": None}, "failed"),
        ({"path": "$.nowhere"}, "failed"),
        ({"path": "$.none"}, "passed"),
        ({"path": "$.n", "value": [4, 5]}, "passed"),
        ({"path": "$.n", "value": [4, 6]}, "failed"),
        ({"path": "$.n", "value": ["5"]}, "failed"),
        ({"path": "$.o", "value": [{"k": 1}]}, "passed"),
        ({"path": "$.list", "value": ["a", "b"]}, "passed"),
        ({"path": "$.list", "value": ["b", "a"]}, "failed"),
        ({"path": "$.list", "value": "a"}, "failed"),
        ({"path": "$.items[*].p", "value": [1, 2]}, "passed"),
        ({"path": "$.items[*].p", "value": 1}, "failed"),
        ({"path": "$.items[?@.p > 1].p", "value": 2}, "passed"),
        ({"path": "$.n", "exists": True}, "passed"),
        ({"path": "$.none", "exists": True}, "passed"),
        ({"path": "$.nowhere", "exists": True}, "failed"),
        ({"path": "$.nowhere", "exists": False}, "passed"),
        ({"path": "$.n", "exists": False}, "failed"),
        ({"path": "$.n", "gt": 4}, "passed"),
        ({"path": "$.n", "gt": 5}, "failed"),
        ({"path": "$.n", "gte": 5}, "passed"),
        ({"path": "$.n", "gte": 5.5}, "failed"),
        ({"path": "$.n", "lt": 6}, "passed"),
        ({"path": "$.n", "lt": 5}, "failed"),
        ({"path": "$.n", "lte": 5}, "passed"),
        ({"path": "$.n", "lte": 4}, "failed"),
        ({"path": "$.n", "gt": 0, "lt": 3}, "failed"),
        ({"path": "$.n", "gt": 0, "lt": 9, "exists": True}, "passed"),
        ({"path": "$.status", "gt": 0}, "failed"),
        ({"path": "$.t", "gte": 1}, "failed"),
        ({"path": "$.status", "matches": "^o"}, "passed"),
        ({"path": "$.status", "matches": "^k"}, "failed"),
        ({"path": "$.n", "matches": "^5$"}, "passed"),
        ({"path": "$.none", "matches": "null"}, "failed"),
        ({"path": "$.n", "value": 5, "gt": 7}, "failed"),
        ({"path": "$.nowhere", "negate": True}, "passed"),
    ],
)
def test_json_path_operators(bench, fields, status):  # N25
    assert bench.evaluate({"type": "json_path", **fields}, make_check_context(Reply(data=DATA))).status == status


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"a": {"b": 1}}', "passed"),
        ('Sure!\n```json\n{"a": {"b": 1}}\n```\nAnything else?', "passed"),
        ('Sure! {"a": {"b": 1}} Anything else?', "passed"),
        ('As {said} in [1]: {"a": {"b": 1}}', "passed"),
        ('{"a": {"b": "1"}}', "failed"),
        ("no JSON here", "failed"),
        ("", "failed"),
        ("1", "failed"),
    ],
)
def test_json_path_finds_json_in_a_text(bench, text, status):  # N25
    assert bench.evaluate({"type": "json_path", "path": "$.a.b", "value": 1}, make_check_context(text)).status == status


@pytest.mark.parametrize("fields", [{"value": None}, {"exists": False}, {"exists": True}, {}])
def test_a_reply_without_json_fails(bench, fields):  # N25
    verdict = bench.evaluate({"type": "json_path", "path": "$.a", **fields}, make_check_context("just words"))
    assert (verdict.status, verdict.reason) == ("failed", 'the reply has no JSON: "just words"')


def tools(*results):
    return Reply("All done.", tool_calls=tuple(ToolCall(f"t{n}", result=result) for n, result in enumerate(results)))


SUBMITTED = {"type": "json_path", "path": "$.expense.status", "value": "submitted"}


@pytest.mark.parametrize(
    ("replies", "status"),
    [
        ((tools({"expense": {"status": "submitted"}}), "Thanks!"), "passed"),
        ((tools('{"expense": {"status": "submitted"}}'), "Thanks!"), "passed"),
        ((tools({"expense": {"status": "submitted"}}, {"log": 1}), "Thanks!"), "passed"),
        ((tools({"expense": {"status": "draft"}}), tools({"expense": {"status": "submitted"}})), "passed"),
        ((tools({"expense": {"status": "submitted"}}), tools({"expense": {"status": "draft"}})), "failed"),
        ((tools({"expense": {"status": "submitted"}}), Reply(data={"expense": {"status": "draft"}})), "failed"),
        ((tools({"expense": {"status": "submitted"}}), Reply(data={"other": 1})), "passed"),
        ((tools("plain words"), "Thanks!"), "failed"),
        ((Reply(tool_calls=(ToolCall("t", result={"expense": {"status": "submitted"}}, error="refused"),)),), "failed"),
    ],
)
def test_a_final_json_path_searches_tool_results_newest_first(bench, replies, status):  # N12
    assert bench.evaluate(SUBMITTED, make_check_context(*replies, over="case")).status == status


def test_a_json_path_of_a_turn_does_not_search_tool_results(bench):  # N12
    assert bench.evaluate(SUBMITTED, make_check_context(tools({"expense": {"status": "submitted"}}))).status == "failed"


@pytest.mark.parametrize(
    ("fields", "reason", "expected", "actual"),
    [
        ({"path": "$.status", "value": "x"}, '$.status: expected "x", was "ok"', "x", "ok"),
        ({"path": "n", "value": [1, 2]}, "$.n: expected one of [1,2], was 5", [1, 2], 5),
        ({"path": "n", "gt": 7}, "$.n: expected > 7, was 5", 7, 5),
        ({"path": "status", "lt": 7}, '$.status: expected a number < 7, was "ok"', 7, "ok"),
        ({"path": "status", "matches": "^x"}, '$.status: "ok" does not match "^x"', "^x", "ok"),
    ],
)
def test_json_path_failures_name_path_expected_and_actual(bench, fields, reason, expected, actual):
    verdict = bench.evaluate({"type": "json_path", **fields}, make_check_context(Reply(data=DATA)))
    assert (verdict.reason, verdict.expected, verdict.actual) == (reason, expected, actual)


def test_a_pattern_in_a_filter_cannot_hang_the_run(bench):  # N27
    definition = {"type": "json_path", "path": "$[?match(@, '(a|aa)+')]"}
    verdict = bench.evaluate(definition, make_check_context(Reply(data=["a" * 80 + "b"])))
    assert verdict.status == "error"
    assert "(a|aa)+" in verdict.reason


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$[?match(@, 'a.c')]", "abc"),
        ("$[?match(@, 'b')]", "b"),
        ("$[?search(@, 'bc')]", "abc"),
        ("$[?match(@, '[.]')]", "."),
        (r"$[?match(@, '\\.')]", "."),
        ("$[?match(@, '((')]", None),
    ],
)
def test_filters_have_match_and_search(bench, path, found):
    data = ["abc", "b", "a\nc", ".", 5]
    definition = (
        {"type": "json_path", "path": path, "exists": False}
        if found is None
        else {"type": "json_path", "path": path, "value": found}
    )
    assert bench.evaluate(definition, make_check_context(Reply(data=data))).passed


@pytest.mark.parametrize(
    ("fields", "reply", "status"),
    [
        ({"value": "string"}, "hello", "passed"),
        ({"value": "string"}, '{"a": 1}', "passed"),
        ({"value": "object"}, '{"a": 1}', "failed"),
        ({"value": "string"}, "", "passed"),
        ({"value": "object"}, Reply(data={"a": 1}), "passed"),
        ({"value": "string"}, Reply("hi", data={"a": 1}), "failed"),
        ({"value": "array"}, Reply(data=[]), "passed"),
        ({"value": "boolean"}, Reply(data=False), "passed"),
        ({"value": "number"}, Reply(data=True), "failed"),
        ({"value": "number"}, Reply(data=0), "passed"),
        ({"value": "integer"}, Reply(data=0), "passed"),
        ({"value": "integer"}, Reply(data=1.5), "failed"),
        ({"value": "integer"}, Reply(data=2.0), "passed"),
        ({"value": "number"}, Reply(data=1.5), "passed"),
        ({"value": "null"}, "", "failed"),
        ({"value": "number", "path": "$.n"}, Reply(data=DATA), "passed"),
        ({"value": "number", "path": "n"}, '{"n": 3}', "passed"),
        ({"value": "string", "path": "$.n"}, Reply(data=DATA), "failed"),
        ({"value": "null", "path": "$.none"}, Reply(data=DATA), "passed"),
        ({"value": "null", "path": "$.nowhere"}, Reply(data=DATA), "failed"),
        ({"value": "array", "path": "$.items[*].p"}, Reply(data=DATA), "passed"),
        ({"value": "string", "path": "$.n"}, "no JSON", "failed"),
    ],
)
def test_type(bench, fields, reply, status):  # N25
    assert bench.evaluate({"type": "type", **fields}, make_check_context(reply)).status == status


def test_a_final_type_with_a_path_searches_tool_results(bench):  # N12
    definition = {"type": "type", "path": "$.id", "value": "string"}
    assert bench.evaluate(definition, make_check_context(tools({"id": "EXP-1"}), "Thanks!", over="case")).passed


SCHEMA = {"type": "object", "properties": {"amount": {"type": "number", "minimum": 1}}, "required": ["amount"]}


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (Reply(data={"amount": 5}), "passed"),
        ('The expense: {"amount": 5}', "passed"),
        (Reply(data={"amount": "5"}), "failed"),
        (Reply(data={}), "failed"),
        ("words", "failed"),
    ],
)
def test_json_schema(bench, reply, status):  # N25
    assert bench.evaluate({"type": "json_schema", "schema": SCHEMA}, make_check_context(reply)).status == status


def test_a_final_json_schema_uses_a_tool_result_only_if_the_reply_has_no_json(bench):  # N12
    definition = {"type": "json_schema", "schema": SCHEMA}
    assert bench.evaluate(
        definition, make_check_context(tools({"amount": 5}, {"log": 1}), "Thanks!", over="case")
    ).passed
    assert (
        bench.evaluate(definition, make_check_context(tools({"amount": 5}), Reply(data={}), over="case")).status
        == "failed"
    )
    assert bench.evaluate(definition, make_check_context(tools({"log": 1}), "Thanks!", over="case")).status == "failed"


def test_json_schema_names_paths_and_does_not_quote_the_reply(bench):
    verdict = bench.evaluate(
        {"type": "json_schema", "schema": SCHEMA}, make_check_context(Reply(data={"amount": "s3cret"}))
    )
    assert verdict.reason == '$.amount: it is not of type "number"'
    assert verdict.actual == {"amount": "s3cret"}


def test_json_schema_shows_three_errors_and_counts_the_rest(bench):
    schema = {"items": {"type": "integer"}}
    verdict = bench.evaluate({"type": "json_schema", "schema": schema}, make_check_context(Reply(data=["a"] * 5)))
    assert verdict.reason.startswith("$[0]: ")
    assert verdict.reason.endswith("; and 2 more")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nope"}, "$.type:"),
        ({"pattern": "(("}, "$.pattern:"),
        ({"$ref": "#/$defs/x"}, "/$defs/x"),
        ({"$ref": "https://schemas.invalid/x.json"}, "put it under $defs"),
        ({"$ref": "file:///etc/hostname"}, "put it under $defs"),
        ({"enum": {1}}, "Unsupported type: 'set'"),
        ("object", "Expected `bool | object`, got `str`"),
    ],
)
def test_a_bad_schema_is_refused_at_load_and_nothing_is_fetched(bench, schema, message):  # N24
    with pytest.raises(ValueError) as problem:
        bench.assertion({"type": "json_schema", "schema": schema})
    assert message in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"type_": "json_path", "path": "$.expense.status", "value": "submitted"}, '$.expense.status = "submitted"'),
        ({"type_": "json_path", "path": "a", "value": None}, "$.a = null"),
        ({"type_": "json_path", "path": "a"}, "$.a exists"),
        ({"type_": "json_path", "path": "[0]", "exists": False}, "$[0] does not exist"),
        ({"type_": "json_path", "path": "a", "gt": 1, "lte": 2.5}, "$.a > 1 and <= 2.5"),
        ({"type_": "json_path", "path": "a", "matches": r"\d"}, r'$.a matches "\d"'),
        ({"type_": "equals", "value": "OK"}, 'equals "OK"'),
        ({"type_": "equals", "value": {"a": 1}}, 'equals {"a":1}'),
        ({"type_": "type", "value": "number", "path": "count"}, "type $.count is number"),
        ({"type_": "type", "value": "string"}, "type is string"),
        ({"type_": "json_schema", "schema": {"title": "Expense"}}, 'json_schema "Expense"'),
        ({"type_": "json_schema", "schema": True}, "json_schema true"),
    ],
)
def test_labels(bench, fields, label):
    assert bench.label(**fields) == label

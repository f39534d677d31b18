"""tool_called, tool_calls_contain, tool_not_called, tool_sequence, tool_result."""

import pytest

from viva.awaiting.detector import detect_awaiting
from viva.checks.tools import is_name_of_tool
from viva.model.message import Reply, ToolCall
from viva.testing.check_context import make_check_context


@pytest.mark.parametrize(
    ("called", "name", "meant"),
    [
        ("create", "create", True),
        ("expense.create", "create", True),
        ("mcp__expense__create", "create", True),
        ("mcp__expense__create", "expense__create", True),
        ("srv:create", "create", True),
        ("srv/create", "create", True),
        ("recreate", "create", False),
        ("re_create", "create", False),
        ("re-create", "create", False),
        ("create_expense", "create", False),
        ("create.expense", "create", False),
        ("Create", "create", False),
        ("__create", "create", False),
        (".create", "create", False),
        ("create", "expense.create", False),
    ],
)
def test_a_tool_name_matches_exactly_or_after_a_namespace(called, name, meant):  # N25
    assert is_name_of_tool(called, name) is meant


def calls(*made: ToolCall | str) -> Reply:
    return Reply("ok", tool_calls=tuple(ToolCall(call) if isinstance(call, str) else call for call in made))


EXPENSE = ToolCall(
    "create_expense", {"amount": 3500, "type": "travel", "to": {"city": "Beijing"}, "tags": [{"k": 1, "v": 2}]}
)
AS_TEXT = ToolCall("create_expense", '{"amount": 3500}')
FAILED = ToolCall("create_expense", {"amount": 1}, error="denied")


@pytest.mark.parametrize(
    ("fields", "reply", "status"),
    [
        ({"name": "create_expense"}, calls(EXPENSE), "passed"),
        ({"name": "create_expense"}, calls("mcp__x__create_expense"), "passed"),
        ({"name": "create"}, calls(EXPENSE), "failed"),
        ({"name": "create_expense"}, calls(), "failed"),
        ({"name": ["a", "b"]}, calls("b"), "passed"),
        ({"name": ["a", "b"]}, calls("c"), "failed"),
        ({"name": "create_expense", "arguments": {"amount": 3500}}, calls(EXPENSE), "passed"),
        ({"name": "create_expense", "arguments": {"amount": 3500.0}}, calls(EXPENSE), "passed"),
        ({"name": "create_expense", "arguments": {"amount": "3500"}}, calls(EXPENSE), "failed"),
        ({"name": "create_expense", "arguments": {"to": {"city": "Beijing"}}}, calls(EXPENSE), "passed"),
        ({"name": "create_expense", "arguments": {"to": {"zip": 1}}}, calls(EXPENSE), "failed"),
        ({"name": "create_expense", "arguments": {"tags": [{"k": 1}]}}, calls(EXPENSE), "passed"),
        ({"name": "create_expense", "arguments": {"tags": [{"k": 2}]}}, calls(EXPENSE), "failed"),
        ({"name": "create_expense", "arguments": {"tags": []}}, calls(EXPENSE), "failed"),
        ({"name": "create_expense", "arguments": {"type": {"matches": "^tra"}}}, calls(EXPENSE), "passed"),
        ({"name": "create_expense", "arguments": {"type": {"matches": "^vel"}}}, calls(EXPENSE), "failed"),
        ({"name": "create_expense", "arguments": {"amount": {"matches": "^35"}}}, calls(EXPENSE), "passed"),
        ({"name": "create_expense", "arguments": {"note": {"matches": ".*"}}}, calls(EXPENSE), "failed"),
        ({"name": "t", "arguments": {"x": {"matches": "null"}}}, calls(ToolCall("t", {"x": None})), "failed"),
        ({"name": "create_expense", "arguments": {"amount": 3500}}, calls(AS_TEXT), "passed"),
        ({"name": "t", "arguments": {"a": 1}}, calls(ToolCall("t", "not json")), "failed"),
        ({"name": "t", "arguments": {}}, calls(ToolCall("t")), "passed"),
        ({"name": "t", "arguments": {"a": 1}}, calls(ToolCall("t")), "failed"),
        (
            {"name": "t", "arguments": {"a": 1, "b": 2}},
            calls(ToolCall("t", {"a": 1}), ToolCall("t", {"b": 2})),
            "failed",
        ),
        ({"name": "t", "times": 2}, calls("t", "t"), "passed"),
        ({"name": "t", "times": 2}, calls("t", "t", "t"), "failed"),
        ({"name": "t", "times": 0}, calls("x"), "passed"),
        ({"name": "t", "times": 0}, calls("t"), "failed"),
        ({"name": "t", "times": {"min": 2}}, calls("t", "t", "t"), "passed"),
        ({"name": "t", "times": {"min": 2}}, calls("t"), "failed"),
        ({"name": "t", "times": {"max": 1}}, calls(), "passed"),
        ({"name": "t", "times": {"max": 1}}, calls("t", "t"), "failed"),
        ({"name": "t", "times": {"min": 1, "max": 2}}, calls("t", "t"), "passed"),
        (
            {"name": "t", "times": 1, "arguments": {"a": 1}},
            calls(ToolCall("t", {"a": 1}), ToolCall("t", {"a": 2})),
            "passed",
        ),
        ({"name": "create_expense"}, calls(FAILED), "passed"),
        ({"name": "create_expense", "status": "any"}, calls(FAILED), "passed"),
        ({"name": "create_expense", "status": "ok"}, calls(FAILED), "failed"),
        ({"name": "create_expense", "status": "ok"}, calls(FAILED, EXPENSE), "passed"),
        ({"name": "create_expense", "status": "error"}, calls(FAILED), "passed"),
        ({"name": "create_expense", "status": "error"}, calls(EXPENSE), "failed"),
    ],
)
def test_tool_called(bench, fields, reply, status):  # N25
    assert bench.evaluate({"type": "tool_called", **fields}, make_check_context(reply)).status == status


def test_an_assertion_sees_its_turn_and_a_final_one_the_case(bench):  # N12
    definition = {"type": "tool_called", "name": "t"}
    assert bench.evaluate(definition, make_check_context(calls("t"), calls())).status == "failed"
    assert bench.evaluate(definition, make_check_context(calls("t"), calls(), over="case")).passed


@pytest.mark.parametrize(
    ("fields", "reply", "reason"),
    [
        ({"name": "t"}, calls(), '"t" was not called; no tool was called'),
        ({"name": ["t", "u"]}, calls("a", "b"), '"t" or "u" was not called; called: a, b'),
        (
            {"name": "create_expense", "arguments": {"amount": 5}},
            calls(EXPENSE),
            '"create_expense" was called, but its arguments differ: $.amount: expected 5, was 3500',
        ),
        (
            {"name": "create_expense", "arguments": {"to": {"zip": 5}}},
            calls(EXPENSE),
            '"create_expense" was called, but its arguments differ: $.to.zip is missing',
        ),
        (
            {"name": "t", "status": "ok"},
            calls(ToolCall("t", error="denied")),
            '"t" was called, but it failed: "denied"',
        ),
        ({"name": "t", "times": 2}, calls("t"), '"t" was called 1 time, not 2 times; called: t'),
        ({"name": "t", "times": {"min": 2}}, calls("t"), '"t" was called 1 time, not at least 2 times; called: t'),
    ],
)
def test_tool_called_shows_the_actual_calls(bench, fields, reply, reason):
    assert bench.evaluate({"type": "tool_called", **fields}, make_check_context(reply)).reason == reason


@pytest.mark.parametrize(
    ("fields", "reply", "status"),
    [
        ({"name": "delete"}, calls("create"), "passed"),
        ({"name": "delete"}, calls("db.delete"), "failed"),
        ({"name": ["delete", "drop"]}, calls("drop"), "failed"),
        ({"name": "create_expense", "arguments": {"amount": 9}}, calls(EXPENSE), "passed"),
        ({"name": "create_expense", "arguments": {"amount": 3500}}, calls(EXPENSE), "failed"),
        ({"name": "create_expense", "status": "ok"}, calls(FAILED), "passed"),
    ],
)
def test_tool_not_called(bench, fields, reply, status):  # N25
    assert bench.evaluate({"type": "tool_not_called", **fields}, make_check_context(reply)).status == status


def test_tool_not_called_shows_the_call(bench):
    verdict = bench.evaluate(
        {"type": "tool_not_called", "name": "delete"}, make_check_context(calls(ToolCall("db.delete", {"id": 1})))
    )
    assert verdict.reason == '"db.delete" must not be called, but was, with {"id":1}'


@pytest.mark.parametrize(
    ("fields", "made", "status"),
    [
        ({"names": ["a", "b"]}, ["a", "x", "b"], "passed"),
        ({"names": ["a", "b"]}, ["b", "a"], "failed"),
        ({"names": ["a", "a"]}, ["a"], "failed"),
        ({"names": ["a", "a"]}, ["a", "a"], "passed"),
        ({"names": ["a", "b"]}, ["s__a", "s__b"], "passed"),
        ({"names": ["a"]}, [], "failed"),
        ({"names": ["a", "b"], "exact": True}, ["a", "b"], "passed"),
        ({"names": ["a", "b"], "exact": True}, ["a", "x", "b"], "failed"),
        ({"names": ["a", "b"], "exact": True}, ["a"], "failed"),
    ],
)
def test_tool_sequence(bench, fields, made, status):  # N25
    assert bench.evaluate({"type": "tool_sequence", **fields}, make_check_context(calls(*made))).status == status


def test_a_final_tool_sequence_spans_turns(bench):  # N12
    definition = {"type": "tool_sequence", "names": ["a", "b"]}
    assert bench.evaluate(definition, make_check_context(calls("a"), calls("b"), over="case")).passed


def test_tool_sequence_names_the_first_tool_that_is_out_of_order(bench):
    verdict = bench.evaluate({"type": "tool_sequence", "names": ["a", "b"]}, make_check_context(calls("b", "a")))
    assert verdict.reason == '"b" was not called after "a"; called: b → a'
    assert (verdict.expected, verdict.actual) == (["a", "b"], ["b", "a"])


def test_an_exact_tool_sequence_shows_expected_and_actual(bench):
    definition = {"type": "tool_sequence", "names": ["a", "b"], "exact": True}
    assert bench.evaluate(definition, make_check_context(calls("b"))).reason == "expected exactly a → b, was b"
    assert bench.evaluate(definition, make_check_context(calls())).reason == "expected exactly a → b, was no call"


def returned(*results, error=None):
    return calls(*(ToolCall("get", result=result, error=error) for result in results))


@pytest.mark.parametrize(
    ("fields", "reply", "status"),
    [
        ({}, returned({"a": 1}), "passed"),
        ({}, returned(None), "passed"),
        ({}, calls("get"), "passed"),
        ({"result": 1}, calls("get"), "failed"),
        ({}, calls("other"), "failed"),
        ({}, returned({"a": 1}, error="boom"), "failed"),
        ({"result": {"a": 1}}, returned({"a": 1, "b": 2}), "passed"),
        ({"result": {"a": 1}}, returned('{"a": 1, "b": 2}'), "passed"),
        ({"result": {"a": 2}}, returned({"a": 1}), "failed"),
        ({"result": {"a": 2}}, returned({"a": 1}, {"a": 2}), "passed"),
        ({"result": {"a": 1}}, returned({"a": 1}, error="boom"), "failed"),
        ({"result": {"id": "regex:^EXP-\\d+$"}}, returned({"id": "EXP-12"}), "passed"),
        ({"result": {"id": "regex:^EXP-\\d+$"}}, returned({"id": "X-12"}), "failed"),
        ({"result": {"n": "regex:^1"}}, returned({"n": 12}), "passed"),
        ({"result": "regex:created"}, returned("was created"), "passed"),
        ({"result": "created"}, returned("was created"), "failed"),
        ({"result": 5}, returned("5"), "failed"),
        ({"result": [1, {"a": 1}]}, returned([1, {"a": 1, "b": 2}]), "passed"),
        ({"result": [1]}, returned([1, 2]), "failed"),
        ({"result": None}, returned(None), "passed"),
        ({"result": None}, returned(0), "failed"),
        ({"result": {"a": 1}}, returned("plain"), "failed"),
    ],
)
def test_tool_result(bench, fields, reply, status):  # N25
    assert bench.evaluate({"type": "tool_result", "name": "get", **fields}, make_check_context(reply)).status == status


@pytest.mark.parametrize(
    ("fields", "reply", "reason"),
    [
        ({}, calls("other"), '"get" was not called; called: other'),
        ({}, returned(1, error="boom"), '"get" was called, but it failed: "boom"'),
        ({"result": 1}, calls("get"), '"get" was called, but its result is not known'),
        ({"result": {"a": 2}}, returned({"a": 1}), '"get" was called, but $.a: expected 2, was 1'),
    ],
)
def test_tool_result_shows_the_actual_result(bench, fields, reply, reason):
    assert bench.evaluate({"type": "tool_result", "name": "get", **fields}, make_check_context(reply)).reason == reason


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"type_": "tool_called", "name": "create_expense"}, 'tool_called "create_expense"'),
        ({"type_": "tool_called", "name": ["a", "b"], "times": 2}, 'tool_called "a" or "b" 2 times'),
        (
            {"type_": "tool_called", "name": "a", "arguments": {"n": 1}, "status": "ok"},
            'tool_called "a" with {"n":1} (ok)',
        ),
        ({"type_": "tool_called", "name": "a", "times": {"min": 1, "max": 3}}, 'tool_called "a" 1 to 3 times'),
        ({"type_": "tool_not_called", "name": "a"}, 'tool_not_called "a"'),
        ({"type_": "tool_sequence", "names": ["a", "b"], "exact": True}, "tool_sequence a → b (exact)"),
        ({"type_": "tool_sequence", "names": ["a", "b"]}, "tool_sequence a → b"),
        ({"type_": "tool_result", "name": "a"}, 'tool_result "a"'),
        ({"type_": "tool_result", "name": "a", "result": {"n": 1}}, 'tool_result "a" = {"n":1}'),
    ],
)
def test_labels(bench, fields, label):
    assert bench.label(**fields) == label


WRITE = ToolCall("write_file", {"path": "src/a.py", "lines": ['say "hi"', {"n": 42}], "mode": None, "force": True})
WRITE_AS_TEXT = ToolCall("write_file", '{"path": "C:\\\\x", "text": "two\\nlines"}')


@pytest.mark.parametrize(
    ("name", "values", "made", "status"),
    [
        ("write_file", ["src/a.py"], [WRITE], "passed"),
        ("write_file", ["a.py", 'say "hi"', "42", "true"], [WRITE], "passed"),
        ("write_file", ["path"], [WRITE], "failed"),
        ("write_file", ['\\"hi\\"'], [WRITE], "failed"),
        ("write_file", ["two\nlines", "C:\\x"], [WRITE_AS_TEXT], "passed"),
        ("write_file", ["src/a.py", "two\nlines"], [WRITE, WRITE_AS_TEXT], "passed"),
        ("write_file", ["src/a.py", "three"], [WRITE, WRITE_AS_TEXT], "failed"),
        ("write_file", [], [WRITE], "passed"),
        ("write_file", [], [ToolCall("write_file")], "passed"),
        ("write_file", [], [], "failed"),
        ("write_file", [], [ToolCall("write_file", {}, error="exit code 1")], "passed"),
        ("write_file", ["x"], [ToolCall("write_file", {"p": "x"}, error="exit code 1")], "passed"),
        ("write_file", [], [ToolCall("write_file", {}, error="denied", refused=True)], "failed"),
        ("write_file", ["x"], [ToolCall("write_file", {"p": "x"}, error="no", refused=True)], "failed"),
        (
            "write_file",
            ["x", "y"],
            [ToolCall("write_file", {"p": "x"}, error="no", refused=True), ToolCall("write_file", "y")],
            "failed",
        ),
        ("write_file", ["a.py"], [ToolCall("fs__write_file", {"path": "a.py"})], "passed"),
        ("file", ["a.py"], [WRITE], "failed"),
        (["edit", "write_file"], ["a.py"], [WRITE], "passed"),
        # a real playbook lists commands that are run one after the other
        (
            "run_shell_command",
            ["make", "git add", "git commit"],
            [ToolCall("Bash", {"command": f"{command} ."}) for command in ("git add", "make", "git commit")],
            "passed",
        ),
        (
            "run_shell_command",
            ["ls"],
            [ToolCall("command_execution", {"command": "ls"}, error="exit code 2")],
            "passed",
        ),
        ("write_file", ["a"], [ToolCall("Write", {"file_path": "a"})], "passed"),
        ("Write", ["a"], [ToolCall("write_file", {"file_path": "a"})], "passed"),
        ("write_file", ["a"], [ToolCall("file_change", {"changes": [{"path": "a"}]})], "passed"),
        ("write_file", ["a"], [ToolCall("Edit", {"file_path": "a"})], "failed"),
        ("replace", ["a"], [ToolCall("edit", {"filePath": "a"})], "passed"),
        ("read_file", ["a"], [ToolCall("Read", {"file_path": "a"})], "passed"),
        ("read_file", ["a"], [ToolCall("mail.read", {"id": "a"})], "failed"),
    ],
)
def test_tool_calls_contain(bench, name, values, made, status):  # P9
    definition = {"type": "tool_calls_contain", "name": name, "values": values}
    assert bench.evaluate(definition, make_check_context(calls(*made))).status == status


def test_tool_calls_contain_names_the_missing_texts(bench):
    definition = {"type": "tool_calls_contain", "name": "write_file", "values": ["b.py"]}
    assert bench.evaluate(definition, make_check_context(calls("x"))).reason == '"write_file" was not called; called: x'
    refused = ToolCall("write_file", {"path": "b.py"}, error="denied", refused=True)
    assert (
        bench.evaluate(definition, make_check_context(calls(refused))).reason
        == '"write_file" was called, but refused: "denied"'
    )
    assert 'no argument contains "b.py"' in bench.evaluate(definition, make_check_context(calls(WRITE))).reason
    with pytest.raises(ValueError, match="empty text"):
        bench.assertion({**definition, "values": [""]})


@pytest.mark.parametrize(
    ("call", "content", "status"),
    [
        (ToolCall("pay", {}, result="done"), "Paid. Which date?", "ok"),
        (ToolCall("pay", {}), "Paid.", "ok"),  # many agents report no results
        (ToolCall("pay", {}), "Shall I pay?", "pending"),
        (ToolCall("pay", {}, pending=True), "I wait.", "pending"),
        (ToolCall("pay", {}, error="refused"), "Shall I try again?", "error"),
    ],
)
def test_a_waiting_call_is_pending(bench, call, content, status):  # N25
    for wanted in ("ok", "error", "pending", "any"):
        definition = {"type": "tool_called", "name": "pay", "status": wanted}
        context = make_check_context(Reply(content, tool_calls=(call,)))
        context.turn.awaiting = detect_awaiting(context.reply)
        assert bench.evaluate(definition, context).passed is (wanted in ("any", status)), wanted
    context = make_check_context(Reply(content, tool_calls=(call,)))
    context.turn.awaiting = detect_awaiting(context.reply)
    assert bench.evaluate({"type": "tool_result", "name": "pay"}, context).passed is (status == "ok")

"""script."""

import asyncio
import operator
import sys
import threading

import pytest

from viva.checks.script import TurnView, UserFunction
from viva.model.message import Reply, ToolCall
from viva.testing.check_context import make_check_context


def write(folder, name, source):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    return file


def verdict_of(bench, body, context=None, **fields):
    """The verdict of a script `def validate(output): <body>`, each in a module of its own name."""
    write(bench.folder, "own.py", f"def validate(output):\n    {body}\n")
    definition = {"type": "script", "use": "scripts:own.validate", **fields}
    return asyncio.run(bench.evaluate_async(definition, context or make_check_context("hello")))


@pytest.mark.parametrize(
    ("body", "status", "reason", "score"),
    [
        ("return True", "passed", "", None),
        ("return output == 'hello'", "passed", "", None),
        ("return False", "failed", "validate returned false", None),
        ("return {'passed': True, 'reason': 'fine', 'score': 0.9}", "passed", "fine", 0.9),
        ("return {'pass': False, 'message': 'too short', 'score': 0}", "failed", "too short", 0),
        ("return {'passed': False}", "failed", 'validate returned {"passed":false}', None),
        ("raise AssertionError('amount is missing')", "failed", "amount is missing", None),
        ("assert 'bye' in output", "failed", "assert 'bye' in output (own.py:2)", None),
        ("raise KeyError('amount')", "error", "scripts:own.validate raised KeyError: 'amount' (own.py:2)", None),
        ("return None", "error", None, None),
        ("return 1", "error", None, None),
        ("return 'yes'", "error", None, None),
        ("return {'score': 1}", "error", None, None),
        ("return {'passed': 'yes'}", "error", None, None),
        ("return {'passed': True, 'pass': False}", "error", None, None),
        ("return {'passed': True, 'score': 'high'}", "error", None, None),
        ("return {'passed': True, 'score': -1e9}", "passed", "", -1e9),
        ("return {'passed': True, 'score': 1e9}", "passed", "", 1e9),
        ("return {'passed': True, 'score': -1e9 - 1}", "error", None, None),
        ("return {'passed': True, 'score': 1e9 + 1}", "error", None, None),
        ("raise StopIteration", "error", None, None),
    ],
)
def test_what_a_script_returns_or_raises(bench, body, status, reason, score):  # N26
    verdict = verdict_of(bench, body)
    assert verdict.status == status
    if reason is not None:
        assert verdict.reason == reason
    assert verdict.score == score


def test_a_broken_script_is_an_error_also_with_negate(bench):  # N24
    assert verdict_of(bench, "return 1 / 0", negate=True).status == "error"


@pytest.mark.parametrize(
    ("body", "deterministic"),
    [
        ("return outptu", True),
        ("return output.containz('x')", True),
        ("return output + 1", True),
        ("raise OSError('busy')", False),
    ],
)
def test_a_mistake_in_a_script_would_happen_again(bench, body, deterministic):  # so it is not retried
    assert verdict_of(bench, body).deterministic is deterministic


def test_a_negated_script_passes_when_it_fails(bench):
    assert verdict_of(bench, "return False", negate=True).passed


def seen(bench, source, context, use="scripts:spy", **fields):
    """The arguments of a script, as its reason reports them."""
    write(bench.folder, "spy.py", source)
    return asyncio.run(bench.evaluate_async({"type": "script", "use": use, **fields}, context)).reason


def test_arguments_are_passed_by_parameter_name(bench):  # N26
    source = "def validate(metadata, output, *, input): return {'passed': True, 'reason': f'{output}|{input}|{sorted(metadata.items())}'}"
    context = make_check_context("first", "second", inputs=["one", "two"], metadata={"a": 1, "b": 2})
    assert seen(bench, source, context, metadata={"b": 3}) == "second|two|[('a', 1), ('b', 3)]"


def test_keyword_arguments_get_all_values(bench):  # N26
    source = "def check(output, *more, extra=5, **rest): return {'passed': True, 'reason': f'{sorted(rest)} {extra}'}"
    assert seen(bench, source, make_check_context("x")) == "['input', 'metadata', 'transcript', 'turn'] 5"


def test_keyword_only_parameters_are_passed(bench):  # N26
    source = "def check(*, output): return {'passed': True, 'reason': output}\ndef starred(*more, output): return check(output=output)"
    assert seen(bench, source, make_check_context("x"), use="spy:starred") == "x"


def test_the_transcript_is_plain_data(bench):  # N26
    source = "def check(transcript): return {'passed': True, 'reason': repr(transcript)}"
    first = Reply("a", tool_calls=(ToolCall("t", {"n": 1}, result={"ok": True}), ToolCall("u", error="no")))
    assert seen(bench, source, make_check_context(first, Reply(data={"d": 1}), inputs=["hi", "go"])) == repr(
        [
            {
                "turn": 1,
                "input": "hi",
                "output": "a",
                "tool_calls": [
                    {"name": "t", "arguments": {"n": 1}, "result": {"ok": True}, "error": None},
                    {"name": "u", "arguments": None, "result": None, "error": "no"},
                ],
            },
            {"turn": 2, "input": "go", "output": '{"d":1}', "tool_calls": []},
        ]
    )


def test_a_turn_made_by_hand_needs_only_its_texts():
    """To test a function that checks a turn."""
    view = TurnView(1, "hi", "hello")
    assert (view.data, view.tool_calls, view.awaiting, view.latency_ms, view.files) == (None, (), False, 0, ())


def test_a_function_that_does_not_tell_its_parameters_gets_the_turn():
    """Many built-ins do not."""
    for awaiting in (True, False):
        turn = TurnView(1, "hi", "hello", awaiting=awaiting)
        waits = UserFunction(operator.attrgetter("awaiting"), "waits", is_from_python=True)
        assert waits.call_directly({"turn": lambda turn=turn: turn}) is awaiting


def test_a_script_cannot_change_the_record(bench):
    reply = Reply("a", tool_calls=(ToolCall("t", {"n": 1}),))
    context = make_check_context(reply, metadata={"a": [1]})
    source = "def check(transcript, metadata):\n transcript[0]['tool_calls'][0]['arguments']['n'] = 2\n metadata['a'].append(2)\n return True"
    seen(bench, source, context)
    assert reply.tool_calls[0].arguments == {"n": 1}
    assert context.state.case.metadata == {"a": [1]}


def test_a_sync_script_runs_in_a_thread_and_an_async_one_on_the_loop(bench):
    sync = "import threading\ndef check(): return {'passed': True, 'reason': threading.current_thread().name}"
    assert seen(bench, sync, make_check_context("x")) != threading.current_thread().name
    write(bench.folder, "later.py", sync.replace("def check", "async def check"))
    verdict = asyncio.run(bench.evaluate_async({"type": "script", "use": "scripts:later"}, make_check_context("x")))
    assert verdict.reason == threading.current_thread().name


@pytest.mark.parametrize(
    ("file", "use"),
    [
        ("tests/validate_expense.py", "scripts:tests.validate-expense"),
        ("tests/validate_expense.py", "scripts:tests.validate-expense.validate"),
        ("tests/validate_expense.py", "tests.validate_expense"),
        ("tests/validate_expense.py", "tests.validate_expense:validate"),
        ("tests/validate_expense.py", "scripts:tests.validate_expense:validate"),
        ("tests/validate_expense/__init__.py", "scripts:tests.validate-expense"),
        ("flat.py", "scripts:flat"),
        ("flat.py", "flat:validate"),
    ],
)
def test_references(bench, file, use):  # N8
    write(bench.folder, file, "def validate(output): return True")
    assert asyncio.run(bench.evaluate_async({"type": "script", "use": use}, make_check_context("x"))).passed


def test_the_function_of_a_module_is_validate_or_check(bench):  # N8
    write(bench.folder, "both.py", "def check(): return False\ndef validate(): return True")
    assert asyncio.run(bench.evaluate_async({"type": "script", "use": "scripts:both"}, make_check_context("x"))).passed


def test_the_first_root_that_has_a_module_wins(bench):  # N8
    write(bench.folder, "one/order.py", "def check(): return True")
    write(bench.folder, "two/order.py", "def check(): return False")
    bench.roots = (str(bench.folder / "one"), str(bench.folder / "two"))
    assert asyncio.run(bench.evaluate_async({"type": "script", "use": "scripts:order"}, make_check_context("x"))).passed


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("scripts:nowhere", "there is no nowhere.py in "),
        ("scripts:nowhere.at_all", "there is no nowhere.py with a function at_all in "),
        ("scripts:mod.valdate", "has no function 'valdate'; did you mean validate?"),
        ("scripts:mod.number", "has no function 'number'"),
        ("mod:_missing", "has no function '_missing'"),
        ("scripts:folder.thing", "there is no folder.py with a function thing in "),
        ("scripts:plain", "neither `validate` nor `check`; it has helper"),
        ("scripts:broken", "'scripts:broken' does not import: ZeroDivisionError: division by zero"),
        ("scripts:broken.check", "does not import: ZeroDivisionError"),
        ("scripts:needy", "does not import: ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("scripts:leaving", "does not import: SystemExit: 3"),
        ("agents:workers.validator", "is an agent, but a script is needed"),
        ("scripts:a b", "does not name a script: write scripts:module.function"),
        ("scripts:", "does not name a script"),
        ("mod:", "does not name a script"),
        ("scripts:../mod", "does not name a script"),
        ("mod:wants", "parameter 'answer' cannot be filled by name; there are output, input, metadata, transcript"),
        ("mod:places", "parameter 'output' cannot be filled by name"),
    ],
)
def test_a_missing_script_is_refused_at_load(bench, use, message):  # N8, N24
    write(
        bench.folder, "mod.py", "number = 5\ndef validate(): pass\ndef wants(answer): pass\ndef places(output, /): pass"
    )
    write(bench.folder, "plain.py", "def helper(): pass")
    write(bench.folder, "broken.py", "1 / 0")
    write(bench.folder, "needy.py", "import not_installed_anywhere")
    write(bench.folder, "leaving.py", "raise SystemExit(3)")
    (bench.folder / "folder").mkdir()
    with pytest.raises(ValueError) as problem:
        bench.assertion({"type": "script", "use": use})
    assert message in str(problem.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "missing required field `use`"),
        ({"use": 5}, "Expected `str`, got `int`"),
        ({"use": "scripts:ok", "metadata": 5}, "Expected `object`, got `int`"),
        ({"use": "scripts:ok", "function": "x"}, "Expected `UserFunction`, got `str`"),
        ({"use": "scripts:ok", "args": []}, "unknown field `args`"),
    ],
)
def test_misuse_is_refused_at_load(bench, fields, message):  # N24
    write(bench.folder, "ok.py", "def check(): return True")
    with pytest.raises(ValueError) as problem:
        bench.assertion({"type": "script", **fields})
    assert message in str(problem.value)


def test_label(bench):
    write(bench.folder, "ok.py", "def check(): return True")
    assert bench.label("script", use="scripts:ok") == 'script "scripts:ok"'
    assert not bench.assertion({"type": "script", "use": "scripts:ok"}).check.costly


def test_a_cancelled_script_does_not_block_the_loop(bench):
    source = "import time\ndef check():\n while True: time.sleep(0.01)"
    write(bench.folder, "hung.py", source)

    async def give_up():
        async with asyncio.timeout(0.05):
            await bench.evaluate_async({"type": "script", "use": "scripts:hung"}, make_check_context("x"))

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert "hung" in sys.modules

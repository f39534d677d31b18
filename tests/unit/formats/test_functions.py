"""Functions where a suite has names: assertions, simulators, judges, tools and hooks; their source stands in the report."""

import asyncio
from typing import Any

import pytest

import viva
from running import run_cases
from viva.text.function_source import describe_function
from viva.types import TurnView


def echo(message: str) -> str:
    return f"You said: {message}"


def run(case: Any, agent: Any = echo, **options: Any) -> viva.RunResult:
    return run_cases(case, agent, **{"history": False, **options})


def is_polite(turn: TurnView) -> bool:
    return "please" in turn.text


def mentions(turn: TurnView) -> None:
    assert "Friday" in turn.text, "Friday is missing"


def test_a_function_is_an_assertion_and_its_source_is_its_name():
    result = run({"input": "hi", "assertions": [lambda turn: "hi" in turn.text, lambda turn: "Friday" in turn.text]})
    (record,) = result
    labels = [(each["label"], each["passed"]) for each in record.turns[0].assertions]
    assert labels == [
        ('lambda turn: "hi" in turn.text', True),
        ('lambda turn: "Friday" in turn.text', False),
    ]
    assert '✗ case-1: failed (agent)\n    turn 1: lambda turn: "Friday" in turn.text: was "You said: hi"' in str(result)


def test_a_named_function_is_shown_with_its_place_and_its_source():
    (record,) = run({"input": "hi", "assertions": [is_polite]})
    (check,) = record.turns[0].assertions
    assert check["label"].startswith("is_polite (test_functions.py:")
    assert check["reason"] == 'def is_polite(turn: TurnView) -> bool:\n    return "please" in turn.text'


def test_functions_may_assert_ask_by_name_or_return_a_verdict():
    def by_name(output: str, input: str, transcript: Any) -> bool:  # noqa: A002
        return (output, input, len(transcript)) == ("You said: hi", "hi", 1)

    def verdict(turn: TurnView) -> viva.Verdict:
        return viva.Verdict("failed", f"turn {turn.number} of {len(turn.messages)} messages")

    checks = [by_name, mentions, verdict, viva.check.script(lambda output: output == "You said: hi")]
    (record,) = run({"input": "hi", "assertions": checks, "final_assertions": [lambda last: last.input == "hi"]})
    reasons = [
        (each["passed"], str(each.get("reason") or "").partition("\n")[0]) for each in record.turns[0].assertions
    ]
    assert reasons == [(True, ""), (False, "Friday is missing"), (False, "turn 1 of 2 messages"), (True, "")]


def test_what_a_function_returns_by_mistake_is_an_error_not_a_pass():
    """A forgotten `return` must not be green; a function with an assert may return nothing."""

    def forgets(turn: TurnView) -> None:
        _ = "You" in turn.text

    def asserts(turn: TurnView) -> None:
        assert "You" in turn.text

    (record,) = run({"input": "hi", "assertions": [forgets, asserts, lambda turn: turn.tool_calls[0]]})
    assert [each["passed"] for each in record.turns[0].assertions] == [None, True, None]
    assert "returned null; it must return True or False" in record.turns[0].assertions[0]["reason"]
    assert "raised IndexError" in record.turns[0].assertions[2]["reason"]


def test_functions_stand_in_combinations_checkpoints_and_hooks():
    seen: list[Any] = []

    def simulator(messages: list[Any], options: Any) -> str:
        return "I am Ada" if messages else "Hello"

    def before(ctx: Any, case: Any) -> dict[str, str]:
        seen.append(case.id)
        return {"name": "Ada"}

    def after(ctx: Any, case: Any, result: Any, data: Any) -> None:
        seen.append((result.status, data))

    either = viva.check.any_of(lambda turn: "Bob" in turn.text, viva.check.contains("Ada"))
    case = {
        "id": "dynamic",
        "simulator": simulator,
        "checkpoints": [{"id": "name", "assertion": either}],
        "before": before,
        "after": after,
    }
    result = run(case)
    assert result, result
    assert result[0].simulator == describe_function(simulator)
    assert seen == ["dynamic", ("passed", {"name": "Ada"})]
    without = {key: value for key, value in case.items() if key != "simulator"}
    assert run(without, simulator=simulator)


def test_a_function_judges():
    def judge(messages: list[Any], options: Any) -> bool:
        return options["metadata"]["criteria"] in options["metadata"]["output"]

    checks = [viva.check.judge("said", use=judge), viva.check.judge("sang", use=judge)]
    (record,) = run({"input": "hi", "assertions": checks})
    assert [each["passed"] for each in record.turns[0].assertions] == [True, False]


def test_a_function_answers_a_tool():
    def agent(message: str, tools: Any) -> str:
        return f"{tools.call('add', a=2, b=3)} {len(tools)}"

    def broken(message: str, tools: Any) -> str:
        try:
            tools.call("add", x=1)
        except LookupError as error:
            return str(error)
        return "no error"

    stubs = {"tools": [{"tool": "add", "response": lambda a, b: a + b}]}
    case = {"input": "go", "fixtures": stubs, "assertions": [viva.check.equals("5 1"), viva.check.tool_called("add")]}
    assert run(case, agent)
    assert "TypeError" in run(case, broken)[0].turns[0].output


def test_a_function_in_the_wrong_place_is_refused():
    with pytest.raises(viva.BadInput, match=r"inputs\[0\] is not a valid case: echo .* cannot stand at 'input'"):
        run({"input": echo})
    with pytest.raises(viva.BadInput, match="is called with"):
        run({"input": "hi", "before": lambda: None})


def test_expect_takes_functions_at_once_and_refuses_nothing():
    async def scenario() -> None:
        async with viva.Conversation(echo) as chat:
            await chat.say("hi")
            chat.expect(lambda turn: "hi" in turn.text, viva.check.all_of(is_hi, viva.check.contains("hi")))
            with pytest.raises(viva.BadInput, match="checks nothing"):
                chat.expect()
            with pytest.raises(AssertionError, match=r'✗ lambda turn: "Friday" in turn\.text') as raised:
                chat.expect(lambda turn: "Friday" in turn.text)
            assert len(raised.traceback) == 2  # of Viva only `expect` itself
            with pytest.raises(viva.errors.CheckError, match="KeyError"):
                chat.expect(lambda turn: {}["x"])
            assert (
                await chat.judge("any", use=lambda messages, options: {"passed": True, "reason": "ok"})
            ).reason == "ok"
            with pytest.raises(TypeError, match="needs an await"):
                chat.expect(later)
            assert (await chat.judge(later)).passed

    def is_hi(turn: TurnView) -> bool:
        return turn.input == "hi"

    async def later(turn: TurnView) -> bool:
        await asyncio.sleep(0)
        return True

    asyncio.run(scenario())


def test_two_lambdas_on_one_line_are_told_apart():
    one, two = lambda turn: turn.number == 1, lambda turn: turn.number == 2
    assert [describe_function(each) for each in (one, two)] == [
        "lambda turn: turn.number == 1",
        "lambda turn: turn.number == 2",
    ]

"""Agents of smolagents that write code, and those that manage others."""

from collections.abc import Iterator
from typing import Any

import pytest
from apps import smolagents as app
from smolagents import CodeAgent, ToolCallingAgent

import viva
from viva.model.message import ToolCall
from viva.model.record import TurnRecord
from viva.testing import Fail, ModelRequest, OpenAIServer, Say


def answer(request: ModelRequest) -> Say | Fail | str:
    """A model that writes code, or lets a helper add."""
    task, called, _ = app.read_request(request)
    if "You're a helpful agent named 'helper'" in task and "Task:\nfail" not in task:
        return app.say("3") if called else Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})])
    if task == "ask in code":
        return "Thought: go\n<code>\nhelper('fail')\n</code>"
    if "Task:\nfail" in task:
        return Fail(500)
    if task == "ask the helper":
        return app.say("done") if called else Say(tool_calls=[ToolCall("helper", {"task": "add 1 and 2"})])
    if task.startswith("no such tool"):  # the error follows it
        return app.say("done") if "Error" in task else Say(tool_calls=[ToolCall("fly", {})])
    codes = {
        "sum": "x = add(1, b=2)\nfinal_answer(x['sum'])",
        "set": "x = add(1, b=2)\nfinal_answer(x)",
        "get": "final_answer({'x': x})",
    }
    return f"Thought: go\n<code>\n{codes[task]}\n</code>"


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with OpenAIServer(answer) as running:
        app.connect(running)
        yield running


def run(agent: Any, *turns: str, **fields: Any) -> list[TurnRecord]:
    holds = {"type": "regex", "pattern": "(?s).*"}
    case = {"id": "c", "turns": [{"input": turn, "assertions": [holds]} for turn in turns], **fields}
    (record,) = viva.run([case], agent, options=viva.RunOptions(retry_faults=0)).records()
    assert record.status == "passed", record.error
    return record.turns


def test_tools_that_code_calls_are_tool_calls_and_its_variables_stay(server: Any):
    agent = CodeAgent([app.add], app.get_model(), verbosity_level=0)
    for _ in range(2):  # a new conversation has new variables
        first, second = run(agent, "set", "get")
        assert [(call.name, call.args, call.result) for call in first.tool_calls] == [("add", {"a": 1, "b": 2}, 3)]
        assert (first.data, second.data, second.tool_calls) == (3, {"x": 3}, [])


def test_code_gets_the_canned_value_of_a_stub(server: Any):
    agent = CodeAgent([app.add], app.get_model(), verbosity_level=0)
    (turn,) = run(agent, "sum", fixtures={"tools": [{"tool": "add", "response": {"sum": 40}}]})
    assert (turn.data, turn.tool_calls[0].result) == (40, {"sum": 40})


def test_a_managed_agent_is_in_the_path_and_its_tools_are_seen(server: Any):
    helper = ToolCallingAgent([app.add], app.get_model(), name="helper", description="adds", verbosity_level=0)
    manager = ToolCallingAgent([], app.get_model(), name="boss", managed_agents=[helper], verbosity_level=0)
    (turn,) = run(manager, "ask the helper")
    assert turn.path == ("boss", "helper")
    assert [call.name for call in turn.tool_calls] == ["helper", "add"]
    assert turn.usage is not None
    assert turn.usage.calls == 4


def test_a_managed_agent_that_fails_is_a_call_with_an_error(server: Any):
    helper = ToolCallingAgent([app.add], app.get_model(), name="helper", description="adds", verbosity_level=0)
    manager = CodeAgent([], app.get_model(), managed_agents=[helper], verbosity_level=0, max_steps=1)
    (call,) = run(manager, "ask in code")[0].tool_calls
    assert (call.name, "500" in (call.error or "")) == ("helper", True)


def test_a_call_of_no_tool_fails(server: Any):
    (turn,) = run(ToolCallingAgent([], app.get_model(), verbosity_level=0), "no such tool")
    assert [(call.name, "Unknown tool" in (call.error or "")) for call in turn.tool_calls] == [("fly", True)]

"""Handoffs and context of the OpenAI Agents SDK, beyond the contract of all frameworks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunHooks, Runner, function_tool
from apps import handoffs
from apps import openai_agents as app
from apps.tools import book
from framework_contract import case, run, run_all

from viva.model.message import ToolCall
from viva.testing import ModelRequest, OpenAIServer, Say


def answer(request: ModelRequest) -> Say | str:
    """Hands over as far as it goes, then calls the tool that is there."""
    if request.tool_results and not request.tool_results[-1].startswith("transfer"):
        return f"{request.tool_results[-1]} is done"
    names = [tool["name"] for tool in request.json["tools"]]
    return Say(tool_calls=[ToolCall(names[0], {"a": 7} if names[0] == "book" else {})])


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(answer) as running:
        app.connect(running)
        yield running


@pytest.mark.parametrize("stubs", [None, {"tools": [{"tool": "book", "response": "canned"}]}])
def test_a_handoff_is_in_the_path_and_no_tool_call(stubs: Any):
    app.BOOKED.clear()
    path = {"type": "path_contains", "names": ["triage", "travel", "booking"], "exact": True}
    turns = [{"input": "book", "assertions": [path]}, {"input": "again"}]
    (record,) = run_all(handoffs.make_triage(), [case("h", *turns, **({"fixtures": stubs} if stubs else {}))])
    assert record.status == "passed", record.error
    assert [call.name for call in record.turns[0].tool_calls] == ["book"]
    assert record.turns[1].path == ("booking",)  # the agent that took over goes on
    assert ([] if stubs else [7, 7]) == app.BOOKED


def test_the_context_of_a_conversation_comes_from_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "app.py").write_text("from apps.handoffs import make_context, make_personal_agent as make\n")
    (tmp_path / "viva.toml").write_text(
        '[agents.a]\nuse = "openai_agents:./app.py:make"\ncontext = "python:./app.py:make_context"\n'
    )
    monkeypatch.chdir(tmp_path)
    (record,) = run_all("a", [case("c", "who am I?")])
    assert [call.result for call in record.turns[0].tool_calls] == ["user Ada"]


def test_an_agent_that_runs_with_hooks_of_the_user_is_counted():
    seen: list[str] = []

    class Hooks(RunHooks):
        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            seen.append(tool.name)

        async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
            seen.append(to_agent.name)

    clerk = Agent("clerk", model=app.get_model(), tools=[function_tool(book)])
    inner = Agent("inner", model=app.get_model(), handoffs=[clerk])

    @function_tool
    async def research() -> str:
        return (await Runner.run(inner, "book", hooks=Hooks())).final_output

    record = run(Agent("outer", model=app.get_model(), tools=[research]), "go")
    assert record.error is None
    assert record.usage is not None
    assert record.usage.calls == 5
    assert (record.turns[0].path, seen) == (("outer", "inner", "clerk"), ["clerk", "book"])


@pytest.mark.parametrize("tool", ["book", "nothing"])
def test_a_tool_whose_error_ends_the_run_has_it(tool: str):
    def fail(a: int) -> str:
        raise ValueError(f"{a} is taken")

    strict = function_tool(fail, name_override="book", failure_error_function=None)
    with OpenAIServer([Say(tool_calls=[ToolCall(tool, {"a": 7})])]) as running:
        app.connect(running)
        record = run(Agent("clerk", model=app.get_model(), tools=[strict]), "book")
    (call,) = record.turns[0].tool_calls
    assert (record.fault, call.error) == (
        "agent",
        "ValueError: 7 is taken" if tool == "book" else "ModelBehaviorError: Tool nothing not found in agent clerk",
    )

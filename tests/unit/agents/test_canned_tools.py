"""Canned tools, for every kind of agent that takes them: in order, the last repeats, and never the live tool."""

import asyncio
from typing import Any

import pytest

from viva.agents.python import PythonAgent
from viva.agents.tools import CannedTools, Tool, Toolbox, ToolStubs
from viva.errors import AgentFailed
from viva.model.case import Fixtures, Key, ToolStub
from viva.model.message import Message, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.protocols import SessionContext

LOOKUP = (
    ToolStub("acme:orders.lookup", {"n": 1}),
    ToolStub("acme:orders.lookup", {"n": 2}),
    ToolStub("acme:off", error="down"),
)


def test_answers_come_in_order_and_the_last_repeats():
    """Section 4: several toolResponses for one tool."""
    stubs = ToolStubs(LOOKUP)
    assert [stubs.answer_call(ToolCall("acme:orders.lookup")).result for _ in range(3)] == [
        {"n": 1},
        {"n": 2},
        {"n": 2},
    ]


@pytest.mark.parametrize("called", ["acme:orders.lookup", "orders.lookup", "lookup", "shop__acme:orders.lookup"])
def test_a_model_may_call_a_tool_without_its_namespace(called: str):
    assert ToolStubs(LOOKUP).answer_call(ToolCall(called)).result == {"n": 1}


def test_a_name_that_means_two_tools_means_none():
    stubs = ToolStubs((ToolStub("a:find", 1), ToolStub("b:find", 2)))
    assert "the tool 'find' is ambiguous" in str(stubs.answer_call(ToolCall("find")).error)
    assert stubs.answer_call(ToolCall("b:find")).result == 2


def test_a_whole_name_means_that_tool_however_its_separators_are_written():
    """Model APIs allow no `:`, so `a:find` is called as `a__find`."""
    stubs = ToolStubs((ToolStub("a:find", 1), ToolStub("find", 2)))
    assert [stubs.answer_call(ToolCall(name)).result for name in ("a__find", "a:find", "find")] == [1, 1, 2]
    assert "ambiguous" in str(stubs.answer_call(ToolCall("x__a__find")).error)


def test_a_tool_without_an_answer_gets_an_error_and_never_runs():
    """W3."""
    ran: list[str] = []
    tools = [Tool("refund", run=lambda: ran.append("refund"))]
    used = asyncio.run(
        Toolbox(tools, Fixtures(LOOKUP, stub_all_tools=True), CallProgress()).run_call(ToolCall("refund", {}))
    )
    assert (used.error, ran) == ("no canned response for the tool 'refund'", [])
    live = asyncio.run(Toolbox(tools, Fixtures(memory=({"x": 1},)), CallProgress()).run_call(ToolCall("refund", {})))
    assert (live.error, ran) == (None, ["refund"])  # a memory alone cans no tool


def test_a_python_agent_uses_them_as_it_uses_tools():
    tools = CannedTools(LOOKUP)
    assert tools[0] == {"tool": "acme:orders.lookup", "response": {"n": 1}, "error": None}
    assert tools.call("lookup", number="A-17") == {"n": 1}
    with pytest.raises(LookupError, match="no canned response for the tool 'refund'"):
        tools.call("refund")
    with pytest.raises(LookupError, match="down"):
        tools.call("off")
    assert [(call.name, call.arguments, call.error) for call in tools.calls] == [
        ("lookup", {"number": "A-17"}, None),
        ("refund", {}, "no canned response for the tool 'refund'"),
        ("off", {}, "down"),
    ]


def reply_of(agent: Any, fixtures: Fixtures | None = None) -> Reply:
    async def hold_conversation() -> Reply:
        context = SessionContext(key=Key("s", "c"), fixtures=fixtures, meter=lambda _call: None, http=None)  # type: ignore[arg-type]
        async with PythonAgent(agent).open(context) as session:
            return await session.send(Message("user", "hi"), {})

    return asyncio.run(hold_conversation())


def test_calls_that_a_python_agent_does_not_report_are_in_its_reply():
    def quiet(messages: Any, tools: Any) -> str:
        return str(tools.call("lookup", a=1)["n"])

    def telling(messages: Any, tools: Any) -> Any:
        tools.call("lookup")
        return {"content": "x", "tool_calls": [{"name": "mine", "arguments": {}}]}

    fixtures = Fixtures(LOOKUP, stub_all_tools=True)
    assert [(call.name, call.result) for call in reply_of(quiet, fixtures).tool_calls] == [("lookup", {"n": 1})]
    assert [call.name for call in reply_of(telling, fixtures).tool_calls] == ["mine"]


def test_without_canned_tools_a_python_agent_keeps_its_own():
    def agent(messages: Any, tools: Any, memory: Any) -> str:
        return f"{tools} {memory}"

    assert reply_of(agent, Fixtures(memory=(1,))).content == "None [1]"
    assert reply_of(agent, Fixtures(stub_all_tools=True)).content == "[] []"
    assert reply_of(agent).content == "None None"


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_nan_in_the_data_of_a_python_agent_is_its_failure(odd: float):
    """Section 4: NaN refused; it would read as null."""
    with pytest.raises(AgentFailed, match="NaN"):
        reply_of(lambda messages: {"data": {"a": [odd]}})
    assert reply_of(lambda messages: {"data": {"a": None}}).data == {"a": None}

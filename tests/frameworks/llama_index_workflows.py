"""Workflows of LlamaIndex: handoffs, questions to the user, and tools that do not exist."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from apps import llama_index as app
from apps.tools import BOOKED, add
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent

import viva
from viva.model.message import ToolCall
from viva.model.record import TrialRecord
from viva.testing import ModelRequest, OpenAIServer, Say


async def book(ctx: Context, a: int) -> str:
    """Books, if the user agrees."""
    question = InputRequiredEvent(prefix=f"book {a} days?", user_name="Ada")
    answer = await ctx.wait_for_event(
        HumanResponseEvent, waiter_id="book", waiter_event=question, requirements={"user_name": "Ada"}
    )
    if answer.response == "yes":
        BOOKED.append(a)
    return f"the user said {answer.response}"


def answer(request: ModelRequest) -> Say | str:
    """A model that hands over to the clerk, who can book and add."""
    if request.tool_results and request.tool_results != ["handoff"]:
        return request.new_messages[-1].text
    if "triage" in request.system and "handoff" in str(request.json["tools"]):
        return Say(tool_calls=[ToolCall("handoff", {"to_agent": "clerk", "reason": "bookings"})])
    text = " ".join(each.text for each in request.messages if each.role == "user")
    name = "book" if "book" in text else "fly" if "fly" in text else "add"
    return Say(tool_calls=[ToolCall(name, {"a": 7} if name == "book" else {"a": 1, "b": 2})])


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[Any]:
    with OpenAIServer(answer) as running:
        app.connect(running)
        yield running


def make_member(name: str, *tools: Any) -> Any:
    return FunctionAgent(name=name, description=name, system_prompt=name, llm=app.get_model(), tools=list(tools))


def run(agent: Any, *turns: Any, **fields: Any) -> TrialRecord:
    holds = {"type": "regex", "pattern": "(?s).*"}
    plain = [turn if isinstance(turn, dict) else {"input": turn} for turn in turns]
    case = {"id": "c", "turns": [{"assertions": [holds], **turn} for turn in plain], **fields}
    return next(iter(viva.run([case], agent, options=viva.RunOptions(retry_faults=0)).records()))


def test_a_handoff_is_in_the_path_and_no_tool_call():
    members = [make_member("triage"), make_member("clerk", add)]
    workflow = AgentWorkflow(agents=members, root_agent="triage")
    record = run(workflow, "add")
    assert record.status == "passed", record.error
    assert record.turns[0].path == ("triage", "clerk")
    assert [(call.name, call.result) for call in record.turns[0].tool_calls] == [("add", 3)]
    record = run(workflow, "add", fixtures={"tools": [{"tool": "add", "response": 40}]})
    assert [(call.name, call.result) for call in record.turns[0].tool_calls] == [("add", 40)]


@pytest.mark.parametrize("reply", ["yes", "no", {"input": "hm", "options": {"approval": "approve"}}])
def test_a_question_to_the_user_is_answered_by_the_next_message(reply: Any):
    BOOKED.clear()
    record = run(make_member("clerk", book), "book", reply)
    assert record.status == "passed", record.error
    waiting, after = record.turns
    assert (waiting.awaiting_input, waiting.input_hint) == (True, "book 7 days?")
    assert [(call.name, call.args, call.pending) for call in waiting.tool_calls] == [("book", {"a": 7}, True)]
    word = "no" if reply == "no" else "yes"
    assert [(call.name, call.result) for call in after.tool_calls] == [("book", f"the user said {word}")]
    assert ([] if reply == "no" else [7]) == BOOKED


def test_a_conversation_may_end_while_the_agent_waits():
    assert run(make_member("clerk", book), "book").status == "passed"


def test_a_tool_that_does_not_exist_is_an_error():
    (call,) = run(make_member("clerk", add), "fly").turns[0].tool_calls
    assert (call.name, "not found" in (call.error or "")) == ("fly", True)


def test_an_agent_that_ran_before_is_stubbed_too(server: Any):
    app.connect(server)
    agent = make_member("clerk", add)

    async def use() -> None:
        await agent.run(user_msg="add")

    asyncio.run(use())
    app.connect(server)  # a client belongs to one event loop
    agent.llm = app.get_model()
    record = run(agent, "add", fixtures={"tools": [{"tool": "add", "response": 40}]})
    assert [call.result for call in record.turns[0].tool_calls] == [40]

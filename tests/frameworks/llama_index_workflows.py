"""Workflows of LlamaIndex: handoffs, questions to the user, and tools that do not exist."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from apps import llama_index as app
from apps.tools import BOOKED, add
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import (
    Context,
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StopEvent,
    Workflow,
    step,
)

import viva
from viva.errors import BadInput
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
    if "tools" not in request.json:
        return "Good day."
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


class Draft(Event):
    text: str


class Counter(Workflow):
    """A workflow with a plain StartEvent, a model call, tools, and a count in its Context."""

    @step
    async def write(self, ctx: Context, ev: StartEvent) -> Draft:
        answer = await app.get_model().achat([ChatMessage(role="user", content="hello")])
        number = await ctx.store.get("number", default=0) + 1
        await ctx.store.set("number", number)
        return Draft(text=f"{ev.topic} {number} {answer.message.content}")

    @step
    async def check(self, ev: Draft) -> StopEvent:
        add_tool = FunctionTool.from_defaults(add)
        called = [(await add_tool.acall(a=1, b=2)).raw_output, add_tool.call(a=3, b=4).raw_output]
        return StopEvent(result=ev.text if "data" not in ev.text else {"sums": called})


def test_an_own_workflow_keeps_its_context_over_turns():
    workflow = Counter()
    for _ in range(2):  # each conversation has its own context
        record = run(workflow, "hi", "more", "data")
        assert record.status == "passed", record.error
        first, second, third = record.turns
        assert [turn.output.split() for turn in (first, second)] == [
            ["hi", "1", "Good", "day."],
            ["more", "2", "Good", "day."],
        ]
        assert (third.data, third.path) == ({"sums": [3, 7]}, ("write", "check"))
        assert [(call.name, call.args, call.result) for call in first.tool_calls] == [
            ("add", {"a": 1, "b": 2}, 3),
            ("add", {"a": 3, "b": 4}, 7),
        ]
        assert first.usage is not None
        assert (first.usage.calls, first.usage.input_tokens) == (1, 10)
        assert record.cost_usd


def test_ten_conversations_share_an_own_workflow():
    holds = {"type": "contains", "value": " 2 Good day."}
    cases = [{"id": f"c{at}", "turns": [{"input": "a"}, {"input": "b", "assertions": [holds]}]} for at in range(10)]
    records = list(viva.run(cases, Counter(), parallel=10).records())
    assert [record.status for record in records] == ["passed"] * 10, [record.error for record in records]


def test_the_tools_of_an_own_workflow_are_stubbed():  # W3
    record = run(Counter(), "data", fixtures={"tools": [{"tool": "add", "response": 40}]})
    assert [call.result for call in record.turns[0].tool_calls] == [40, 40]
    (record,) = [run(Counter(), "x", fixtures={"tools": [{"tool": "other", "response": 1}]})]
    assert all("no canned response" in (call.error or "") for call in record.turns[0].tool_calls)


class Order(StartEvent):
    dish: str
    table: int = 1


class Reason(HumanResponseEvent):
    because: str


class Served(StopEvent):
    text: str


class Waiter(Workflow):
    """A workflow whose steps ask the user, with events of its own."""

    @step
    async def take(self, ev: Order) -> InputRequiredEvent:
        return InputRequiredEvent(prefix=f"Why {ev.dish}?")

    @step
    async def serve(self, ev: Reason) -> Served:
        return Served(text=f"Because {ev.because}.")


def test_an_own_workflow_asks_the_user_and_goes_on():
    record = run(Waiter(), "soup", "I like it", "tea", {"input": "", "options": {"resume": "it is hot"}})
    assert record.status == "passed", record.error
    asked, served, asked_again, served_again = record.turns
    assert (asked.awaiting_input, asked.input_hint, asked.path) == (True, "Why soup?", ("take",))
    assert (served.awaiting_input, served.output, served.path) == (False, "Because I like it.", ("serve",))
    assert (asked_again.input_hint, served_again.output) == ("Why tea?", "Because it is hot.")


def test_an_agent_in_a_step_is_logged_and_stubbed():
    class Hotel(Workflow):
        @step
        async def ask(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result=await make_member("clerk", add).run(user_msg=ev.get("question")))

    record = run(Hotel(), "add", fixtures={"tools": [{"tool": "add", "response": 40}]})
    assert record.status == "passed", record.error
    assert [call.result for call in record.turns[0].tool_calls] == [40]
    assert record.turns[0].output == "40"


def test_a_step_that_raises_is_a_failure_of_the_agent():
    class Broken(Workflow):
        @step
        async def ask(self, ev: StartEvent) -> StopEvent:
            raise ValueError(ev.input)

    record = run(Broken(), "no such table")
    assert (record.status, record.fault) == ("failed", "agent")
    assert "no such table" in (record.error or "")


@pytest.mark.parametrize("is_async", [True, False])
def test_a_step_that_leaves_fails_at_once(is_async: bool):
    class Leaving(Workflow):
        @step
        async def ask(self, ev: StartEvent) -> StopEvent:
            raise SystemExit(ev.input)

    class LeavingInThread(Workflow):
        @step
        def ask(self, ev: StartEvent) -> StopEvent:
            raise SystemExit(ev.input)

    record = run(Leaving() if is_async else LeavingInThread(), "bye", timeout="30s")
    assert (record.status, record.fault) == ("failed", "agent")
    assert "SystemExit: bye" in (record.error or "")


def test_a_workflow_with_an_unclear_start_and_a_history_are_refused():
    class Unclear(Workflow):
        @step
        async def ask(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result=ev.first + ev.last)

    with pytest.raises(BadInput, match=r"Unclear: it cannot be told which field.*\n.*async def agent\(messages\)"):
        run(Unclear(), "hi")
    before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    case = {"id": "h", "input": before, "assertions": {"type": "contains", "value": "c"}}
    (record,) = viva.run([case], Counter()).records()
    assert (record.status, "no place for the prior messages" in (record.error or "")) == ("failed", True)

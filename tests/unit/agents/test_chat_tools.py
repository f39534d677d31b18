"""Tools of the chat agent: local functions, canned answers, and calls without an answer."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import UNSET

from model_conversations import ADD, hold_conversation, only
from viva.agents.chat import ChatAgent, Tool
from viva.llm.transport import HttpTransport
from viva.model.case import Fixtures, Key, ToolStub
from viva.model.connector import Connector
from viva.model.message import Message, ToolCall
from viva.protocols import SessionContext
from viva.testing import OpenAIServer, Say


async def _later(**given):
    await asyncio.sleep(0)
    return {"seen": given}


def _awaitable(**given):
    return _later(**given)


@pytest.mark.parametrize("run", [_later, _awaitable])
def test_tools_may_be_asynchronous(run):
    conversation = hold_conversation(
        [Say(tool_calls=[ToolCall("t", {"x": "é"})]), "ok"], "?", tools=(Tool("t", run=run),)
    )
    assert only(conversation).tool_calls[0].result == {"seen": {"x": "é"}}
    assert conversation.messages[-1]["content"] == '{"seen":{"x":"é"}}'


def test_a_blocking_tool_does_not_block_the_loop():
    async def scenario() -> str:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=http)
        async with ChatAgent(connector=server.connector(), tools=(Tool("wait", run=gate.wait),)).open(
            context
        ) as session:
            sending = asyncio.create_task(session.send(Message("user", "x"), {}))
            await asyncio.to_thread(server.wait_for, lambda: len(server.requests) == 1)
            gate.set()
            reply = await sending
        await http.close()
        return reply.content

    gate = threading.Event()
    with OpenAIServer([Say(tool_calls=[ToolCall("wait", {"timeout": 30})]), "done"]) as server:
        assert asyncio.run(scenario()) == "done"


def _fails(**given):
    raise LookupError("no such order")


@pytest.mark.parametrize(
    ("call", "error_text"),
    [
        (ToolCall("boom", {}), "LookupError: no such order"),
        (ToolCall("add", {"a": 1}), "missing 1 required positional argument: 'b'"),
        (ToolCall("add", '{"a": 1,'), "the arguments are not valid JSON"),
        (ToolCall("add", "[1, 2]"), "the arguments must be a JSON object"),
        (ToolCall("subtract", {}), "there is no tool 'subtract'"),
    ],
)
def test_a_tool_that_fails_tells_the_model_and_the_report(call, error_text):
    conversation = hold_conversation([Say(tool_calls=[call]), "Sorry."], "?", tools=(ADD, Tool("boom", run=_fails)))
    (used,) = only(conversation).tool_calls
    assert error_text in (used.error or "")
    assert used.result is UNSET
    assert conversation.messages[-1]["content"].startswith('{"error":"')
    assert only(conversation).content == "Sorry."


def test_no_arguments_at_all_are_none():
    conversation = hold_conversation(
        [Say(tool_calls=[ToolCall("now", "")]), "ok"], "?", tools=(Tool("now", run=lambda: "12:00"),)
    )
    assert (only(conversation).tool_calls[0].arguments, conversation.messages[-1]["content"]) == ({}, "12:00")


def test_a_tool_without_an_implementation_ends_the_turn_and_the_conversation_can_continue():
    script = [
        Say(
            content="One moment.",
            tool_calls=[ToolCall("add", {"a": 1, "b": 1}, "c1"), ToolCall("confirm", {"x": 1}, "c2")],
        ),
        "Done.",
    ]
    conversation = hold_conversation(script, "go", "yes", tools=(ADD, Tool("confirm")))
    first, second = conversation.replies
    assert (first.content, first.finish_reason) == ("One moment.", "tool_calls")
    assert [call.result for call in first.tool_calls] == [2, UNSET]
    assert second.content == "Done."
    assert [(m["role"], m.get("tool_call_id")) for m in conversation.messages] == [
        ("user", None), ("assistant", None), ("tool", "c1"), ("tool", "c2"), ("user", None),
    ]  # fmt: skip


def test_the_result_of_such_a_tool_may_be_the_next_message():
    script = [Say(tool_calls=[ToolCall("confirm", {}, "c1")]), "Done."]
    conversation = hold_conversation(script, "go", Message("tool", "yes", tool_call_id="c1"), tools=(Tool("confirm"),))
    assert conversation.messages[2:] == [{"role": "tool", "content": "yes", "tool_call_id": "c1"}]


def stubbed(*stubs: ToolStub, memory: tuple[Any, ...] = ()) -> Mapping[str, Any]:
    return {"fixtures": Fixtures(tools=stubs, memory=memory, stub_all_tools=True)}


def test_stubs_are_used_in_order_and_the_last_repeats():  # W3
    def never(**given):
        raise AssertionError("the live tool ran")

    look = Say(tool_calls=[ToolCall("look", {"n": 1})])
    context = stubbed(ToolStub("look", {"n": 1}), ToolStub("look", error="gone"), ToolStub("look", "last"))
    conversation = hold_conversation(
        [look, look, look, look, "ok"], "?", tools=(Tool("look", run=never),), context=context
    )
    assert [(call.result, call.error) for call in only(conversation).tool_calls] == [
        ({"n": 1}, None), (UNSET, "gone"), ("last", None), ("last", None),
    ]  # fmt: skip
    assert [m["content"] for m in conversation.messages if m["role"] == "tool"] == [
        '{"n":1}',
        '{"error":"gone"}',
        "last",
        "last",
    ]


def test_a_stub_may_answer_null():
    conversation = hold_conversation(
        [Say(tool_calls=[ToolCall("look", {})]), "ok"], "?", context=stubbed(ToolStub("look"))
    )
    assert only(conversation).tool_calls[0].result is None


def test_each_session_starts_with_all_stubs():
    conversation = hold_conversation(
        [Say(tool_calls=[ToolCall("look", {})]), "ok"], "?", context=stubbed(ToolStub("look", 1), ToolStub("look", 2))
    )
    again = hold_conversation(
        [Say(tool_calls=[ToolCall("look", {})]), "ok"], "?", context=stubbed(ToolStub("look", 1), ToolStub("look", 2))
    )
    assert only(conversation).tool_calls[0].result == only(again).tool_calls[0].result == 1


def test_memory_stands_in_the_system_message():
    conversation = hold_conversation(
        ["x"], "a", system="Be kind.", context=stubbed(memory=("Likes tea", {"city": "Rome"}))
    )
    assert conversation.messages[0] == {
        "role": "system",
        "content": 'Be kind.\n\nWhat you remember:\n- Likes tea\n- {"city":"Rome"}',
    }
    assert ChatAgent(connector=Connector(name="c")).provides == {"tool_stubs", "memory"}

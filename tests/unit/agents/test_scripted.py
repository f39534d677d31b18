"""Agents whose replies are written down."""

import asyncio
import time
from typing import Any

import pytest

from viva.agents.scripted import ScriptedAgent
from viva.errors import AgentFailed, Role
from viva.llm.transport import HttpTransport
from viva.model.case import Key
from viva.model.message import Message, ModelCall, Reply
from viva.protocols import SessionContext


def hold_conversation(
    agent: ScriptedAgent, *text: str, role: Role = "agent", metered: list[ModelCall] | None = None
) -> list[Reply]:
    calls: list[ModelCall] = [] if metered is None else metered

    async def scenario() -> list[Reply]:
        context = SessionContext(key=Key("s", "c"), role=role, meter=calls.append, http=HttpTransport())
        async with agent.open(context) as session:
            return [await session.send(Message("user", line), {}) for line in text]

    return asyncio.run(scenario())


def texts(agent: ScriptedAgent, *text: str) -> list[str]:
    return [reply.content for reply in hold_conversation(agent, *text)]


def test_replies_come_in_order_and_start_again_in_each_session():
    agent = ScriptedAgent(("one", {"content": "two"}))
    assert texts(agent, "a", "b") == ["one", "two"]
    assert texts(agent, "a") == ["one"]  # N19


def test_a_script_that_is_used_up_has_failed_unless_it_repeats():
    with pytest.raises(AgentFailed, match="the script has 1 replies and none is left for 'b'"):
        texts(ScriptedAgent(("one",)), "a", "b")
    assert texts(ScriptedAgent(("one", "last"), repeat=True), "a", "b", "c") == ["one", "last", "last"]


def test_a_pattern_answers_whenever_it_matches():
    agent = ScriptedAgent(({"when": "(?i)price", "content": "5 EUR"}, "first", "second"))
    assert texts(agent, "hi", "the PRICE?", "and", "prices") == ["first", "5 EUR", "second", "5 EUR"]


def test_a_reply_may_hold_all_that_a_reply_can():
    metered: list[ModelCall] = []
    written: dict[str, Any] = {
        "content": "c",
        "data": {"n": 1},
        "tool_calls": [{"name": "t", "arguments": {"a": 1}, "result": "r"}],
        "awaiting_input": False,
        "input_hint": "h",
        "finish_reason": "length",
        "usage": {"input_tokens": 2, "output_tokens": 1},
    }
    (reply,) = hold_conversation(ScriptedAgent((written,)), "x", metered=metered)
    assert (reply.content, reply.data, reply.declared_state, reply.input_hint) == ("c", {"n": 1}, "done", "h")
    assert reply.tool_calls[0].result == "r"
    assert reply.finish_reason == "length"
    assert len(metered) == 1


def test_an_error_breaks_and_a_delay_takes_its_time():
    with pytest.raises(AgentFailed, match="overloaded"):
        texts(ScriptedAgent(({"error": "overloaded"},)), "x")
    began = time.monotonic()
    assert texts(ScriptedAgent(({"content": "late", "delay": "60ms"},)), "x") == ["late"]
    assert time.monotonic() - began >= 0.05


def test_as_a_helper_its_table_is_the_answer():
    (reply,) = hold_conversation(ScriptedAgent(({"input": "next", "goal_achieved": False},)), "x", role="simulator")
    assert reply.data == {"input": "next", "goal_achieved": False}


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (5, "reply 1 is an int"),
        (["a"], "reply 1 is a list"),
        ({"delay": "soon"}, "is not a duration"),
        ({"when": "("}, "is not a regular expression"),
    ],
)
def test_what_cannot_be_said_is_found_when_it_is_made(reply: Any, what: str):
    with pytest.raises(ValueError, match=what):
        ScriptedAgent((reply,))


def test_a_pattern_without_end_is_cut_off():
    agent = ScriptedAgent(({"when": "(a|aa)+$", "content": "x"},))
    with pytest.raises(AgentFailed, match="make it simpler"):
        texts(agent, "a" * 60 + "!")  # N27

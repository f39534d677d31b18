"""Python agents whose replies come in pieces: texts, dicts, then the end."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import pytest
from msgspec import structs

from viva.agents.python import PythonAgent
from viva.errors import AgentFailed, TrialFault
from viva.llm.transport import HttpTransport
from viva.model.case import Fixtures, Key, ToolStub
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.protocols import SessionContext


def stream(target: Any, **context: Any) -> tuple[Reply | TrialFault, CallProgress]:
    """The reply of an agent or its fault, and what is known of the call."""
    progress = CallProgress()

    async def scenario() -> Reply:
        opened = SessionContext(
            key=Key("s", "c"), meter=lambda _: None, http=HttpTransport(), progress=progress, **context
        )
        async with PythonAgent(target).open(opened) as session:
            return await session.send(Message("user", "Hi"), {})

    try:
        return asyncio.run(scenario()), progress
    except TrialFault as fault:
        return fault, progress


def reply_of(target: Any, **context: Any) -> Reply:
    reply, _ = stream(target, **context)
    assert isinstance(reply, Reply), reply
    return reply


PIECES: list[Any] = [
    "Let me ",
    "see.",
    {"tool_calls": [{"id": "c1", "name": "clock", "arguments": {"zone": "UTC"}}]},
    {"tool_calls": [{"id": "c1", "name": "clock", "result": "12:00"}]},
    {"content": "It is noon."},
    {"usage": {"model": "m", "input_tokens": 3, "output_tokens": 2}, "awaiting_input": False},
]


async def async_generator(messages: list[Any]) -> AsyncIterator[Any]:
    for piece in PIECES:
        await asyncio.sleep(0)
        yield piece


def generator(messages: list[Any]) -> Iterator[Any]:
    yield from PIECES


def returns_generator(messages: list[Any]) -> Iterator[Any]:
    return iter(PIECES)


async def returns_async_generator(messages: list[Any]) -> AsyncIterator[Any]:
    return async_generator(messages)


class Streamer:
    async def reply(self, messages: list[Any]) -> AsyncIterator[Any]:
        for piece in PIECES:
            yield piece


@pytest.mark.parametrize(
    "target", [async_generator, generator, returns_generator, returns_async_generator, Streamer, Streamer()]
)
def test_a_reply_comes_in_pieces(target: Any):
    reply = reply_of(target)
    assert reply.first_token_ms is not None
    assert reply.first_token_ms >= 0
    assert structs.replace(reply, first_token_ms=None) == Reply(
        "Let me see.\nIt is noon.",
        tool_calls=(ToolCall("clock", {"zone": "UTC"}, "c1", "12:00"),),
        calls=(ModelCall("m", "", 3, 2),),
        declared_state="done",
        parts=("Let me see.", "It is noon."),
    )


def test_a_dict_at_the_end_that_repeats_the_text_is_not_a_second_message():
    def agent(messages: list[Any]) -> Iterator[Any]:
        yield "Good "
        yield "day."
        yield {"content": "Good day.", "data": {"ok": True}}

    reply = reply_of(agent)
    assert (reply.content, reply.parts, reply.data) == ("Good day.", (), {"ok": True})


@pytest.mark.parametrize(
    ("last", "content", "data"),
    [
        ({"content": "Good day.", "data": 7}, "Good day.", 7),
        (" Bye.", "Good day. Bye.", None),
        (None, "Good day.", None),
    ],
)
def test_what_a_generator_returns_is_its_last_piece(last: Any, content: str, data: Any):
    def agent(messages: list[Any]) -> Generator[Any, None, Any]:
        yield "Good "
        yield "day."
        return last

    reply = reply_of(agent)
    assert (reply.content, reply.data) == (content, data)


def test_a_list_is_several_messages():
    def agent(messages: list[Any]) -> list[Any]:
        call = {"id": "c1", "function": {"name": "clock", "arguments": "{}"}}
        return [
            {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
            "It is noon.",
        ]

    reply = reply_of(agent)
    assert reply.parts == ("Let me see.", "It is noon.")
    assert reply.tool_calls == (ToolCall("clock", {}, "c1", "12:00"),)
    assert reply.first_token_ms is None


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ([{"role": "user", "content": "me"}], "'user' instead of assistant or tool"),
        ([["deep"]], "returned a list with a list instead of messages"),
        ([], "returned a list instead of"),
        (iter([7]), "yielded an int instead of a string"),
        (iter([{"text": "x"}]), "yielded a dict instead of a string"),
        (iter([{"content": 7}]), "content of type an int"),
    ],
)
def test_a_wrong_piece_is_the_agents_failure(returned: Any, problem: str):  # N17
    fault, _ = stream(lambda messages: returned)
    assert isinstance(fault, AgentFailed)
    assert problem in fault.message


def test_an_unknown_key_of_a_piece_is_a_warning():
    _, progress = stream(lambda messages: iter([{"content": "x", "usag": {}}]))
    assert "'usag'" in progress.warnings[0]


def raises(messages: list[Any]) -> Iterator[Any]:
    yield "Half of "
    yield "it"
    raise RuntimeError("broken")


def test_what_arrived_before_an_error_is_kept():  # N16
    fault, progress = stream(raises)
    assert isinstance(fault, AgentFailed)
    assert "broken" in fault.message
    assert progress.partial is not None
    assert progress.partial.content == "Half of it"
    assert progress.partial.first_token_ms is not None


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_what_arrived_before_a_cut_off_is_kept(kind: str):  # N16, N18
    waiting = threading.Event()

    async def hangs(messages: list[Any]) -> AsyncIterator[Any]:
        yield "Half of "
        yield "it"
        waiting.set()
        await asyncio.Event().wait()

    def hangs_in_thread(messages: list[Any]) -> Iterator[Any]:
        yield "Half of "
        yield "it"
        waiting.set()
        while True:
            time.sleep(0.001)

    progress = CallProgress()

    async def scenario() -> None:
        opened = SessionContext(key=Key("s", "c"), meter=lambda _: None, http=HttpTransport(), progress=progress)
        async with PythonAgent(hangs if kind == "async" else hangs_in_thread).open(opened) as session:
            call = asyncio.ensure_future(session.send(Message("user", "Hi"), {}))
            while not waiting.is_set():
                await asyncio.sleep(0.001)
            call.cancel()
            await asyncio.wait([call])

    asyncio.run(scenario())
    assert progress.partial is not None
    assert progress.partial.content == "Half of it"


def test_canned_tools_of_a_stream_are_kept_too():
    def agent(messages: list[Any], tools: Any) -> Iterator[Any]:
        yield tools.call("clock")
        raise RuntimeError("broken")

    _, progress = stream(agent, fixtures=Fixtures((ToolStub("clock", "noon"),)))
    assert progress.partial is not None
    assert [call.name for call in progress.partial.tool_calls] == ["clock"]


def test_a_stream_is_closed():
    closed: list[str] = []

    async def agent(messages: list[Any]) -> AsyncIterator[Any]:
        try:
            yield 7
        finally:
            closed.append("yes")

    stream(agent)
    assert closed == ["yes"]


def test_a_stream_without_end_is_cut_off():
    async def agent(messages: list[Any]) -> AsyncIterator[Any]:
        while True:  # it never waits, so no timer could fire by itself
            yield "x" * 2**20

    fault, _ = stream(agent)
    assert isinstance(fault, AgentFailed)
    assert "streamed more than" in fault.message

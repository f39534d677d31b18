"""Streamed answers of the chat agent: the same replies, and every way to break."""

from typing import Any

import pytest
from msgspec import structs

from model_conversations import ADD, hold_conversation, only
from viva.errors import Unreachable
from viva.model import codec
from viva.model.message import ModelCall, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.testing import Say, StubResponse, json_response
from viva.testing.openai_server import build_chat_stream


@pytest.mark.parametrize("streams", [False, True])
def test_streaming_makes_no_difference(streams):
    script = [
        Say(
            content="Let me see.",
            tool_calls=[ToolCall("add", {"a": 1, "b": 2}, "c1"), ToolCall("add", {"a": 30, "b": 4}, "c2")],
        ),
        Say(content="3 and 34, näturlich.", input_tokens=8, output_tokens=3, cached_tokens=2),
    ]
    conversation = hold_conversation(script, "?", tools=(ADD,), stream=streams)
    assert structs.replace(only(conversation), first_token_ms=None, steps=()) == Reply(
        "3 and 34, näturlich.",
        tool_calls=(ToolCall("add", {"a": 1, "b": 2}, "c1", 3), ToolCall("add", {"a": 30, "b": 4}, "c2", 34)),
        finish_reason="stop",
        calls=(ModelCall("stand-in", "openai", 10, 5), ModelCall("stand-in", "openai", 8, 3, 2)),
    )
    assert [call["function"]["arguments"] for call in conversation.messages[1]["tool_calls"]] == [
        '{"a":1,"b":2}',
        '{"a":30,"b":4}',
    ]
    assert conversation.server.requests[0].json.get("stream_options") == ({"include_usage": True} if streams else None)


def sse(*chunks: bytes) -> StubResponse:
    return StubResponse(chunks=chunks, headers={"Content-Type": "text/event-stream"})


def test_a_stream_may_come_in_any_pieces_with_comments_and_without_an_end_mark():
    events = b"".join(build_chat_stream(Say(content="Hello there"), {})[:-1]).replace(b"\n", b"\r\n")
    conversation = hold_conversation([sse(b": ping\r\n\r\n", *(bytes([byte]) for byte in events))], "?", stream=True)
    assert only(conversation).content == "Hello there"


def test_calls_without_a_number_are_told_apart_by_their_ids():
    calls = [{"id": f"c{n}", "function": {"name": "add", "arguments": {"a": n, "b": n}}} for n in (1, 2)]
    events = [{"choices": [{"delta": {"tool_calls": [call]}}]} for call in calls] + [
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    ]
    conversation = hold_conversation(
        [sse(*(b"data: %b\n\n" % codec.encode(event) for event in events)), "ok"], "?", tools=(ADD,), stream=True
    )
    assert [call.result for call in only(conversation).tool_calls] == [2, 4]


def test_a_call_that_fails_does_not_repeat_the_last_reply():  # N16
    progress = CallProgress()
    with pytest.raises(Unreachable, match="503"):
        hold_conversation(
            ["Hello", json_response({}, 503)],
            "?",
            "And?",
            stream=True,
            connector={"retries": 0},
            context={"progress": progress},
        )
    assert progress.partial is None


def chat_stream(*calls: dict[str, Any]) -> StubResponse:
    """A stream with one event for each delta of a tool call."""
    deltas = [{"delta": {"tool_calls": [call]}} for call in calls]
    events = [{"choices": [choice]} for choice in (*deltas, {"delta": {}, "finish_reason": "tool_calls"})]
    return sse(*(b"data: %b\n\n" % codec.encode(event) for event in events))


def test_calls_that_all_have_the_same_number_are_told_apart_by_their_ids():  # Gemini behind chat completions
    calls = [
        {"index": 0, "id": f"c{n}", "function": {"name": "add", "arguments": f'{{"a":{n},"b":{n}}}'}} for n in (1, 2)
    ]
    conversation = hold_conversation([chat_stream(*calls), "ok"], "?", tools=(ADD,), stream=True)
    assert [(call.id, call.result) for call in only(conversation).tool_calls] == [("c1", 2), ("c2", 4)]


def test_the_signature_of_a_call_goes_back_with_it():  # Gemini behind chat completions
    signed = {"google": {"thought_signature": "abc"}}
    calls = [
        {"index": n, "id": f"c{n}", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}, **extra}
        for n, extra in enumerate(({"extra_content": signed}, {}))
    ]
    conversation = hold_conversation([chat_stream(*calls), "ok"], "?", tools=(ADD,), stream=True)
    sent = conversation.messages[1]["tool_calls"]
    assert [call.get("extra_content") for call in sent] == [signed, None]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"id": "c1"}, {"id": "c1"}),  # no number, and the id in each piece
        ({"index": 0, "id": "c1"}, {"index": 0, "id": "c1-2"}),  # another id in each piece, as of older vLLM
        ({"index": 0, "id": "c1"}, {"index": 0, "id": ""}),
    ],
)
def test_the_pieces_of_a_call_are_joined_whatever_ids_they_have(first: dict[str, Any], second: dict[str, Any]):
    pieces = (
        {**first, "function": {"name": "add", "arguments": '{"a":1,'}},
        {**second, "function": {"arguments": '"b":2}'}},
    )
    conversation = hold_conversation([chat_stream(*pieces), "ok"], "?", tools=(ADD,), stream=True)
    assert only(conversation).tool_calls == (ToolCall("add", {"a": 1, "b": 2}, "c1", 3),)

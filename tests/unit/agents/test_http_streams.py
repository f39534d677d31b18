"""HTTP agents that stream their answers, answer in plain text, or redirect: against real servers."""

import asyncio
import codecs
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from viva.agents.http import HttpAgent
from viva.errors import AgentFailed, TrialFault, Unreachable
from viva.llm.transport import HttpTransport
from viva.model import codec
from viva.model.case import Key
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.protocols import SessionContext
from viva.testing import HttpServer, ReceivedRequest, StubResponse, json_response

Handler = Callable[[ReceivedRequest], StubResponse]


def call(handler: Handler, *output: str, **fields: Any) -> tuple[list[Reply] | TrialFault, CallProgress, HttpServer]:
    """The replies or the fault, what is known of the call, and the server."""
    progress = CallProgress()

    async def scenario() -> list[Reply]:
        http = HttpTransport()
        try:
            context = SessionContext(key=Key("s", "c"), meter=lambda _: None, http=http, progress=progress)
            async with HttpAgent(url=server.url + "/chat", retries=0, **fields).open(context) as session:
                return [await session.send(Message("user", line), {}) for line in output or ("Hi",)]
        finally:
            await http.close()

    with HttpServer(handler) as server:
        try:
            return asyncio.run(scenario()), progress, server
        except TrialFault as fault:
            return fault, progress, server


def reply_of(handler: Handler, **fields: Any) -> Reply:
    replies, _, _ = call(handler, **fields)
    assert isinstance(replies, list), replies
    return replies[0]


def fault_of(handler: Handler, **fields: Any) -> TrialFault:
    fault, _, _ = call(handler, **fields)
    assert isinstance(fault, TrialFault), fault
    return fault


def sse(*events: Any) -> Handler:
    """Server-sent events: bytes as they are, anything else as JSON."""
    data = [event if isinstance(event, bytes) else codec.encode(event) for event in events]
    return streaming(*(b"data: %b\n\n" % each for each in data))


def streaming(*chunks: bytes) -> Handler:
    return lambda _request: StubResponse(chunks=chunks, headers={"Content-Type": "text/event-stream"})


OPENAI = [
    {"model": "m", "choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"model": "m", "choices": [{"delta": {"content": "Let me "}}]},
    {"model": "m", "choices": [{"delta": {"content": "see."}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}}]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    b"[DONE]",
    {"choices": [{"delta": {"content": "after the end"}}]},
]


def test_chat_completions_are_read_without_any_path():
    reply = reply_of(sse(*OPENAI), stream="sse")
    assert reply.first_token_ms is not None
    assert structs.replace(reply, first_token_ms=None) == Reply(
        "Let me see.",
        tool_calls=(ToolCall("add", {"a": 1}, "c1"),),
        finish_reason="stop",
        calls=(ModelCall("m", "", 3, 2),),
    )


def test_calls_that_all_have_the_same_number_are_told_apart_by_their_ids():
    calls = [
        {"index": 0, "id": each, "function": {"name": "add", "arguments": arguments}}
        for each, arguments in (("c1", '{"a":'), ("c1", "1}"), ("c2", '{"a":2}'), ("c3", '{"a":3}'))
    ]
    reply = reply_of(sse(*({"choices": [{"delta": {"tool_calls": [call]}}]} for call in calls)), stream="sse")
    assert [(call.id, call.arguments) for call in reply.tool_calls] == [
        ("c1", {"a": 1}),
        ("c2", {"a": 2}),
        ("c3", {"a": 3}),
    ]


@pytest.mark.parametrize(
    "events",
    [
        [{"delta": "Good "}, {"delta": "day"}],
        [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}} for text in ("Good ", "day")],
        [{"message": {"content": "Good "}, "done": False}, {"message": {"content": "day"}, "done": True}],
        [{"type": "reasoning-delta", "delta": "Hm"}, {"type": "text-delta", "delta": "Good day"}],
        [{"type": "response.function_call_arguments.delta", "delta": "{"}, {"token": "Good "}, {"token": "day"}],
        [
            {"type": "response.mcp_call_arguments.delta", "delta": "{}"},
            {"type": "response.code_interpreter_call_code.delta", "delta": "1+1"},
            {"type": "response.output_text.delta", "delta": "Good "},
            {"type": "response.output_text.delta", "delta": "day"},
            {"type": "response.output_text.done", "text": "Good day"},
        ],
        [{"type": "response.output_text.done", "text": "Good day"}],
        [b"Good ", b"day"],
        [b'"Good "', b'"day"'],
    ],
)
def test_usual_streams_are_read_without_any_path(events: list[Any]):
    assert reply_of(sse(*events), stream="sse").content == "Good day"


def test_a_number_in_plain_events_is_text():
    assert reply_of(sse(b"I have ", b"5"), stream="sse").content == "I have 5"


def test_paths_find_text_tools_and_the_end():
    events = [
        {"kind": "thought", "v": "Hm."},
        {"kind": "text", "v": "It is "},
        {"kind": "tool", "call": {"id": "1", "name": "clock", "arguments": {}}},
        {"kind": "tool", "call": {"id": "1", "name": "clock", "result": "noon"}},
        {"kind": "text", "v": "noon."},
        {"kind": "meta", "session": "s-9", "out": {"ok": True}, "waiting": True},
        {"kind": "end"},
        {"kind": "text", "v": "after the end"},
    ]
    replies, _, server = call(
        sse(*events),
        "one",
        "two",
        stream="sse",
        delta="$.v",
        delta_when={"$.kind": "text"},
        tool_calls="$.call",
        done_when={"$.kind": "end"},
        session_id="$.session",
        data="$.out",
        awaiting="$.waiting",
    )
    assert isinstance(replies, list)
    assert structs.replace(replies[0], first_token_ms=None) == Reply(
        "It is noon.",
        data={"ok": True},
        tool_calls=(ToolCall("clock", {}, "1", "noon"),),
        declared_state="awaiting",
    )
    assert [request.json["session_id"] for request in server.requests] == ["s/c#1.1", "s-9"]
    assert server.requests[1].json["messages"][-2]["content"] == "It is noon."


def test_json_lines_in_any_pieces():
    lines = b'{"text": "Gr\xc3\xbc\xc3\x9fe, "}\r\n\n{"text": "Welt"}'
    handler = streaming(*(bytes([byte]) for byte in lines))
    assert reply_of(handler, stream="json_lines").content == "Grüße, Welt"


@pytest.mark.parametrize(
    ("kind", "body"),
    [("sse", b'data: {"delta": "Hi"}\n\n'), ("json_lines", b'{"delta": "Hi"}\n'), ("text", b"Hi")],
)
def test_a_byte_order_mark_is_no_part_of_the_reply(kind: Any, body: bytes):
    text = codecs.BOM_UTF8 + body
    assert reply_of(streaming(text[:1], text[1:2], text[2:]), stream=kind).content == "Hi"


@pytest.mark.parametrize(("kind", "body"), [("json", b'{"content": "Hi"}'), ("text", b"Hi")])
@pytest.mark.parametrize("charset", ["", "; charset=utf-8", "; charset=latin-1"])
def test_a_byte_order_mark_is_no_part_of_an_answer_that_is_not_streamed(kind: Any, body: bytes, charset: str):
    answer = StubResponse(body=codecs.BOM_UTF8 + body, headers={"Content-Type": f"application/json{charset}"})
    assert reply_of(lambda _: answer, answer=kind).content == "Hi"


def test_whole_messages_stay_apart():
    events = [{"msg": "Let me see."}, {"msg": "It is noon."}]
    reply = reply_of(sse(*events), stream="sse", content="$.msg", delta="$.delta")
    assert (reply.content, reply.parts) == ("Let me see.\nIt is noon.", ("Let me see.", "It is noon."))


def test_several_texts_of_one_answer_stay_apart():
    handler: Handler = lambda _: json_response([{"text": "Hello."}, {"text": "How are you?"}])  # noqa: E731
    reply = reply_of(handler, content="$[*].text")
    assert (reply.content, reply.parts) == ("Hello.\nHow are you?", ("Hello.", "How are you?"))


def test_plain_text_streamed_or_whole():
    text = "Grüße".encode()
    assert reply_of(streaming(text[:3], text[3:]), stream="text").content == "Grüße"
    reply = reply_of(lambda _: StubResponse(body=text), answer="text")
    assert (reply.content, reply.first_token_ms) == ("Grüße", None)
    assert "answer is empty" in fault_of(lambda _: StubResponse(), answer="text").message
    assert "answer is empty" in fault_of(streaming(), stream="text").message


@pytest.mark.parametrize(
    ("handler", "fields", "problem"),
    [
        (sse({"a": 1}), {}, 'no reply in its 1 events: set `delta` to the path of their text; the first is {"a":1}'),
        (sse({"a": 1}), {"delta": "$.b"}, "no reply in its 1 events: `delta` finds no text in them"),
        (streaming(b'{"detail": "hi"}'), {}, "the answer has no events: hi; remove `stream`"),
        (streaming(), {}, "answer is empty"),
        (sse(b"oops"), {"delta": "$.d"}, "event 1 of the stream is not JSON: oops"),
        (sse(b'{"delta": "\xff"}'), {}, "event 1 of the stream is not JSON: "),
        (sse({"delta": "x"}), {"done": "$.end"}, "the stream ended before its end by `done`"),
        (sse({"delta": "x"}, {"error": {"message": "overloaded"}}), {}, "the stream has an error: overloaded"),
        (streaming(b'event: error\ndata: {"message": "broken"}\n\n'), {}, "the stream has an error: broken"),
        (lambda _: json_response({"error": "no"}, 500), {}, "HTTP 500: no"),
        (sse({"tool_calls": [{"x": 1}]}), {}, "tool call without a name"),
        (streaming(b'data: {"delta": "x"}\n\ndata: {"del'), {}, "the stream ended in the middle of event 2"),
    ],
)
def test_a_stream_without_a_reply_is_the_agents_failure(handler: Handler, fields: Any, problem: str):  # N17
    fault = fault_of(handler, stream="sse", **fields)
    assert isinstance(fault, AgentFailed)
    assert problem in fault.message


def test_a_stream_that_breaks_keeps_what_arrived():  # N16
    chunks = (b'data: {"delta": "Half of it"}\n\n', *[b": ping\n\n"] * 5)
    fault, progress, _ = call(lambda _: StubResponse(chunks=chunks, cut="amid_body"), stream="sse")
    assert isinstance(fault, Unreachable)
    assert progress.partial is not None
    assert progress.partial.content == "Half of it"
    assert progress.partial.first_token_ms is not None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"delta": "$.d"}, "delta needs `stream"),
        ({"done_when": {"$.a": 1}}, "done_when needs `stream"),
        ({"stream": "text", "delta": "$.d"}, "cannot contain delta"),
        ({"answer": "text", "content": "$.d"}, "cannot contain content"),
        ({"answer": "text", "stream": "sse"}, "not streamed"),
        ({"stream": "sse", "delta": "$["}, r"\$\["),
        ({"stream": "sse", "done_when": {"$[": 1}}, r"\$\["),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: Any, problem: str):  # N2
    with pytest.raises(ValueError, match=problem):
        HttpAgent(url="http://x", **fields)


# Redirects


def redirecting(status: int, place: str = "/there") -> Handler:
    def handle(request: ReceivedRequest) -> StubResponse:
        if request.path == "/chat":
            return StubResponse(status=status, headers={"Location": place})
        return json_response({"content": f"{request.method} {len(request.body) > 0}"})

    return handle


@pytest.mark.parametrize(
    ("status", "seen"),
    [(301, "GET False"), (302, "GET False"), (303, "GET False"), (307, "POST True"), (308, "POST True")],
)
def test_redirects_are_followed_when_the_config_says_so(status: int, seen: str):
    assert reply_of(redirecting(status), redirects=1).content == seen
    assert fault_of(redirecting(status)).message.endswith("to /there: set `redirects` to follow it")


@pytest.mark.parametrize(
    ("status", "seen"), [(301, "PUT True"), (302, "PUT True"), (303, "GET False"), (307, "PUT True")]
)
def test_a_redirect_keeps_another_method_than_post(status: int, seen: str):
    assert reply_of(redirecting(status), method="PUT", redirects=1).content == seen


def test_redirects_have_a_limit_and_work_for_streams():
    assert "more than `redirects` allows" in fault_of(redirecting(307, "/chat"), redirects=3).message
    assert fault_of(redirecting(307, "http://["), redirects=3).message.startswith("HTTP 307")

    def handle(request: ReceivedRequest) -> StubResponse:
        return redirecting(308)(request) if request.path == "/chat" else sse({"delta": "there"})(request)

    assert reply_of(handle, stream="sse", redirects=1).content == "there"


def test_another_origin_gets_no_credentials():
    with HttpServer(lambda _: json_response({"content": "ok"})) as other:
        headers = {"Authorization": "Bearer very-secret", "X-Api-Key": "k-123456", "X-Team": "blue"}
        reply = reply_of(redirecting(307, f"{other.url}/in"), redirects=1, headers=headers)
    assert reply.content == "ok"
    sent = other.requests[0].headers
    assert (sent.get("authorization"), sent.get("x-api-key"), sent["x-team"]) == (None, None, "blue")

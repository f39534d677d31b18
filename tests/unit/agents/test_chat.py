"""The chat agent against the stand-in server, over a real socket."""

import asyncio

import pytest

from model_conversations import ADD, hold_conversation, only
from viva.agents.chat import ChatAgent, Tool
from viva.errors import AgentFailed, Unreachable
from viva.llm.transport import HttpTransport
from viva.model.case import Key
from viva.model.connector import Connector, Price, Secret
from viva.model.message import Audio, File, Image, Message, ModelCall, Text, ToolCall
from viva.protocols import SessionContext
from viva.testing import OpenAIServer, Say, StubResponse, error_response, json_response
from viva.testing.openai_server import build_chat_completion


def test_a_message_is_sent_and_answered():
    conversation = hold_conversation(["Hello!"], "Hi", system="Be kind.")
    assert only(conversation).content == "Hello!"
    assert only(conversation).finish_reason == "stop"
    (request,) = conversation.server.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", "Bearer test-key")
    assert request.json == {
        "model": "stand-in",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
    }


def test_the_whole_history_is_sent_each_turn_and_what_the_model_said_goes_back_as_it_came():  # N19
    odd = Say(content="One", extra={"reasoning": {"kept": [1, 2.50]}})
    conversation = hold_conversation(
        [odd, "Two"], "a", "b", context={"history": (Message("user", "before"), Message("assistant", "then"))}
    )
    assert conversation.messages == [
        {"role": "user", "content": "before"},
        {"role": "assistant", "content": "then"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "One", "reasoning": {"kept": [1, 2.5]}},
        {"role": "user", "content": "b"},
    ]
    assert b'"kept":[1,2.5]' in conversation.server.requests[1].body


def test_the_request_holds_what_connector_and_agent_ask_for():
    conversation = hold_conversation(
        ["x"], "a", connector={"temperature": 0.0, "seed": 7, "max_tokens": 50, "extra": {"top_p": 0.5, "user": "c"}},
        body={"user": "agent", "response_format": {"type": "json_object"}}, tools=(ADD, Tool("look")),
    )  # fmt: skip
    sent = conversation.server.requests[0].json
    assert {key: sent[key] for key in ("temperature", "seed", "max_tokens", "top_p", "user", "response_format")} == {
        "temperature": 0.0, "seed": 7, "max_tokens": 50, "top_p": 0.5, "user": "agent", "response_format": {"type": "json_object"},
    }  # fmt: skip
    assert sent["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD.parameters}},
        {
            "type": "function",
            "function": {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}},
        },
    ]


@pytest.mark.parametrize(
    ("base_url", "url", "limit"),
    [
        ("", "https://api.openai.com/v1/chat/completions", b"max_completion_tokens"),
        ("http://h/v1/", "http://h/v1/chat/completions", b"max_tokens"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions", b"max_tokens"),
        (
            "https://x.openai.azure.com/d?api-version=1",
            "https://x.openai.azure.com/d/chat/completions?api-version=1",
            b"max_completion_tokens",
        ),
    ],
)
def test_the_address_follows_from_the_base_url(base_url, url, limit):
    connector = Connector(name="c", base_url=base_url, max_tokens=5)
    request = ChatAgent(connector=connector).get_endpoint(connector).build_request(b"", [])
    assert request.url == url
    assert b'"%b":5' % limit in request.body


def test_a_key_of_its_own_kind_takes_the_place_of_ours():
    conversation = hold_conversation(["x"], "a", connector={"headers": {"authorization": "Token abc", "X-Team": "t"}})
    headers = conversation.server.requests[0].headers
    assert (headers["authorization"], headers["x-team"]) == ("Token abc", "t")


def test_every_call_is_metered_with_its_price():
    script = [
        Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})], input_tokens=100, output_tokens=10, cached_tokens=30),
        Say(content="3", input_tokens=200, output_tokens=20),
    ]
    conversation = hold_conversation(script, "1+2?", tools=(ADD,), connector={"price": Price(1.0, 10.0)})
    assert conversation.metered == [
        ModelCall("stand-in", "openai", 100, 10, 30, 0.0002),
        ModelCall("stand-in", "openai", 200, 20, 0, 0.0004),
    ]
    assert only(conversation).calls == tuple(conversation.metered)


def test_a_price_that_is_not_known_is_none():
    assert hold_conversation(["x"], "a").metered[0].cost_usd is None


def test_a_call_is_metered_even_if_the_next_one_fails():
    metered: list[ModelCall] = []

    async def scenario() -> None:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=metered.append, http=http)
        async with ChatAgent(connector=server.connector(), tools=(ADD,)).open(context) as session:
            with pytest.raises(Unreachable):
                await session.send(Message("user", "x"), {})
        await http.close()

    with OpenAIServer([Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})]), error_response(500, "down")]) as server:
        asyncio.run(scenario())
    assert len(metered) == 1


def test_parts_are_sent_in_the_shapes_of_the_api():  # N5
    parts = (
        Text("See:"),
        Image("a.png", url="data:image/png;base64,AAA="),
        Audio("a.mp3", media_type="audio/mpeg", url="data:audio/mpeg;base64,BBB="),
        Audio("http://h/b.wav", url="http://h/b.wav"),
        File("c.pdf", name="c.pdf", url="data:application/pdf;base64,CCC="),
    )
    conversation = hold_conversation(["x"], Message("user", parts, name="ann"))
    assert conversation.messages == [
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "See:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAA="}},
                {"type": "input_audio", "input_audio": {"data": "BBB=", "format": "mp3"}},
                {"type": "audio_url", "audio_url": {"url": "http://h/b.wav"}},
                {"type": "file", "file": {"filename": "c.pdf", "file_data": "data:application/pdf;base64,CCC="}},
            ],
        }
    ]


def test_tool_calls_of_a_history_come_before_its_text():
    used = (ToolCall("look", {"n": 1}, result={"ok": True}), ToolCall("pay", error="refused"))
    conversation = hold_conversation(
        ["x"], "b", context={"history": (Message("user", "a"), Message("assistant", "Done.", tool_calls=used))}
    )
    assert [m["role"] for m in conversation.messages] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert [call["id"] for call in conversation.messages[1]["tool_calls"]] == ["call_1", "call_2"]
    assert conversation.messages[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"n":1}'}
    assert conversation.messages[2:5] == [
        {"role": "tool", "tool_call_id": "call_1", "content": '{"ok":true}'},
        {"role": "tool", "tool_call_id": "call_2", "content": '{"error":"refused"}'},
        {"role": "assistant", "content": "Done."},
    ]


def test_a_history_may_hold_results_as_messages_of_their_own_or_none():
    asked = Message("assistant", "", tool_calls=(ToolCall("look", {}, "c1"),))
    answered = hold_conversation(["x"], "b", context={"history": (asked, Message("tool", "seen", tool_call_id="c1"))})
    assert [m["role"] for m in answered.messages] == ["assistant", "tool", "user"]
    left_open = hold_conversation(["x"], "b", context={"history": (asked,)})
    assert [m["role"] for m in left_open.messages] == ["assistant", "tool", "user"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_refusal_is_what_the_model_said(streams):
    conversation = hold_conversation([Say(extra={"refusal": "I cannot help with that."})], "?", stream=streams)
    assert only(conversation).content == "I cannot help with that."


def test_an_empty_reply_is_one_and_the_conversation_can_continue():
    conversation = hold_conversation([Say(), "Hello"], "a", "b")
    assert [reply.content for reply in conversation.replies] == ["", "Hello"]
    assert conversation.messages[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"content": "no role"}, "no role"),
        (
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "parts"}],
            },
            "parts",
        ),
        ({"role": "assistant", "content": "x", "tool_calls": None, "audio": None, "annotations": []}, "x"),
    ],
)
def test_servers_that_are_almost_compatible_are_understood(message, content):
    answer = json_response({"choices": [{"message": message}]})
    conversation = hold_conversation([answer, "x"], "a", "b")
    assert conversation.replies[0].content == content
    assert conversation.messages[1]["role"] == "assistant"
    assert conversation.metered[0] == ModelCall("stand-in", "openai")


def test_arguments_may_come_as_an_object():
    call = {"id": "c1", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    answer = json_response({"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]})
    assert only(hold_conversation([answer, "3"], "?", tools=(ADD,))).tool_calls[0].result == 3


@pytest.mark.parametrize("status", [401, 402, 403, 404, 408, 429, 500, 502, 503, 504, 529, 302])
def test_a_provider_that_fails_is_not_the_agents_failure(status):  # N17
    with pytest.raises(Unreachable, match=f"stand-in: {status}.*: told why"):
        hold_conversation([error_response(status, "told why")], "?")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_the_model_cannot_take_is_the_agents_failure(status):
    with pytest.raises(AgentFailed, match=f"^stand-in: {status} .*: context too long$"):
        hold_conversation([error_response(status, "context too long")], "?")


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (json_response({"error": {"message": "upstream failed"}}), "it answered with an error: upstream failed"),
        (json_response({"error": "flat"}), "it answered with an error: flat"),
        (json_response({"choices": []}), "the answer has no choices"),
        (json_response({}), "the answer has no choices"),
        (json_response({"choices": [{"message": {"content": 5}}]}), "the answer is not a chat completion"),
        (json_response({"choices": "many"}), "the answer is not a chat completion"),
        (StubResponse(body=b"<html>"), "the answer is not JSON"),
        (StubResponse(body=b'{"choices": [{"mess'), "the answer is not JSON"),
        (StubResponse(cut="before"), "closed the connection without an answer"),
        (StubResponse(body=b"{}", cut="after_headers"), "its answer was cut off"),
    ],
)
def test_an_answer_that_is_none_is_the_providers_fault(answer, output):  # N17
    with pytest.raises(Unreachable) as failed:
        hold_conversation([answer], "?")
    assert failed.value.message.startswith("stand-in: ")
    assert output in failed.value.message


def test_a_provider_that_recovers_is_tried_again():
    script = [
        error_response(429, "slow down", {"Retry-After": "0"}),
        error_response(503, "down", {"Retry-After": "0"}),
        "Hello",
    ]
    conversation = hold_conversation(script, "a", connector={"retries": 2})
    assert only(conversation).content == "Hello"
    assert len(conversation.server.requests) == 3


def test_a_key_that_is_not_set_is_named():
    with pytest.raises(Unreachable, match=r"\(ACME_KEY is not set\)$"):
        hold_conversation([error_response(401, "who?")], "?", connector={"api_key": None, "key_source": "ACME_KEY"})


def test_a_key_does_not_come_back_in_an_error():
    with pytest.raises(Unreachable) as failed:
        hold_conversation(
            [error_response(401, "Incorrect API key: sk-geheim-123")],
            "?",
            connector={"api_key": Secret("sk-geheim-123")},
        )
    assert failed.value.message == "stand-in: 401 Unauthorized: Incorrect API key: ***"


def test_a_cancelled_turn_closes_its_connection():
    async def scenario() -> None:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=http)
        async with ChatAgent(connector=server.connector()).open(context) as session:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await session.send(Message("user", "x"), {})
            await asyncio.to_thread(server.wait_for, lambda: server.open_connections == 0)
        await http.close()

    with OpenAIServer([StubResponse(hold=True)]) as server:
        asyncio.run(scenario())


def test_an_option_chooses_another_connector():  # N20
    with OpenAIServer(lambda r: f"{r.json['model']} {len(r.json['messages'])}") as other:
        context = {"connectors": {"big": other.connector(name="big", model="big-model")}}
        conversation = hold_conversation(["small"], "a", options={"connector": "big"}, context=context)
    assert only(conversation).content == "big-model 1"
    assert conversation.metered[0].model == "big-model"
    assert conversation.server.requests == []


def test_its_own_connector_may_be_named():
    assert only(hold_conversation(["small"], "a", options={"connector": "stand-in"})).content == "small"


def test_an_unknown_connector_is_named():
    with pytest.raises(Unreachable, match="there is no connector 'huge'; known: big"):
        hold_conversation(
            ["x"], "a", options={"connector": "huge"}, context={"connectors": {"big": Connector(name="big")}}
        )


def test_limits_of_a_connector_are_kept_over_sessions():
    """Two sessions of a run share the pace: the third call at once has to wait."""

    async def scenario() -> None:
        http = HttpTransport()
        connector = server.connector(requests_per_minute=1)
        context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=http)
        async with ChatAgent(connector=connector).open(context) as one:
            await one.send(Message("user", "x"), {})
        async with ChatAgent(connector=connector).open(context) as two:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await two.send(Message("user", "x"), {})
        await http.close()

    with OpenAIServer("x") as server:
        asyncio.run(scenario())
    assert len(server.requests) == 1


def test_each_message_is_encoded_once():
    """The pieces of earlier turns are the very same bytes in every request."""
    conversation = hold_conversation(["one", "two", "three"], "a", "b", "c")
    first, second, third = (request.body for request in conversation.server.requests)
    assert second.startswith(first[:-2])
    assert third.startswith(second[:-2])


def test_the_stand_ins_answer_is_the_shape_of_the_api():
    assert build_chat_completion(Say(content="x"), {"model": "m"})["choices"][0] == {
        "index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop", "logprobs": None,
    }  # fmt: skip

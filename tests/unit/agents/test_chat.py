"""What only the agent of OpenAI's Chat Completions API does; the rest is in the contract of all models' agents."""

import pytest

from model_conversations import ADD, hold_conversation, only
from viva.agents.chat import ChatAgent, Tool
from viva.errors import Unreachable
from viva.model.connector import Connector
from viva.model.message import Audio, File, Image, Message, ModelCall, Text, ToolCall
from viva.testing import OpenAIServer, Say, json_response
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


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (json_response({"choices": []}), "the answer has no choices"),
        (json_response({}), "the answer has no choices"),
        (json_response({"choices": [{"message": {"content": 5}}]}), "the answer is not a chat completion"),
        (json_response({"choices": "many"}), "the answer is not a chat completion"),
    ],
)
def test_an_answer_of_another_kind_is_the_providers_fault(answer, output):  # N17
    with pytest.raises(Unreachable) as failed:
        hold_conversation([answer], "?")
    assert failed.value.message.startswith("stand-in: ")
    assert output in failed.value.message


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


def test_the_stand_ins_answer_is_the_shape_of_the_api():
    assert build_chat_completion(Say(content="x"), {"model": "m"})["choices"][0] == {
        "index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop", "logprobs": None,
    }  # fmt: skip

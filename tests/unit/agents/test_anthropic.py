"""What only the agent of Anthropic's Messages API does; the rest is in the contract of all models' agents."""

import base64
from typing import Any

import pytest

from model_conversations import ADD, HeldConversation, hold_conversation, only
from viva.agents.anthropic import AnthropicAgent
from viva.errors import AgentFailed, Unreachable
from viva.model.connector import Connector, Secret
from viva.model.message import Audio, File, Image, Message, Text, ToolCall
from viva.testing import AnthropicServer, Say, StubResponse, json_response
from viva.testing.anthropic_server import THOUGHT_SIGNATURE

PNG = "data:image/png;base64,AAA="
PDF = "data:application/pdf;base64,CCC="


def ask(script: Any, *said: str | Message, **fields: Any) -> HeldConversation:
    return hold_conversation(script, *said, agent=AnthropicAgent, stand_in=AnthropicServer, **fields)


def test_the_request_is_what_the_api_documents():
    conversation = ask(["Hello!"], "Hi", system="Be kind.", tools=(ADD,))
    (request,) = conversation.server.requests
    assert request.path == "/v1/messages"
    assert (request.headers["x-api-key"], request.headers["anthropic-version"]) == ("test-key", "2023-06-01")
    assert request.json == {
        "model": "stand-in",
        "max_tokens": 4096,
        "tools": [{"name": "add", "description": "Adds.", "input_schema": ADD.parameters}],
        "system": "Be kind.",
        "messages": [{"role": "user", "content": "Hi"}],
    }


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("", "https://api.anthropic.com/v1/messages"),
        ("http://h", "http://h/v1/messages"),
        ("http://h/v1/", "http://h/v1/messages"),
        ("http://h/proxy/v1/messages?a=b", "http://h/proxy/v1/messages?a=b"),
    ],
)
def test_the_address_follows_from_the_base_url(base_url: str, url: str):
    connector = Connector(name="c", provider="anthropic", base_url=base_url)
    assert AnthropicAgent(connector=connector).get_endpoint(connector).url == url


def test_another_version_of_the_api_can_be_asked_for():
    conversation = ask(["x"], "a", connector={"headers": {"Anthropic-Version": "2030-01-01", "anthropic-beta": "b1"}})
    headers = conversation.server.requests[0].headers
    assert (headers["anthropic-version"], headers["anthropic-beta"]) == ("2030-01-01", "b1")


@pytest.mark.parametrize("streams", [False, True])
def test_thoughts_go_back_with_their_signature(streams: bool):
    """Byte for byte when the answer came whole; the same blocks when it was streamed."""
    script = [Say(thought="A long thought.", tool_calls=[ToolCall("add", {"a": 1, "b": 2}, "t1")]), "3"]
    conversation = ask(script, "?", tools=(ADD,), stream=streams)
    assert conversation.messages[1] == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "A long thought.", "signature": THOUGHT_SIGNATURE},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1, "b": 2}},
        ],
    }


def test_what_came_goes_back_byte_for_byte():
    content = b'[ {"type":"text","text":"caf\\u00e9", "citations" : null} ]'
    whole = (
        b'{"type":"message","role":"assistant","model":"m","content":%b,"stop_reason":"end_turn","usage":{}}' % content
    )
    conversation = ask([StubResponse(body=whole), "x"], "a", "b")
    assert conversation.replies[0].content == "café"
    assert content in conversation.server.requests[1].body


def test_results_of_tools_stand_in_one_message_and_failed_ones_are_marked():
    wanted = [ToolCall("add", {"a": 1, "b": 2}, "t1"), ToolCall("add", {"a": 1}, "t2")]
    conversation = ask([Say(tool_calls=wanted), "ok"], "?", tools=(ADD,))
    first, second = conversation.messages[2]["content"]
    assert first == {"type": "tool_result", "tool_use_id": "t1", "content": "3"}
    assert (second["tool_use_id"], second["is_error"]) == ("t2", True)
    assert "missing 1 required positional argument" in second["content"]


def test_calls_of_the_history_without_ids_get_different_ones():  # N5
    """The API refuses a conversation in which two calls have the same id."""
    first, second, third = (ToolCall("add", {"a": n}, result=n) for n in (1, 2, 3))
    history = (
        Message("user", "a"),
        Message("assistant", "one", tool_calls=(first, second)),
        Message("user", "b"),
        Message("assistant", "two", tool_calls=(third,)),
        Message("user", "c"),
        Message("assistant", "three", tool_calls=(ToolCall("look"),)),
        Message("tool", "found", name="look"),
    )
    conversation = ask(["ok"], "?", context={"history": history})
    blocks = [block for message in conversation.messages for block in message["content"] if isinstance(block, dict)]
    used = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert len(set(used)) == 4
    assert [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"] == used


def test_ids_that_the_api_would_refuse_are_changed_on_both_sides():
    used = (ToolCall("look", {}, "functions.look:0", result="seen"),)
    conversation = ask(
        ["x"], "b", context={"history": (Message("user", "a"), Message("assistant", "", tool_calls=used))}
    )
    assert (
        conversation.messages[1]["content"][0]["id"]
        == conversation.messages[2]["content"][0]["tool_use_id"]
        == "functions_look_0"
    )


@pytest.mark.parametrize(
    ("stop_reason", "word"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause_turn"),
    ],
)
def test_stop_reasons_are_reported_in_the_words_of_all(stop_reason: str, word: str):
    assert only(ask([Say(content="x", finish_reason=stop_reason)], "a")).finish_reason == word


def test_attachments_are_sent_in_the_shapes_of_the_api():  # N5
    text = base64.b64encode("Grüße".encode()).decode()
    parts = (
        Text("See:"),
        Image("a.png", url=PNG),
        Image("http://h/b.png", url="http://h/b.png"),
        File("c.pdf", name="c.pdf", url=PDF),
        File("http://h/d.pdf", url="http://h/d.pdf"),
        File("e.txt", name="e.txt", media_type="text/markdown", url=f"data:text/markdown;base64,{text}"),
        File("f.txt", url="data:,Hello%20there"),
    )
    conversation = ask(["x"], Message("user", parts))
    assert conversation.messages[0]["content"] == [
        {"type": "text", "text": "See:"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAA="}},
        {"type": "image", "source": {"type": "url", "url": "http://h/b.png"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "CCC="},
            "title": "c.pdf",
        },
        {"type": "document", "source": {"type": "url", "url": "http://h/d.pdf"}},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "Grüße"},
            "title": "e.txt",
        },
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Hello there"}},
    ]


def test_audio_is_refused_before_anything_is_sent():
    with pytest.raises(AgentFailed, match="does not take audio"):
        ask(["x"], Message("user", (Audio("a.mp3", url="data:audio/mpeg;base64,BBB="),)))


def test_objects_of_a_schema_are_closed():
    """The API takes no other; a schema that names its objects' shape to the end stays as it is."""
    inner = {"type": "object", "properties": {"turn": {"type": "integer"}}}
    conversation = ask(
        ["{}"], "a", output={"type": "object", "properties": {"evidence": {"type": "array", "items": inner}}}
    )
    assert conversation.sent["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"evidence": {"type": "array", "items": inner | {"additionalProperties": False}}},
            "additionalProperties": False,
        },
    }


def test_tokens_that_were_put_into_the_cache_have_their_own_price():
    plain = Say(content="x", input_tokens=1000, output_tokens=10)
    written = Say(content="x", input_tokens=1000, output_tokens=10, cache_write_tokens=800)
    read = Say(content="x", input_tokens=1000, output_tokens=10, cached_tokens=800)
    conversation = ask([plain, written, read], "a", "b", "c", connector={"model": "claude-3-5-haiku-latest"})
    assert [(call.input_tokens, call.cached_tokens) for call in conversation.metered] == [
        (1000, 0),
        (1000, 0),
        (1000, 800),
    ]
    costs = [call.cost_usd or 0 for call in conversation.metered]
    assert costs[2] < costs[0] < costs[1]


@pytest.mark.parametrize("answer", [{"type": "completion"}, {"type": "message", "content": [{"text": 5}]}, {}])
def test_an_answer_of_another_kind_is_the_providers_fault(answer: Any):  # N17
    with pytest.raises(Unreachable, match="stand-in: the answer is not an Anthropic message"):
        ask([json_response(answer)], "?")


def test_an_account_without_credit_is_not_the_agents_failure():  # N17
    error = AnthropicServer().build_error(400, "Your credit balance is too low to access the Anthropic API.")
    with pytest.raises(Unreachable, match="credit balance is too low"):
        ask([error], "?")


def test_a_text_without_a_letter_is_not_sent_back():
    blocks = [{"type": "text", "text": ""}, {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1, "b": 2}}]
    answer = json_response({"type": "message", "content": blocks, "stop_reason": "tool_use", "model": "m", "usage": {}})
    conversation = ask([answer, "3"], "?", tools=(ADD,))
    assert conversation.messages[1]["content"] == blocks[1:]


def test_arguments_that_were_cut_off_with_the_answer_are_none():
    events = AnthropicServer().build_stream(
        Say(tool_calls=[ToolCall("add", {"a": 1, "b": 22222222})], finish_reason="length"), {"model": "m"}
    )
    torn = StubResponse(chunks=tuple(event for event in events if b'222"' not in event and b'2}"' not in event))
    conversation = ask([torn, "ok"], "?", tools=(ADD,), stream=True)
    assert "missing 2 required positional arguments" in (only(conversation).tool_calls[0].error or "")


def test_a_secret_is_redacted_in_messages():
    with pytest.raises(Unreachable) as failed:
        ask([AnthropicServer().build_error(403, "no: k-123456")], "?", connector={"api_key": Secret("k-123456")})
    assert failed.value.message == "stand-in: 403 Forbidden: no: ***"

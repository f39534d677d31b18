"""What only the agent of the Gemini API does; the rest is in the contract of all models' agents."""

from typing import Any

import pytest

from model_conversations import ADD, HeldConversation, hold_conversation, only
from viva.agents.chat import Tool
from viva.agents.gemini_api import GeminiAgent
from viva.errors import AgentFailed, Unreachable
from viva.model.connector import Connector
from viva.model.message import Audio, File, Image, Message, Text, ToolCall
from viva.testing import GeminiServer, Say, StubResponse, json_response
from viva.testing.gemini_server import THOUGHT_SIGNATURE


def ask(script: Any, *said: str | Message, **fields: Any) -> HeldConversation:
    return hold_conversation(script, *said, agent=GeminiAgent, stand_in=GeminiServer, **fields)


def answer_of(*parts: dict[str, Any], **fields: Any) -> StubResponse:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP"}
    return json_response({"candidates": [candidate | fields]})


def test_the_request_is_what_the_api_documents():
    conversation = ask(["Hello!"], "Hi", system="Be kind.", tools=(ADD, Tool("look", "Looks.")), connector={"seed": 7})
    (request,) = conversation.server.requests
    assert request.path == "/v1beta/models/stand-in:generateContent"
    assert request.headers["x-goog-api-key"] == "test-key"
    assert request.json == {
        "generationConfig": {"seed": 7},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "add", "description": "Adds.", "parametersJsonSchema": ADD.parameters},
                    {"name": "look", "description": "Looks."},
                ]
            }
        ],
        "systemInstruction": {"parts": [{"text": "Be kind."}]},
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    }


VERTEX = "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/google"


@pytest.mark.parametrize(
    ("base_url", "model", "stream", "url"),
    [
        ("", "m", False, "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent"),
        ("", "m", True, "https://generativelanguage.googleapis.com/v1beta/models/m:streamGenerateContent?alt=sse"),
        ("http://h/", "tunedModels/t 1", False, "http://h/v1beta/tunedModels/t%201:generateContent"),
        ("http://h/v1", "m", False, "http://h/v1/models/m:generateContent"),
        ("http://h/v1beta?a=b", "m", True, "http://h/v1beta/models/m:streamGenerateContent?alt=sse&a=b"),
        (VERTEX, "m", False, f"{VERTEX}/models/m:generateContent"),
    ],
)
def test_the_address_follows_from_base_url_and_model(base_url: str, model: str, stream: bool, url: str):
    connector = Connector(name="c", provider="gemini", base_url=base_url, model=model)
    assert GeminiAgent(connector=connector, stream=stream).get_endpoint(connector).url == url


@pytest.mark.parametrize("streams", [False, True])
def test_signatures_of_thoughts_go_back_with_their_parts(streams: bool):
    script = [Say(thought="Hm.", content="So.", tool_calls=[ToolCall("add", {"a": 1, "b": 2}, "f1")]), "3"]
    conversation = ask(script, "?", tools=(ADD,), stream=streams)
    assert conversation.sent["contents"][1] == {
        "role": "model",
        "parts": [
            {"text": "Hm.", "thought": True},
            {"text": "So."},
            {
                "functionCall": {"id": "f1", "name": "add", "args": {"a": 1, "b": 2}},
                "thoughtSignature": THOUGHT_SIGNATURE,
            },
        ],
    }
    assert only(conversation).content == "3"


def test_a_signature_on_a_text_without_a_letter_goes_back_too():
    signed = {"text": "", "thoughtSignature": THOUGHT_SIGNATURE}
    conversation = ask([answer_of({"text": "One"}, {"text": ""}, signed), "x"], "a", "b")
    assert conversation.sent["contents"][1]["parts"] == [{"text": "One"}, signed]


def test_calls_without_an_id_get_results_without_one():
    wanted = [ToolCall("add", {"a": 1, "b": 2}), ToolCall("add", {"a": 1}), ToolCall("add", {"a": 2, "b": 2}, "f9")]
    conversation = ask([Say(tool_calls=wanted), "ok"], "?", tools=(ADD,))
    first, second, third = (part["functionResponse"] for part in conversation.sent["contents"][2]["parts"])
    assert first == {"name": "add", "response": {"output": 3}}
    assert "missing 1 required positional argument" in second["response"]["error"]
    assert third == {"name": "add", "response": {"output": 4}, "id": "f9"}


def test_tools_of_a_history_are_marked_as_not_the_models_own():
    """Newer models refuse a request for tools that carries no signature, unless it says so."""
    used = (ToolCall("look", {"n": 1}, "c1", result="seen"), ToolCall("look", {"n": 2}, "c2", result="seen"))
    conversation = ask(
        ["x"], "b", context={"history": (Message("user", "a"), Message("assistant", "", tool_calls=used))}
    )
    first, second = conversation.sent["contents"][1]["parts"]
    assert first["thoughtSignature"] == "skip_thought_signature_validator"
    assert "thoughtSignature" not in second


@pytest.mark.parametrize(
    ("finish", "word"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "malformed_function_call"),
    ],
)
def test_finish_reasons_are_reported_in_the_words_of_all(finish: str, word: str):
    assert only(ask([answer_of({"text": "x"}, finishReason=finish)], "a")).finish_reason == word


def test_a_tool_that_is_not_run_here_is_reported_as_a_call_of_tools():
    conversation = ask([Say(tool_calls=[ToolCall("confirm", {})])], "a", tools=(Tool("confirm"),))
    assert only(conversation).finish_reason == "tool_calls"


def test_a_prompt_that_is_blocked_is_a_reply_without_words():
    blocked = json_response({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}})
    conversation = ask([blocked, "x"], "bad", "good")
    assert (conversation.replies[0].content, conversation.replies[0].finish_reason) == ("", "content_filter")
    assert conversation.metered[0].input_tokens == 4
    assert [content["role"] for content in conversation.sent["contents"]] == ["user", "user"]


def test_tokens_of_thoughts_and_of_tools_count():
    usage = {
        "promptTokenCount": 100,
        "toolUsePromptTokenCount": 20,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 40,
        "cachedContentTokenCount": 60,
    }
    answer = json_response({"candidates": [{"content": {"parts": [{"text": "x"}]}}], "usageMetadata": usage})
    (call,) = ask([answer], "a").metered
    assert (call.input_tokens, call.output_tokens, call.cached_tokens) == (120, 45, 60)


def test_attachments_are_sent_in_the_shapes_of_the_api():  # N5
    parts = (
        Text("See:"),
        Image("a.png", url="data:image/png;base64,AAA="),
        Audio("a.mp3", media_type="audio/mpeg", url="data:audio/mpeg;base64,BBB="),
        File("http://h/d.pdf?x=1", url="http://h/d.pdf?x=1"),
        File("e", url="data:;base64,CCC="),
    )
    conversation = ask(["x"], Message("user", parts))
    assert conversation.sent["contents"][0]["parts"] == [
        {"text": "See:"},
        {"inlineData": {"mimeType": "image/png", "data": "AAA="}},
        {"inlineData": {"mimeType": "audio/mpeg", "data": "BBB="}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "http://h/d.pdf?x=1"}},
        {"inlineData": {"mimeType": "text/plain", "data": "CCC="}},
    ]


def test_a_schema_is_sent_as_it_was_written():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
    conversation = ask(["{}"], "a", output=schema)
    assert conversation.sent["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
    }


@pytest.mark.parametrize(("reason", "status"), [("API_KEY_INVALID", "INVALID_ARGUMENT"), ("", "FAILED_PRECONDITION")])
def test_a_wrong_key_or_country_is_not_the_agents_failure(reason: str, status: str):  # N17
    error = {"code": 400, "message": "no", "status": status, "details": [{"reason": reason}]}
    with pytest.raises(Unreachable, match="stand-in: 400 Bad Request: no"):
        ask([json_response({"error": error}, 400)], "?")
    with pytest.raises(AgentFailed):
        ask([json_response({"error": error | {"status": "INVALID_ARGUMENT", "details": []}}, 400)], "?")


@pytest.mark.parametrize("answer", [{}, {"candidates": []}, {"candidates": [{"content": {"parts": [{"text": 5}]}}]}])
def test_an_answer_of_another_kind_is_the_providers_fault(answer: Any):  # N17
    with pytest.raises(Unreachable, match="stand-in: the answer "):
        ask([json_response(answer)], "?")


def test_the_wait_that_the_body_asks_for_is_kept():
    """The API tells in its body, not in a header, when to come back."""
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3600.5s"}]
    error = {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED", "details": details}
    with pytest.raises(Unreachable, match="it asks for 1h"):
        ask([json_response({"error": error}, 429)], "?", connector={"retries": 3})

"""The stand-ins for Anthropic and Gemini, seen by a client that shares no code with Viva: they refuse what the providers refuse."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from viva.testing import AnthropicServer, GeminiServer, Say
from viva.testing.model_server import ModelServer

ANTHROPIC = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
GEMINI = {"x-goog-api-key": "k"}
HI = {"role": "user", "content": "Hi"}


def call(server: ModelServer, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.origin + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            text = response.read().decode()
            return response.status, json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def messages(*output: dict[str, Any], headers: dict[str, str] = ANTHROPIC, **fields: Any) -> tuple[int, Any]:
    body = {"model": "m", "max_tokens": 10, "messages": list(output) or [HI], **fields}
    with AnthropicServer([Say(content="Hello", thought="Hm.", input_tokens=9, cached_tokens=3)]) as server:
        return call(server, "/v1/messages", {k: v for k, v in body.items() if v is not None}, headers)


def contents(*output: dict[str, Any], headers: dict[str, str] = GEMINI, **fields: Any) -> tuple[int, Any]:
    body = {"contents": list(output) or [{"role": "user", "parts": [{"text": "Hi"}]}], **fields}
    with GeminiServer([Say(content="Hello", output_tokens=9, reasoning_tokens=3)]) as server:
        return call(server, "/v1beta/models/m:generateContent", body, headers)


def test_an_answer_of_anthropic_has_the_shape_of_the_api():
    status, answer = messages()
    assert status == 200
    assert (answer["type"], answer["role"], answer["model"], answer["stop_reason"]) == (
        "message", "assistant", "m", "end_turn",
    )  # fmt: skip
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    assert (answer["usage"]["input_tokens"], answer["usage"]["cache_read_input_tokens"]) == (6, 3)


def test_a_stream_of_anthropic_names_its_events():
    status, text = messages(stream=True)
    assert status == 200
    assert [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event")] == [
        "message_start", "ping",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip


USE = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "3"}


@pytest.mark.parametrize(
    ("answer", "status", "output"),
    [
        (lambda: messages(headers={}), 401, "x-api-key header is required"),
        (lambda: messages(headers={"x-api-key": "k"}), 400, "anthropic-version: header is required"),
        (lambda: messages(max_tokens=None), 400, "max_tokens: Field required"),
        (lambda: messages(seed=1), 400, "seed: Extra inputs are not permitted"),
        (lambda: messages({"role": "system", "content": "x"}), 400, "Input should be 'user' or 'assistant'"),
        (lambda: messages({"role": "user", "content": ""}), 400, "text content blocks must be non-empty"),
        (lambda: messages(HI, {"role": "assistant", "content": [USE]}), 400, "were found without `tool_result`"),
        (lambda: messages(HI, {"role": "assistant", "content": [USE]}, HI), 400, "do not belong together"),
        (lambda: messages({"role": "user", "content": [RESULT]}), 400, "do not belong together"),
        (
            lambda: messages(output_config={"format": {"schema": {"items": [{"type": "object"}]}}}),
            400,
            "'additionalProperties' must be explicitly set to false",
        ),
    ],
)
def test_anthropic_refuses_what_the_api_refuses(answer: Any, status: int, output: str):
    code, conversation = answer()
    assert (code, conversation["type"]) == (status, "error")
    assert output in conversation["error"]["message"]


def test_anthropic_joins_what_one_side_says_in_several_messages():
    later = ({"role": "user", "content": [RESULT]}, {"role": "user", "content": "and?"})
    assert messages(HI, {"role": "assistant", "content": [USE]}, *later)[0] == 200


def test_an_answer_of_gemini_has_the_shape_of_the_api():
    status, answer = contents()
    assert status == 200
    (candidate,) = answer["candidates"]
    assert (candidate["content"], candidate["finishReason"]) == (
        {"parts": [{"text": "Hello"}], "role": "model"},
        "STOP",
    )
    assert (answer["usageMetadata"]["candidatesTokenCount"], answer["usageMetadata"]["thoughtsTokenCount"]) == (6, 3)


CALL = {"role": "model", "parts": [{"functionCall": {"name": "add", "args": {}}}]}


@pytest.mark.parametrize(
    ("answer", "status", "output"),
    [
        (lambda: contents(headers={}), 403, "unregistered callers"),
        (lambda: contents(messages=[]), 400, 'Unknown name "messages"'),
        (lambda: contents(generationConfig={"max_tokens": 1}), 400, 'Unknown name "max_tokens"'),
        (lambda: contents({"role": "assistant", "parts": [{"text": "x"}]}), 400, "valid role: user, model"),
        (lambda: contents({"role": "user", "parts": []}), 400, "parts must not be empty"),
        (lambda: contents(CALL, {"role": "user", "parts": [{"text": "x"}]}), 400, "number of function response parts"),
    ],
)
def test_gemini_refuses_what_the_api_refuses(answer: Any, status: int, output: str):
    code, conversation = answer()
    assert (code, conversation["error"]["code"]) == (status, status)
    assert output in conversation["error"]["message"]


@pytest.mark.parametrize(
    ("server", "headers", "path"),
    [(AnthropicServer, ANTHROPIC, "/v1/models"), (GeminiServer, GEMINI, "/v1beta/models")],
)
def test_the_models_can_be_listed_and_nothing_else_is_there(server: Any, headers: dict[str, str], path: str):
    with server() as stand_in:
        status, listed = call(stand_in, path, None, headers)
        missing, _ = call(stand_in, "/elsewhere", None, headers)
    assert (status, missing) == (200, 404)
    assert "stand-in" in str(listed)


@pytest.mark.parametrize("server", [AnthropicServer, GeminiServer])
def test_a_script_that_is_used_up_says_so(server: type[ModelServer]):
    path, headers, body = (
        ("/v1/messages", ANTHROPIC, {"model": "m", "max_tokens": 1, "messages": [HI]})
        if server is AnthropicServer
        else ("/v1beta/models/m:generateContent", GEMINI, {"contents": [{"role": "user", "parts": [{"text": "x"}]}]})
    )
    with server([]) as stand_in:
        status, conversation = call(stand_in, path, body, headers)
    assert status == 400
    assert conversation["error"]["message"] == "the script has 0 lines; none is left for request 1"

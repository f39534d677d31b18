"""The stand-in model server, seen by a client that shares no code with Viva."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

import viva.testing
from viva.model.message import ToolCall
from viva.testing import OpenAIServer, Say, error_response


def ask(server: OpenAIServer, path: str = "/chat/completions", **body) -> Any:
    data = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **body}).encode()
    with urllib.request.urlopen(server.url + path, data, timeout=300) as response:
        return response.read().decode() if body.get("stream") else json.load(response)


def test_a_script_replies_line_by_line():
    call = ToolCall("add", {"a": 1})
    with OpenAIServer(
        ["one", Say(content="two", tool_calls=[call], input_tokens=3, output_tokens=4, finish_reason="length")]
    ) as server:
        first, second = ask(server), ask(server)
    assert first["choices"][0]["message"] == {"role": "assistant", "content": "one"}
    choice = second["choices"][0]
    key = choice["message"]["tool_calls"][0]["id"]
    assert choice["message"]["tool_calls"] == [
        {"id": key, "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    ]
    assert (choice["finish_reason"], second["model"]) == ("length", "m")
    assert (
        second["usage"]["prompt_tokens"],
        second["usage"]["completion_tokens"],
        second["usage"]["total_tokens"],
    ) == (3, 4, 7)
    assert server.requests[0].json["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_tool_of_a_namespace_is_called_in_it():
    tools = [{"type": "function", "name": "add"}, {"type": "namespace", "name": "mcp__x", "tools": [{"name": "find"}]}]
    with OpenAIServer([Say(tool_calls=[ToolCall("find"), ToolCall("add")])]) as server:
        found, added = ask(server, "/responses", input="Hi", tools=tools)["output"]
    assert (found["name"], found["namespace"], "namespace" in added) == ("find", "mcp__x", False)


def test_a_text_repeats_forever_and_a_function_sees_the_request():
    with OpenAIServer("same") as server:
        assert {ask(server)["choices"][0]["message"]["content"] for _ in range(3)} == {"same"}
    with OpenAIServer(lambda r: f"you are {r.json['model']}") as server:
        assert ask(server)["choices"][0]["message"]["content"] == "you are m"


def test_a_streamed_reply_comes_in_events():
    with OpenAIServer([Say(content="Hello there", tool_calls=[ToolCall("add", {"a": 1})])]) as server:
        lines = [
            line.removeprefix("data: ")
            for line in ask(server, stream=True, stream_options={"include_usage": True}).split("\n\n")
            if line
        ]
    *events, last = lines
    assert last == "[DONE]"
    chunks = [json.loads(event) for event in events]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hello there"
    pieces = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(pieces) == '{"a":1}'
    assert [chunk["usage"]["prompt_tokens"] for chunk in chunks if chunk.get("usage")] == [10]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("script", "path", "status", "message"),
    [
        ([error_response(429, "slow down", {"Retry-After": "3"})], "/chat/completions", 429, "slow down"),
        ([], "/chat/completions", 400, "the script has 0 lines"),
        ("x", "/embeddings", 404, "no endpoint /v1/embeddings"),
    ],
)
def test_errors_are_worded_as_the_api_does(script, path, status, message):
    with OpenAIServer(script) as server, pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, path)
    with refused.value as answer:
        assert (answer.status, json.load(answer)["error"]["message"].partition(";")[0]) == (status, message)
        assert answer.headers.get("Retry-After") == ("3" if status == 429 else None)


def test_it_lists_its_model():
    with OpenAIServer() as server, urllib.request.urlopen(server.url + "/models", timeout=300) as response:
        assert json.load(response)["data"][0]["id"] == "stand-in"


def test_a_connector_leads_to_it():
    with OpenAIServer() as server:
        connector = server.connector(retries=3, name="other")
    assert (connector.base_url, connector.model, connector.retries, connector.name) == (
        server.url,
        "stand-in",
        3,
        "other",
    )


def test_all_public_names_exist():
    assert all(hasattr(viva.testing, name) for name in viva.testing.__all__)

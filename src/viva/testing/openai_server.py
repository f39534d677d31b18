"""A stand-in for an OpenAI-compatible model server: scripted replies over a real socket, with every fault a provider has.

with OpenAIServer(["Hello!", Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})]), "3"]) as server:
    agent = ChatAgent(connector=server.connector())
    ...
assert server.requests[0].json["messages"][0]["content"] == "Hi"
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from viva.model import codec
from viva.model.message import Message, ToolCall
from viva.testing.http_server import ReceivedRequest, StubResponse, json_response
from viva.testing.model_server import KEY, MODEL, ModelServer, Say, split_text
from viva.testing.openai_responses import build_response
from viva.testing.openai_responses import build_response_stream as response_stream
from viva.testing.openai_responses import read_response_messages as response_messages


class OpenAIServer(ModelServer):
    """Answers `/v1/chat/completions` and `/v1/responses`."""

    provider: ClassVar[str] = "openai"
    call_id_prefix: ClassVar[str] = "call_"
    endpoints: ClassVar[str] = "POST /v1/chat/completions and /v1/responses, GET /v1/models"

    @property
    def env(self) -> dict[str, str]:
        return {"OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": KEY}

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"{self.origin}/v1"

    @property
    def model_list(self) -> tuple[str, Any]:
        return "/models", {"object": "list", "data": [{"id": MODEL, "object": "model"}]}

    def is_reply_path(self, path: str) -> bool:
        return path.endswith(("/chat/completions", "/responses"))

    def find_problem(self, received: ReceivedRequest, asked: Mapping[str, Any]) -> str | None:
        wanted = "input" if "/responses" in received.path else "messages"
        if not asked.get(wanted):
            return f"Missing required parameter: '{wanted}'."
        self.read_messages(asked)  # what cannot be read is no request
        return None

    def read_messages(self, asked: Any) -> Sequence[Message]:
        return list(response_messages(asked) if "input" in asked else read_chat_messages(asked))

    def build_completion(self, say: Say, asked: Mapping[str, Any]) -> dict[str, Any]:
        return build_response(say, asked) if "input" in asked else build_chat_completion(say, asked)

    def build_stream(self, say: Say, asked: Mapping[str, Any]) -> tuple[bytes, ...]:
        return response_stream(say, asked) if "input" in asked else build_chat_stream(say, asked)

    def build_error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> StubResponse:
        return error_response(status, message, headers)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> StubResponse:
    """An error as OpenAI words it."""
    return json_response({"error": {"message": message, "type": "stand_in_error"}}, status, headers)


def read_chat_messages(asked: Any) -> Iterator[Message]:
    """What a request says."""
    called: dict[str, str] = {}
    for message in asked["messages"]:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
        called |= {key: function["name"] for key, function in calls}
        used = tuple(ToolCall(function["name"], function["arguments"], key) for key, function in calls)
        role, answered = message["role"], message.get("tool_call_id")
        yield Message(
            "system" if role == "developer" else role,
            text,
            name=called.get(answered or "") if role == "tool" else None,
            tool_calls=used,
            tool_call_id=answered,
        )


def build_chat_completion(say: Say, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer to a request that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": say.content, **_thought(say), **say.extra}
    if say.tool_calls:
        message["tool_calls"] = [_tool_call(index, call) for index, call in enumerate(say.tool_calls)]
    choice = {"index": 0, "message": message, "finish_reason": say.finish, "logprobs": None}
    return _envelope("chat.completion", asked) | {"choices": [choice], "usage": _usage(say)}


def build_chat_stream(say: Say, asked: Mapping[str, Any]) -> tuple[bytes, ...]:
    """The events of a streamed answer: a role, the content in pieces, tool calls in pieces, the end, perhaps usage."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if say.content is not None else None}]
    deltas += [{name: value} for name, value in _thought(say).items()]
    deltas += [{"content": piece} for piece in split_text(say.content or "")]
    deltas += [{name: value} for name, value in say.extra.items()]
    for index, call in enumerate(say.tool_calls):
        whole = _tool_call(index, call)
        arguments = whole["function"]["arguments"]
        deltas.append({"tool_calls": [whole | {"index": index, "function": whole["function"] | {"arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in split_text(arguments)
        ]
    envelope = _envelope("chat.completion.chunk", asked)
    events: list[Any] = [
        envelope | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    events.append(envelope | {"choices": [{"index": 0, "delta": {}, "finish_reason": say.finish}]})
    if (asked.get("stream_options") or {}).get("include_usage"):
        events.append(envelope | {"choices": [], "usage": _usage(say)})
    return (*(b"data: %b\n\n" % codec.encode(event) for event in events), b"data: [DONE]\n\n")


def _thought(say: Say) -> dict[str, Any]:
    return {"reasoning_content": say.thought} if say.thought else {}


def _tool_call(index: int, call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments if isinstance(call.arguments, str) else codec.compact_json(call.arguments or {})
    return {
        "id": call.id or f"call_{index + 1}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _usage(say: Say) -> dict[str, Any]:
    return {
        "prompt_tokens": say.input_tokens,
        "completion_tokens": say.output_tokens,
        "total_tokens": say.input_tokens + say.output_tokens,
        "prompt_tokens_details": {"cached_tokens": say.cached_tokens},
    }


def _envelope(kind: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{asked.get('turn', 1)}",
        "object": kind,
        "created": 1_700_000_000,
        "model": asked.get("model", MODEL),
    }

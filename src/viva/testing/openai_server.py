"""A stand-in for an OpenAI-compatible model server: scripted replies and failures over a real socket.

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
from viva.testing.openai_responses import build_response, build_response_stream, read_response_messages


class OpenAIServer(ModelServer):
    """Serves `/v1/chat/completions` and `/v1/responses`."""

    provider: ClassVar[str] = "openai"
    call_id_prefix: ClassVar[str] = "call_"
    endpoints: ClassVar[str] = "POST /v1/chat/completions and /v1/responses, GET /v1/models"

    @property
    def env(self) -> dict[str, str]:
        # LlamaIndex and older clients take OPENAI_API_BASE.
        return {"OPENAI_BASE_URL": self.url, "OPENAI_API_BASE": self.url, "OPENAI_API_KEY": KEY}

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"{self.origin}/v1"

    @property
    def model_list(self) -> tuple[str, Any]:
        return "/models", {"object": "list", "data": [{"id": MODEL, "object": "model"}]}

    def is_reply_path(self, path: str) -> bool:
        return path.endswith(("/chat/completions", "/responses"))

    def find_problem(self, request: ReceivedRequest, body: Mapping[str, Any]) -> str | None:
        field = "input" if "/responses" in request.path else "messages"
        if not body.get(field):
            return f"Missing required parameter: '{field}'."
        self.read_messages(body)  # raises for a body without this structure
        return None

    def read_messages(self, body: Any) -> Sequence[Message]:
        return list(read_response_messages(body) if "input" in body else read_chat_messages(body))

    def build_completion(self, say: Say, body: Mapping[str, Any]) -> dict[str, Any]:
        return build_response(say, body) if "input" in body else build_chat_completion(say, body)

    def build_stream(self, say: Say, body: Mapping[str, Any]) -> tuple[bytes, ...]:
        return build_response_stream(say, body) if "input" in body else build_chat_stream(say, body)

    def build_error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> StubResponse:
        return error_response(status, message, headers)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> StubResponse:
    """Return an error in OpenAI's format."""
    return json_response({"error": {"message": message, "type": "stand_in_error"}}, status, headers)


def read_chat_messages(body: Any) -> Iterator[Message]:
    """Yield the messages of a request to /v1/chat/completions."""
    tool_names: dict[str, str] = {}
    for message in body["messages"]:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
        tool_names |= {key: function["name"] for key, function in calls}
        tool_calls = tuple(ToolCall(function["name"], function["arguments"], key) for key, function in calls)
        role, call_id = message["role"], message.get("tool_call_id")
        yield Message(
            "system" if role == "developer" else role,
            text,
            name=tool_names.get(call_id or "") if role == "tool" else None,
            tool_calls=tool_calls,
            tool_call_id=call_id,
        )


def build_chat_completion(say: Say, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response to a request that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": say.content, **_encode_thought(say), **say.extra}
    if say.tool_calls:
        message["tool_calls"] = [_encode_call(index, call) for index, call in enumerate(say.tool_calls)]
    choice = {"index": 0, "message": message, "finish_reason": say.effective_finish_reason, "logprobs": None}
    return _build_envelope("chat.completion", body) | {"choices": [choice], "usage": _build_usage(say)}


def build_chat_stream(say: Say, body: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Return the events of a streamed response: the role, pieces of content and of tool calls, the end, and usage if requested."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if say.content is not None else None}]
    deltas += [{name: value} for name, value in _encode_thought(say).items()]
    deltas += [{"content": piece} for piece in split_text(say.content or "")]
    deltas += [{name: value} for name, value in say.extra.items()]
    for index, call in enumerate(say.tool_calls):
        tool_call = _encode_call(index, call)
        arguments = tool_call["function"]["arguments"]
        deltas.append(
            {"tool_calls": [tool_call | {"index": index, "function": tool_call["function"] | {"arguments": ""}}]}
        )
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in split_text(arguments)
        ]
    envelope = _build_envelope("chat.completion.chunk", body)
    events: list[Any] = [
        envelope | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    events.append(envelope | {"choices": [{"index": 0, "delta": {}, "finish_reason": say.effective_finish_reason}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(envelope | {"choices": [], "usage": _build_usage(say)})
    return (*(b"data: %b\n\n" % codec.encode(event) for event in events), b"data: [DONE]\n\n")


def _encode_thought(say: Say) -> dict[str, Any]:
    return {"reasoning_content": say.thought} if say.thought else {}


def _encode_call(index: int, call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments if isinstance(call.arguments, str) else codec.compact_json(call.arguments or {})
    return {
        "id": call.id or f"call_{index + 1}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _build_usage(say: Say) -> dict[str, Any]:
    return {
        "prompt_tokens": say.input_tokens,
        "completion_tokens": say.output_tokens,
        "total_tokens": say.input_tokens + say.output_tokens,
        "prompt_tokens_details": {"cached_tokens": say.cached_tokens},
    }


def _build_envelope(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{body.get('turn', 1)}",
        "object": kind,
        "created": 1_700_000_000,
        "model": body.get("model", MODEL),
    }

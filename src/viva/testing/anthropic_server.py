"""A stand-in for Anthropic's Messages API: scripted replies and failures over a real socket.

with AnthropicServer(["Hello!", Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})]), "3"]) as server:
    agent = AnthropicAgent(connector=server.connector())
    ...
assert server.requests[0].json["messages"][0]["content"] == "Hi"
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

from viva.model import codec
from viva.model.message import Message, ToolCall
from viva.testing.http_server import ReceivedRequest, StubResponse, json_response
from viva.testing.model_server import KEY, MODEL, ModelServer, RequestRejected, Say, estimate_tokens, split_text

THOUGHT_SIGNATURE = "c2lnbmVk"
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_KNOWN_FIELDS = frozenset([
    "model", "max_tokens", "messages", "system", "temperature", "top_p", "top_k", "stop_sequences", "tools",
    "tool_choice", "stream", "metadata", "thinking", "output_config", "service_tier", "cache_control",
])  # fmt: skip
_KNOWN_BETA_FIELDS = frozenset(["container", "context_management", "inference_geo", "mcp_servers", "speed"])


class AnthropicServer(ModelServer):
    """Serves `/v1/messages` and `/v1/messages/count_tokens`."""

    provider: ClassVar[str] = "anthropic"
    call_id_prefix: ClassVar[str] = "toolu_"
    endpoints: ClassVar[str] = "POST /v1/messages and /v1/messages/count_tokens, GET /v1/models"

    @property
    def env(self) -> dict[str, str]:
        return {"ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_API_KEY": KEY}

    @property
    def model_list(self) -> tuple[str, Any]:
        return "/v1/models", {"data": [{"id": MODEL, "type": "model"}], "has_more": False}

    def is_reply_path(self, path: str) -> bool:
        return path == "/v1/messages"

    def check_headers(self, request: ReceivedRequest) -> None:
        if "x-api-key" not in request.headers and "authorization" not in request.headers:
            raise RequestRejected(401, "x-api-key header is required")
        if "anthropic-version" not in request.headers:
            raise RequestRejected(400, "anthropic-version: header is required")

    def answer_side_request(self, path: str, body: Mapping[str, Any]) -> Any | None:
        return {"input_tokens": estimate_tokens(body)} if path == "/v1/messages/count_tokens" else None

    def find_problem(self, request: ReceivedRequest, body: Mapping[str, Any]) -> str | None:
        return _find_problem(body, beta="anthropic-beta" in request.headers)

    def read_messages(self, body: Any) -> Sequence[Message]:
        return list(_iter_messages(body))

    def build_completion(self, say: Say, body: Mapping[str, Any]) -> dict[str, Any]:
        end = {
            "content": _build_blocks(say),
            "stop_reason": _STOP_REASONS.get(say.effective_finish_reason, say.effective_finish_reason),
        }
        counts = {"usage": _count_input_tokens(say) | {"output_tokens": say.output_tokens}}
        return _build_envelope(body) | end | counts | dict(say.extra)

    def build_stream(self, say: Say, body: Mapping[str, Any]) -> tuple[bytes, ...]:
        start = _build_envelope(body) | {"usage": _count_input_tokens(say) | {"output_tokens": 1}} | dict(say.extra)
        events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
        for index, block in enumerate(_build_blocks(say)):
            empty, deltas = _split_block(block)
            events.append({"type": "content_block_start", "index": index, "content_block": empty})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        end = {
            "stop_reason": _STOP_REASONS.get(say.effective_finish_reason, say.effective_finish_reason),
            "stop_sequence": None,
        }
        events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": say.output_tokens}})
        events.append({"type": "message_stop"})
        return tuple(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), codec.encode(event)) for event in events)

    def build_error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> StubResponse:
        error = {"type": _ERROR_TYPES.get(status, "api_error"), "message": message}
        return json_response({"type": "error", "error": error, "request_id": "req_1"}, status, headers)


def _build_blocks(say: Say) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if say.thought:
        blocks.append({"type": "thinking", "thinking": say.thought, "signature": THOUGHT_SIGNATURE})
    if say.content:
        blocks.append({"type": "text", "text": say.content})
    for index, call in enumerate(say.tool_calls):
        arguments = codec.decode(call.arguments) if isinstance(call.arguments, str) else call.arguments or {}
        blocks.append(
            {"type": "tool_use", "id": call.id or f"toolu_{index + 1}", "name": call.name, "input": arguments}
        )
    return blocks


def _split_block(block: dict[str, Any]) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """Return an empty block and the deltas that fill it."""
    match block["type"]:
        case "text":
            return block | {"text": ""}, ({"type": "text_delta", "text": piece} for piece in split_text(block["text"]))
        case "thinking":
            thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in split_text(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, iter([*thoughts, signed])
        case _:
            texts = ["", *split_text(codec.compact_json(block["input"]))]
            return block | {"input": {}}, ({"type": "input_json_delta", "partial_json": text} for text in texts)


def _count_input_tokens(say: Say) -> dict[str, Any]:
    return {
        "input_tokens": say.input_tokens - say.cached_tokens - say.cache_write_tokens,
        "cache_read_input_tokens": say.cached_tokens,
        "cache_creation_input_tokens": say.cache_write_tokens,
    }


def _iter_messages(body: Any) -> Iterator[Message]:
    tool_names: dict[str, str] = {}
    system: dict[str, Any] = {"role": "system", "content": body.get("system") or []}
    for message in (system, *body["messages"]):
        content = message["content"]
        blocks: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_result":
                result, call_id = block.get("content") or "", block["tool_use_id"]
                text = result if isinstance(result, str) else _join_text(result)
                yield Message("tool", text, name=tool_names.get(call_id), tool_call_id=call_id)
        uses = [ToolCall(block["name"], block["input"], block["id"]) for block in blocks if block["type"] == "tool_use"]
        tool_names |= {use.id: use.name for use in uses}
        if (text := _join_text(blocks)) or uses:
            yield Message(message["role"], text, tool_calls=tuple(uses))


def _join_text(blocks: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(block["text"] for block in blocks if block["type"] == "text")


def _build_envelope(body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{body.get('turn', 1)}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _find_problem(body: Mapping[str, Any], *, beta: bool) -> str | None:
    """Return why the API would reject a request, or None. The beta API, which Claude Code uses, accepts more fields."""
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            return f"{name}: Field required"
    for name in body:
        if name not in _KNOWN_FIELDS and not (beta and name in _KNOWN_BETA_FIELDS):
            return f"{name}: Extra inputs are not permitted"
    if not body["messages"]:
        return "messages: at least one message is required"
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for at, message in enumerate(body["messages"]):
        if beta and message["role"] == "system":
            continue
        if message["role"] not in ("user", "assistant"):
            return f"messages.{at}.role: Input should be 'user' or 'assistant'"
        blocks: list[dict[str, Any]] = (
            [{"type": "text", "text": message["content"]}]
            if isinstance(message["content"], str)
            else message["content"]
        )
        if not blocks or any(block["type"] == "text" and not block["text"] for block in blocks):
            return f"messages.{at}: text content blocks must be non-empty"
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message["role"], list(blocks)))
    return _find_tool_problem(turns) or _find_open_schema(body.get("output_config", {}).get("format", {}).get("schema"))


def _find_tool_problem(turns: list[tuple[str, list[dict[str, Any]]]]) -> str | None:
    """Return a problem, or None if each tool use has a result in the next message, and each result a tool use."""
    expected: list[str] = []
    for _, blocks in turns:
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(expected):
            return f"messages: `tool_use` ids {expected} and `tool_result` ids {results} do not belong together"
        expected = [block["id"] for block in blocks if block["type"] == "tool_use"]
    return f"messages: `tool_use` ids {expected} were found without `tool_result` blocks" if expected else None


def _find_open_schema(schema: Any) -> str | None:
    """Return a problem if an object in the schema allows additional properties, else None."""
    if isinstance(schema, list):
        return next((problem for below in cast("list[Any]", schema) if (problem := _find_open_schema(below))), None)
    if not isinstance(schema, dict):
        return None
    node = cast("dict[str, Any]", schema)
    if node.get("type") == "object" and node.get("additionalProperties") is not False:
        return "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
    return _find_open_schema(list(node.values()))

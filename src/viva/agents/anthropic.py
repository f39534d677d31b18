"""Models behind Anthropic's Messages API, `/v1/messages`.

Structured answers use `output_config.format`, which models before Claude 4.5 do not know: set `structured = "text"` in
their connector. The API takes neither a seed nor audio.
"""

import base64
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import msgspec
from msgspec import Struct, field

from viva.agents.attachments import get_inline_data, guess_media_type
from viva.agents.model_session import Completion, Endpoint, ModelAgent, OnText, decode_answer, skip_rest
from viva.agents.strict_schema import forbid_additional_properties
from viva.agents.tools import format_result, parse_arguments
from viva.errors import AgentFailed, Unreachable
from viva.llm.sse import SseParser
from viva.model import codec
from viva.model.message import Attachment, Audio, Image, Message, Text, TokenCount, ToolCall
from viva.protocols import Response

_ANTHROPIC = "https://api.anthropic.com"
_KIND = "an Anthropic message"
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_NO_ID = re.compile(r"[^a-zA-Z0-9_-]")
DEFAULT_MAX_TOKENS = 4096
"""The API requires a limit."""


class AnthropicEndpoint(Endpoint):
    """The Messages API."""

    fixed_headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
    merged_field: ClassVar[str] = "output_config"

    def build_url(self, agent: ModelAgent) -> str:
        base, mark, query = (self.connector.base_url or _ANTHROPIC).partition("?")
        base = base.rstrip("/")
        if not base.endswith("/messages"):
            base += "/messages" if base.endswith("/v1") else "/v1/messages"
        return base + mark + query

    def build_key_header(self, key: str) -> tuple[str, str]:
        return "x-api-key", key

    def is_key_rejected(self, answer: Response) -> bool:
        return super().is_key_rejected(answer) or (answer.status == 400 and b"credit balance" in answer.body)

    def build_fields(self, agent: ModelAgent) -> dict[str, Any]:
        connector = self.connector
        fields: dict[str, Any] = {"model": connector.model, "max_tokens": connector.max_tokens or DEFAULT_MAX_TOKENS}
        if connector.temperature is not None:
            fields["temperature"] = connector.temperature
        if agent.tools:
            fields["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in agent.tools
            ]
        if agent.output is not None and connector.structured == "schema":
            fields["output_config"] = {
                "format": {"type": "json_schema", "schema": forbid_additional_properties(agent.output)}
            }
        if agent.stream:
            fields["stream"] = True
        return fields

    def encode_system(self, system: str) -> tuple[bytes, list[bytes]]:
        return (b',"system":%b' % codec.encode(system) if system else b"") + b',"messages":[', []

    def encode_message(self, message: Message) -> bytes:
        if message.role == "tool":
            return _encode_turn("user", [_encode_result(message.tool_call_id or "", message.text)])
        role = "assistant" if message.role == "assistant" else "user"
        if isinstance(message.content, str) and not message.tool_calls:
            return _encode_turn(role, message.content)
        parts = (Text(message.content),) if isinstance(message.content, str) else message.content
        blocks = [
            _encode_text(part.text) if isinstance(part, Text) else _encode_attachment(part)
            for part in parts
            if part != Text("")
        ]
        return _encode_turn(role, blocks + [_encode_tool_use(call) for call in message.tool_calls])

    def encode_results(self, calls: Sequence[ToolCall]) -> list[bytes]:
        """One message with all results: the API takes no other message between tool calls and their results."""
        return [_encode_turn("user", [_encode_result(call.id, *_format_result_text(call)) for call in calls])]

    def parse_completion(self, body: bytes) -> Completion:
        answer = decode_answer(_answers, body, _KIND)
        if answer.type != "message":
            raise Unreachable(f"the answer is not {_KIND}: its type is {answer.type!r}")
        return _build_completion(bytes(answer.content), answer.stop_reason, answer.model, answer.usage)

    async def parse_stream(self, chunks: AsyncIterator[bytes], on_text: OnText) -> Completion:
        events, joiner = SseParser(), _StreamJoiner(on_text)
        async for chunk in chunks:
            for event in events.feed_data(chunk):
                joiner.add(event)
            if joiner.is_done:
                await skip_rest(chunks)
                break
        return joiner.completion()


class AnthropicAgent(ModelAgent, frozen=True, kw_only=True, dict=True):
    """A model behind Anthropic's Messages API."""

    endpoint_type: ClassVar[type[Endpoint]] = AnthropicEndpoint


def _encode_turn(role: str, content: Any) -> bytes:
    return codec.encode({"role": role, "content": content})


def _encode_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _encode_attachment(part: Attachment) -> dict[str, Any]:
    if isinstance(part, Audio):
        raise AgentFailed("the Anthropic API does not take audio")
    kind, data = guess_media_type(part), get_inline_data(part)
    if isinstance(part, Image):
        return {"type": "image", "source": _encode_source(kind, data, part.url)}
    named = {"title": part.name} if part.name else {}
    if data is not None and kind.startswith("text/"):
        text = base64.b64decode(data).decode(errors="replace")
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}} | named
    return {"type": "document", "source": _encode_source(kind, data, part.url)} | named


def _encode_source(kind: str, data: str | None, url: str) -> dict[str, Any]:
    return {"type": "url", "url": url} if data is None else {"type": "base64", "media_type": kind, "data": data}


def _encode_tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": _NO_ID.sub("_", call.id), "name": call.name, "input": parse_arguments(call)}


def _format_result_text(call: ToolCall) -> tuple[str, bool]:
    return (format_result(call), False) if call.error is None else (call.error, True)


def _encode_result(call_id: str, text: str, failed: bool = False) -> dict[str, Any]:
    result = {"type": "tool_result", "tool_use_id": _NO_ID.sub("_", call_id), "content": text}
    return result | {"is_error": True} if failed else result


class _Block(Struct, gc=False):
    type: str = ""
    text: str = ""
    id: str = ""
    name: str = ""
    input: Any = None


class _Usage(Struct, gc=False):
    input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    cache_read_input_tokens: TokenCount | None = None
    cache_creation_input_tokens: TokenCount | None = None


class _Answer(Struct, gc=False):
    type: str = ""
    content: msgspec.Raw = msgspec.Raw(b"[]")
    stop_reason: str | None = None
    model: str = ""
    usage: _Usage = field(default_factory=_Usage)
    error: Any = None


_answers = codec.Decoder[_Answer](_Answer)
_objects = codec.Decoder[list[dict[str, Any]]](list[dict[str, Any]])
_blocks = codec.Decoder[list[_Block]](list[_Block])


def _build_completion(content: bytes, stop_reason: str | None, model: str, usage: _Usage) -> Completion:
    blocks = decode_answer(_blocks, content, _KIND)
    if any(block.type == "text" and not block.text for block in blocks):  # the API does not accept empty text blocks
        content = codec.encode(
            [b for b in decode_answer(_objects, content, _KIND) if b.get("type") != "text" or b.get("text")]
        )
    cache_read, cache_write = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    return Completion(
        b"" if content.strip() == b"[]" else b'{"role":"assistant","content":%b}' % content,
        "".join(block.text for block in blocks if block.type == "text"),
        [ToolCall(block.name, block.input, block.id) for block in blocks if block.type == "tool_use"],
        _FINISH.get(stop_reason or "", stop_reason),
        model,
        (usage.input_tokens or 0) + cache_read + cache_write,
        usage.output_tokens or 0,
        cache_read,
        cache_write,
    )


class _Delta(Struct, gc=False):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    citation: Any = None
    stop_reason: str | None = None


class _Event(Struct, gc=False):
    type: str = ""
    index: int = 0
    message: _Answer = field(default_factory=_Answer)
    content_block: dict[str, Any] = field(default_factory=dict[str, Any])
    delta: _Delta = field(default_factory=_Delta)
    usage: dict[str, Any] | None = None
    error: Any = None


_events = codec.Decoder[_Event](_Event)


class _StreamJoiner:
    """Joins the events of a stream to one message."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._usage: dict[str, Any] = {}
        self._model = ""
        self._stop_reason: str | None = None
        self.is_done = False

    def add(self, data: bytes) -> None:
        event = decode_answer(_events, data, _KIND)
        match event.type:
            case "message_start":
                self._model = event.message.model
                self._usage = codec.to_builtins(event.message.usage)
            case "content_block_start":
                self._blocks[event.index] = event.content_block
            case "content_block_delta":
                self._add_delta(event.index, event.delta)
            case "message_delta":
                self._stop_reason = event.delta.stop_reason or self._stop_reason
                self._usage |= {name: count for name, count in (event.usage or {}).items() if count is not None}
            case "message_stop":
                self.is_done = True
            case _:  # pings, ends of blocks, and unknown events
                return

    def _add_delta(self, index: int, delta: _Delta) -> None:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        match delta.type:
            case "text_delta":
                block["text"] = _append_text(block.get("text"), delta.text)
                self._on_text(delta.text)
            case "input_json_delta":
                self._inputs[index] = self._inputs.get(index, "") + delta.partial_json
            case "thinking_delta":
                block["thinking"] = _append_text(block.get("thinking"), delta.thinking)
            case "signature_delta":
                block["signature"] = _append_text(block.get("signature"), delta.signature)
            case "citations_delta":
                cited = block.get("citations")
                block["citations"] = [*(cast("list[Any]", cited) if isinstance(cited, list) else ()), delta.citation]
            case _:
                return

    def completion(self) -> Completion:
        if self._stop_reason is None:
            raise Unreachable("the stream ended before the answer did")
        for index, text in self._inputs.items():
            try:
                self._blocks[index]["input"] = codec.decode(text) if text else {}
            except codec.DecodeError as error:
                if self._stop_reason != "max_tokens":
                    raise Unreachable(f"the arguments of a tool are not JSON: {error}") from error
                self._blocks[index]["input"] = {}
        content = codec.encode([block for _, block in sorted(self._blocks.items())])
        try:
            usage = codec.convert({name: self._usage.get(name) for name in _Usage.__struct_fields__}, _Usage)
        except codec.ValidationError as error:
            raise Unreachable(f"the answer is not {_KIND}: {error}") from error
        return _build_completion(content, self._stop_reason, self._model, usage)


def _append_text(text: Any, more: str) -> str:
    return text + more if isinstance(text, str) else more

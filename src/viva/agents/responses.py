"""Models behind OpenAI's Responses API (`/responses`): a connector with `api = "responses"`.

Nothing is stored on the server: each request has the whole conversation, and what the model thought goes back as it came.
"""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Struct, field

from viva.agents.chat import ChatEndpoint
from viva.agents.model_session import Completion, Endpoint, ModelAgent, OnText, decode_answer, skip_rest
from viva.agents.strict_schema import forbid_additional_properties, is_strict
from viva.agents.tools import format_result
from viva.errors import Unreachable
from viva.llm.sse import SseParser
from viva.model import codec
from viva.model.message import Attachment, Audio, File, Message, Text, TokenCount, ToolCall

_KIND = "a response"
_FINISH = {"max_output_tokens": "length"}
_NO_REASONING = re.compile(r"(?:.*[/:])?(?:chatgpt-4|gpt-3\.5|gpt-4|gpt-5-chat)")
"""Models that do not think. The API refuses to include what they thought."""
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class ResponsesEndpoint(ChatEndpoint):
    """The Responses API. Address, key and errors are those of chat completions."""

    path: ClassVar[str] = "/responses"

    def build_fields(self, agent: ModelAgent) -> dict[str, Any]:
        connector = self.connector
        settings = {"temperature": connector.temperature, "max_output_tokens": connector.max_tokens}
        fields: dict[str, Any] = {"model": connector.model, "store": False}
        if not _NO_REASONING.match(connector.model):
            fields["include"] = ["reasoning.encrypted_content"]
        fields |= {name: value for name, value in settings.items() if value is not None}
        if agent.tools:
            fields["tools"] = [
                {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in agent.tools
            ]
        if agent.output is not None and connector.structured != "text":
            fields["text"] = {"format": _encode_output_format(agent.output, connector.structured)}
        if agent.stream:
            fields["stream"] = True
        return fields

    def encode_system(self, system: str) -> tuple[bytes, list[bytes]]:
        return b',"input":[', [_encode_text("developer", system)] if system else []

    def accepts_system_messages(self) -> bool:
        return True

    def encode_message(self, message: Message) -> bytes:
        return b",".join(encode_items(message))

    def encode_results(self, calls: Sequence[ToolCall]) -> list[bytes]:
        return encode_result_items(calls)

    def parse_completion(self, body: bytes) -> Completion:
        return _build_completion(decode_answer(_answers, body, _KIND))

    async def parse_stream(self, chunks: AsyncIterator[bytes], on_text: OnText) -> Completion:
        events, items = SseParser(), list[msgspec.Raw]()
        async for chunk in chunks:
            for data in events.feed_data(chunk):
                event = decode_answer(_events, data, _KIND)
                if event.type in _ENDS:
                    answer = decode_answer(_answers, event.response, _KIND)
                    answer.output = answer.output or items
                    await skip_rest(chunks)
                    return _build_completion(answer)
                if event.type == "response.output_item.done":
                    items.append(event.item)
                elif event.type == "response.output_text.delta" and event.delta:
                    on_text(event.delta)
                elif event.type == "error":
                    raise Unreachable(f"it answered with an error: {event.message or event.type}")
        raise Unreachable("the stream ended before the answer did")


class ResponsesAgent(ModelAgent, frozen=True, kw_only=True, dict=True):
    """A model behind the Responses API."""

    endpoint_type: ClassVar[type[Endpoint]] = ResponsesEndpoint


def encode_items(message: Message) -> list[bytes]:
    """A message as items of the API: each tool call is an item of its own."""
    if message.role == "tool":
        return [_encode_result(message.tool_call_id or "", message.text)]
    role = "developer" if message.role == "system" else message.role
    items: list[bytes] = []
    if isinstance(message.content, str):
        if message.content or not message.tool_calls:
            items.append(_encode_text(role, message.content))
    else:
        kind = "output_text" if role == "assistant" else "input_text"
        parts = [
            {"type": kind, "text": part.text} if isinstance(part, Text) else _encode_attachment(part)
            for part in message.content
        ]
        items.append(codec.encode({"role": role, "content": parts}))
    return [*items, *map(_encode_call, message.tool_calls)]


def encode_result_items(calls: Sequence[ToolCall]) -> list[bytes]:
    """The results of tool calls, as items of the API."""
    return [_encode_result(call.id, format_result(call)) for call in calls]


class _Part(Struct, gc=False):
    type: str = ""
    text: str = ""
    refusal: str = ""


class _Item(Struct, gc=False):
    type: str = ""
    content: list[_Part] | None = None
    name: str = ""
    arguments: Any = None
    call_id: str = ""


class _Cached(Struct, gc=False):
    cached_tokens: TokenCount | None = None


class _Usage(Struct, gc=False):
    input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    input_tokens_details: _Cached | None = None


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _Answer(Struct, gc=False):
    output: list[msgspec.Raw] | None = None
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


class _Event(Struct, gc=False):
    type: str = ""
    delta: Any = None
    item: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"{}"))
    response: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"{}"))
    message: str | None = None
    error: Any = None


_answers = codec.Decoder[_Answer](_Answer)
_items = codec.Decoder[_Item](_Item)
_events = codec.Decoder[_Event](_Event)


def _build_completion(answer: _Answer) -> Completion:
    """The items of the model go back unchanged."""
    if answer.output is None or answer.status == "failed":
        raise Unreachable(f"the answer is not {_KIND}: it has no output")
    items = [decode_answer(_items, raw, _KIND) for raw in answer.output]
    parts = [part for item in items if item.type == "message" for part in item.content or ()]
    calls = [
        ToolCall(item.name, item.arguments, item.call_id or f"call_{number}")
        for number, item in enumerate((item for item in items if item.type == "function_call"), 1)
    ]
    usage = answer.usage or _Usage()
    cached = usage.input_tokens_details.cached_tokens if usage.input_tokens_details else 0
    return Completion(
        b",".join(map(bytes, answer.output)),
        "".join(part.text or part.refusal for part in parts),
        calls,
        _choose_finish_reason(answer, calls),
        answer.model or "",
        usage.input_tokens or 0,
        usage.output_tokens or 0,
        cached or 0,
    )


def _choose_finish_reason(answer: _Answer, calls: Sequence[ToolCall]) -> str:
    reason = answer.incomplete_details.reason if answer.incomplete_details else None
    if reason:
        return _FINISH.get(reason, reason)
    return "tool_calls" if calls else "stop"


def _encode_output_format(output: Any, structured: str) -> dict[str, Any]:
    if structured == "json":
        return {"type": "json_object"}
    schema = forbid_additional_properties(output)
    return {"type": "json_schema", "name": "answer", "schema": schema, "strict": is_strict(schema)}


def _encode_text(role: str, text: str) -> bytes:
    return codec.encode({"role": role, "content": text})


def _encode_call(call: ToolCall) -> bytes:
    arguments = call.arguments if isinstance(call.arguments, str) else codec.compact_json(call.arguments or {})
    return codec.encode({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments})


def _encode_result(call_id: str, output: str) -> bytes:
    return codec.encode({"type": "function_call_output", "call_id": call_id, "output": output})


def _encode_attachment(part: Attachment) -> dict[str, Any]:
    match part:
        case Audio():
            head, _, data = part.url.partition(";base64,")
            kind = (part.media_type or head.removeprefix("data:")).rpartition("/")[2]
            return {"type": "input_audio", "input_audio": {"data": data, "format": "mp3" if kind == "mpeg" else kind}}
        case File():
            is_inline = part.url.startswith("data:")
            source = {"filename": part.name or "file", "file_data": part.url} if is_inline else {"file_url": part.url}
            return {"type": "input_file", **source}
        case _:
            return {"type": "input_image", "image_url": part.url}

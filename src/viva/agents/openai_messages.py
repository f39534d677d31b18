"""Encodes messages for chat completions. Each is encoded once: n turns cost n encodings, not n²."""

from collections.abc import Mapping, Sequence
from typing import Any

from viva.agents.tools import format_result, split_at_tool_results
from viva.model import codec
from viva.model.message import Attachment, Audio, Content, File, Message, Text, ToolCall


def encode_to_messages(message: Message) -> list[bytes]:
    """One or several messages: tool calls with results come before the text of an assistant message."""
    request, answered, text = split_at_tool_results(message)
    encoded = [encode_message(request), *encode_results(answered)]
    return encoded if text is None else [*encoded, encode_message(text)]


def encode_message(message: Message) -> bytes:
    plain: dict[str, Any] = {"role": message.role, "content": _encode_content(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        plain["content"] = plain["content"] or None
        plain["tool_calls"] = [_encode_call(call) for call in message.tool_calls]
    return codec.encode(plain)


def encode_results(calls: Sequence[ToolCall]) -> list[bytes]:
    """The results of tool calls, one message each."""
    return [codec.encode({"role": "tool", "tool_call_id": call.id, "content": format_result(call)}) for call in calls]


def encode_assistant(
    content: str | None, tool_calls: Sequence[ToolCall], extras: Sequence[Mapping[str, Any]] | None = None
) -> bytes:
    """An assistant message that is built again, because the model's own bytes cannot be sent back. `extras` are more fields
    of each call.
    """
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if tool_calls:
        pairs = zip(tool_calls, extras or [{}] * len(tool_calls), strict=True)
        message["tool_calls"] = [_encode_call(call) | dict(extra) for call, extra in pairs]
    return codec.encode(message)


def _encode_content(content: Content) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text} if isinstance(part, Text) else _encode_attachment(part) for part in content
    ]


def _encode_attachment(part: Attachment) -> dict[str, Any]:
    match part:
        case Audio():
            head, comma, data = part.url.partition(";base64,")
            if not comma:
                return {"type": "audio_url", "audio_url": {"url": part.url}}
            kind = (part.media_type or head.removeprefix("data:")).rpartition("/")[2]
            return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO.get(kind, kind)}}
        case File():
            return {"type": "file", "file": {"filename": part.name or "file", "file_data": part.url}}
        case _:
            return {"type": "image_url", "image_url": {"url": part.url}}


_AUDIO = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "x-m4a": "m4a"}


def encode_arguments(call: ToolCall) -> str:
    """The arguments as JSON. Those that came as text stay as they are."""
    arguments = {} if call.arguments in (None, "") else call.arguments
    return arguments if isinstance(arguments, str) else codec.compact_json(arguments)


def _encode_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": encode_arguments(call)}}

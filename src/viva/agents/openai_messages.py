"""Messages in the shape of chat completions, each encoded once: a conversation of n turns costs n encodings, not n²."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, structs

from viva.model import codec
from viva.model.message import Attachment, Audio, Content, File, Message, Text, ToolCall
from viva.model.talk import shown

NOT_RUN = "This tool is not run here. What comes of it, the user says next."


def encoded(message: Message) -> list[bytes]:
    """One message, or several: tools that a message of the assistant tells of were used before its text was said."""
    if not message.tool_calls:
        return [codec.encode(_plain(message))]
    calls = with_ids(message.tool_calls)
    asking = _plain(message) | {"tool_calls": [_asked(call) for call in calls]}
    if all(map(is_open, calls)):  # the results follow as messages of their own
        return [codec.encode(asking)]
    told = [codec.encode(asking | {"content": None}), *(tool_message(call.id, tool_text(call)) for call in calls)]
    return [*told, codec.encode(_plain(message))] if message.content else told


def is_open(call: ToolCall) -> bool:
    """A call that has not come to an end."""
    return call.result is UNSET and call.error is None


def with_ids(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Chat completions tie results to calls by their ids; a call that has none gets one by its place."""
    return [call if call.id else structs.replace(call, id=f"call_{number}") for number, call in enumerate(calls, 1)]


def tool_message(call_id: str, text: str) -> bytes:
    return codec.encode({"role": "tool", "tool_call_id": call_id, "content": text})


def tool_text(call: ToolCall) -> str:
    """What the model gets to read of a tool's result."""
    if call.error is not None:
        return codec.compact({"error": call.error})
    return NOT_RUN if call.result is UNSET else shown(call.result)


def assistant(content: str | None, tool_calls: Sequence[ToolCall] = ()) -> bytes:
    """What the model said, where its own bytes cannot be used."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = [_asked(call) for call in tool_calls]
    return codec.encode(message)


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": _content(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _content(content: Content) -> Any:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": part.text} if isinstance(part, Text) else _attached(part) for part in content]


def _attached(part: Attachment) -> dict[str, Any]:
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


def _asked(call: ToolCall) -> dict[str, Any]:
    arguments = (
        call.arguments
        if isinstance(call.arguments, str)
        else codec.compact({} if call.arguments is None else call.arguments)
    )
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

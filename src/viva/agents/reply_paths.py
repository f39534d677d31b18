"""Finds the reply in a JSON answer: by the user's JSONPaths or, without them, in the places where agents usually put it."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import structs

from viva.agents.replies import parse_reply
from viva.errors import AgentFailed, CheckError, Undetermined
from viva.model import codec
from viva.model.ellipsis import cut_end
from viva.model.message import Reply
from viva.text.json_path import find_values_at

_Path = tuple[str | int, ...]
_CHOICE: _Path = ("choices", 0)
_USUAL: Mapping[str, tuple[_Path, ...]] = {
    "content": (
        ("content",), ("output",), ("reply",), ("response",), ("message", "content"), ("message",), ("text",),
        (*_CHOICE, "message", "content"),
    ),
    "data": (("data",),),
    "tool_calls": (("tool_calls",), ("message", "tool_calls"), (*_CHOICE, "message", "tool_calls")),
    "awaiting_input": (("awaiting_input",),),
    "done": (("done",),),
    "input_hint": (("input_hint",),),
    "protocol_state": (("protocol_state",),),
    "session_id": (("session_id",),),
    "finish_reason": (("finish_reason",), (*_CHOICE, "finish_reason")),
    "usage": (("usage",),),
    "model": (("model",),),
}  # fmt: skip
_USUAL_TEXT = "$.content, $.output, $.reply, $.response, $.message, $.text, $.choices[0].message.content"


def extract_reply(document: Any, paths: Mapping[str, str]) -> tuple[Reply, Any]:
    """The reply in a JSON answer, and the session id that it names. `paths` are JSONPaths by part of the reply.

    An answer without a reply is the agent's failure.
    """
    content = _find_content(document, paths.get("content"))
    data = find_value(document, "data", paths.get("data"))
    tool_calls = find_tool_calls(document, paths.get("tool_calls"))
    if content is ABSENT and data is None and tool_calls is None:
        where = f"at {paths['content']}" if "content" in paths else f"at any of the usual places ({_USUAL_TEXT})"
        raise AgentFailed(f"answer has no reply {where}; {_describe_document(document)}")
    parts = _find_texts(document, paths.get("content"))
    text, structured = ("\n".join(parts), None) if parts else _split_text_and_data(content)
    fields = {
        "content": text,
        "data": structured if data is None else data,
        "tool_calls": tool_calls,
        "awaiting_input": read_awaiting_flag(document, paths.get("awaiting_input")),
        "usage": find_usage(document, paths.get("usage")),
    }
    for name in ("done", "input_hint", "finish_reason", "protocol_state"):
        fields[name] = find_value(document, name, paths.get(name))
    reply = structs.replace(parse_reply(fields), parts=parts)
    return reply, find_value(document, "session_id", paths.get("session_id"))


def _find_texts(document: Any, path: str | None) -> tuple[str, ...]:
    """Several texts at one path are several messages."""
    texts = [] if path is None else find_values(document, path)
    return tuple(texts) if len(texts) > 1 and all(isinstance(text, str) for text in texts) else ()


def find_usage(document: Any, path: str | None) -> Any:
    """The usage in the answer. The model may be a sibling of it, as in chat completions."""
    usage, model = find_value(document, "usage", path), find_value(document, "model", None)
    if isinstance(usage, dict) and "model" not in usage and isinstance(model, str):
        return {**cast("dict[str, Any]", usage), "model": model}
    return usage


ABSENT: Any = object()
"""Stands for a value that is not in the document, not even as null."""


def _find_content(document: Any, path: str | None) -> Any:
    if path is not None:
        values = find_values(document, path)
        return ABSENT if not values else values[0] if len(values) == 1 else values
    if isinstance(document, str):
        return document
    values = [value for path in _USUAL["content"] if (value := get_at_path(document, path)) is not ABSENT]
    texts = (value for value in values if isinstance(value, str))
    return next(texts, values[0] if values else ABSENT)


def _split_text_and_data(content: Any) -> tuple[str, Any]:
    """Text and lists of text parts are the reply's content; any other structure is its data."""
    if content is ABSENT or content is None:
        return "", None
    if isinstance(content, str):
        return content, None
    if isinstance(content, dict | list):
        texts = [_get_part_text(part) for part in cast("list[Any]", content)] if isinstance(content, list) else [None]
        strings = [text for text in texts if text is not None]
        return ("".join(strings), None) if strings and len(strings) == len(texts) else ("", cast("Any", content))
    return codec.compact_json(content), None


def _get_part_text(part: Any) -> str | None:
    text = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def read_awaiting_flag(document: Any, path: str | None) -> bool | None:
    """Does the agent await input? None if the answer does not say."""
    value = find_value(document, "awaiting_input", path)
    if value is None or isinstance(value, bool):
        return value
    raise AgentFailed(
        f"{path or '$.awaiting_input'} holds {cut_end(codec.compact_json(value), 60)} instead of true or false"
    )


def find_value(document: Any, name: str, path: str | None) -> Any:
    """A part that is a single value; None if it is absent."""
    if path is not None:
        values = find_values(document, path)
        return None if not values else values[0] if len(values) == 1 else values
    return next((value for usual in _USUAL[name] if (value := get_at_path(document, usual)) is not ABSENT), None)


def find_tool_calls(document: Any, path: str | None) -> Any:
    """The list of tool calls. A path may point at the list or at each of its items."""
    if path is None:
        return find_value(document, "tool_calls", None)
    values = find_values(document, path)
    if len(values) == 1 and (values[0] is None or isinstance(values[0], list)):
        return cast("Any", values[0])
    return values or None


def find_values(document: Any, path: str) -> list[Any]:
    """All values at a path."""
    try:
        return find_values_at(path, document)
    except CheckError as error:  # the path does not fit this answer; either may be wrong
        raise Undetermined(str(error)) from error


def get_at_path(document: Any, path: Sequence[str | int]) -> Any:
    """The value at a place, or ABSENT."""
    value = document
    for step in path:
        if isinstance(step, str):
            value = cast("dict[str, Any]", value).get(step, ABSENT) if isinstance(value, dict) else ABSENT
        else:
            value = cast("list[Any]", value)[step] if isinstance(value, list) and len(value) > step else ABSENT
    return value


def _describe_document(document: Any) -> str:
    if isinstance(document, dict):
        return f"its keys are {', '.join(map(repr, list(cast('dict[str, Any]', document))[:8])) or 'none'}"
    return f"it is {cut_end(codec.compact_json(document), 60)}"

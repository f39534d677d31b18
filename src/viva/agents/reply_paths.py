"""The reply in any JSON answer: where the user's JSONPaths point or, without them, in the places where agents usually put it."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from viva.agents.replies import parse_reply
from viva.errors import AgentFailed, CheckError, Undetermined
from viva.model import codec
from viva.model.message import Reply
from viva.text.json_path import compile_path, values_at

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
_SHOWN = "$.content, $.output, $.reply, $.response, $.message, $.text, $.choices[0].message.content"


class ReplyPaths(Struct, frozen=True, kw_only=True):
    """JSONPaths of the parts of a reply; None means the usual places."""

    content: str | None = None
    data: str | None = None
    tool_calls: str | None = None
    awaiting_input: str | None = None
    input_hint: str | None = None
    protocol_state: str | None = None
    session_id: str | None = None
    finish_reason: str | None = None
    usage: str | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (path := getattr(self, name)) is not None:
                compile_path(path)


def extract_reply(document: Any, paths: ReplyPaths) -> tuple[Reply, Any]:
    """The reply in an answer, and the session id that it names. An answer that holds no reply is the agent's failure."""
    content = _content(document, paths.content)
    data = _one(document, "data", paths.data)
    tool_calls = _all(document, "tool_calls", paths.tool_calls)
    if content is _ABSENT and data is None and tool_calls is None:
        where = f"at {paths.content}" if paths.content else f"at any of the usual places ({_SHOWN})"
        raise AgentFailed(f"the answer holds no reply {where}; {_what_there_is(document)}")
    text, structured = _text_or_data(content)
    fields = {
        "content": text,
        "data": structured if data is None else data,
        "tool_calls": tool_calls,
        "awaiting_input": _flag(document, paths.awaiting_input),
        "done": _one(document, "done", None),
        "input_hint": _one(document, "input_hint", paths.input_hint),
        "finish_reason": _one(document, "finish_reason", paths.finish_reason),
        "protocol_state": _one(document, "protocol_state", paths.protocol_state),
        "usage": _usage(document, paths.usage),
    }
    return parse_reply(fields), _one(document, "session_id", paths.session_id)


def _usage(document: Any, path: str | None) -> Any:
    """What the answer says it used; its model may stand beside that, as in chat completions."""
    usage, model = _one(document, "usage", path), _one(document, "model", None)
    if isinstance(usage, dict) and "model" not in usage and isinstance(model, str):
        return {**cast("dict[str, Any]", usage), "model": model}
    return usage


class _Absent:
    """There is not even a null."""


_ABSENT = _Absent()


def _content(document: Any, path: str | None) -> Any:
    if path is not None:
        found = _values(document, path)
        if len(found) > 1 and all(isinstance(value, str) for value in found):
            return "\n".join(found)
        return _ABSENT if not found else found[0] if len(found) == 1 else found
    if isinstance(document, str):
        return document
    there = [value for place in _USUAL["content"] if (value := _at(document, place)) is not _ABSENT]
    texts = (value for value in there if isinstance(value, str))
    return next(texts, there[0] if there else _ABSENT)


def _text_or_data(content: Any) -> tuple[str, Any]:
    """A text is the reply's content, and so are parts of text; any other structure is its data."""
    if content is _ABSENT or content is None:
        return "", None
    if isinstance(content, str):
        return content, None
    if isinstance(content, dict | list):
        texts = [_part_text(part) for part in cast("list[Any]", content)] if isinstance(content, list) else [None]
        known = [text for text in texts if text is not None]
        return ("".join(known), None) if known and len(known) == len(texts) else ("", cast("Any", content))
    return codec.compact_json(content), None


def _part_text(part: Any) -> str | None:
    text = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def _flag(document: Any, path: str | None) -> bool | None:
    value = _one(document, "awaiting_input", path)
    if value is None or isinstance(value, bool):
        return value
    raise AgentFailed(f"{path or '$.awaiting_input'} holds {codec.compact_json(value)[:60]} instead of true or false")


def _one(document: Any, name: str, path: str | None) -> Any:
    """A part that is a single value: None if it is not there."""
    if path is not None:
        found = _values(document, path)
        return None if not found else found[0] if len(found) == 1 else found
    return next((value for place in _USUAL[name] if (value := _at(document, place)) is not _ABSENT), None)


def _all(document: Any, name: str, path: str | None) -> Any:
    """A part that is a list: a path may point at it, or at each of its items."""
    if path is None:
        return _one(document, name, None)
    found = _values(document, path)
    if len(found) == 1 and (found[0] is None or isinstance(found[0], list)):
        return cast("Any", found[0])
    return found or None


def _values(document: Any, path: str) -> list[Any]:
    try:
        return values_at(path, document)
    except CheckError as broken:  # the user's path and this answer do not go together: nobody knows whose fault it is
        raise Undetermined(str(broken)) from broken


def _at(document: Any, place: Sequence[str | int]) -> Any:
    found = document
    for step in place:
        if isinstance(step, str):
            found = cast("dict[str, Any]", found).get(step, _ABSENT) if isinstance(found, dict) else _ABSENT
        else:
            found = cast("list[Any]", found)[step] if isinstance(found, list) and len(found) > step else _ABSENT
    return found


def _what_there_is(document: Any) -> str:
    if isinstance(document, dict):
        return f"its keys are {', '.join(map(repr, list(cast('dict[str, Any]', document))[:8])) or 'none'}"
    return f"it is {codec.compact_json(document)[:60]}"

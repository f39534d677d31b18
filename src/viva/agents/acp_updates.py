"""Converts updates of the Agent Client Protocol to events of a turn.

The protocol has no field for the name of a tool. Agents put it into their own `_meta`, into the call's id
(`write_file__7`), or into its first title. Without any of these, the name is the kind of the tool.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from viva.agents.cli.events import (
    CliEvent,
    TextPrinted,
    ToolEnded,
    ToolStarted,
    UsageReported,
    build_model_call,
    join_texts,
)
from viva.model import codec
from viva.model.message import MAX_TOKEN_COUNT, ModelCall

_NAME_IN_ID = re.compile(r"([A-Za-z][\w.-]*?)__\S+")
_WORD = re.compile(r"[A-Za-z_]\w*")
_OUTPUTS = ("output", "formatted_output", "aggregated_output", "stdout")


def parse_update(update: Any) -> Iterator[CliEvent]:
    """The events of a `session/update`; none for updates that are neither text nor tool calls."""
    if not isinstance(update, Mapping):
        return
    fields = cast("Mapping[str, Any]", update)
    match fields.get("sessionUpdate"):
        case "agent_message_chunk":
            content = fields.get("content")
            text = cast("Mapping[str, Any]", content).get("text") if isinstance(content, Mapping) else None
            if isinstance(text, str) and text:
                yield TextPrinted(text)
        case "tool_call":
            yield parse_tool_call(fields)
            yield from _parse_tool_end(fields)
        case "tool_call_update":
            yield ToolStarted(_find_tool_name(fields, use_title=False), fields.get("rawInput"), _get_call_id(fields))
            yield from _parse_tool_end(fields)
        case _:
            return


def parse_tool_call(call: Mapping[str, Any]) -> ToolStarted:
    """A new tool call. Without raw input, its displayed details are its arguments."""
    arguments = call.get("rawInput")
    return ToolStarted(
        _find_tool_name(call), _collect_displayed_details(call) if arguments is None else arguments, _get_call_id(call)
    )


def get_tool_kind(call: Mapping[str, Any]) -> str:
    return str(call.get("kind") or "")


def parse_usage(result: Any) -> Iterator[UsageReported]:
    """The tokens in the answer to a prompt, in the places where agents put them."""
    if not isinstance(result, Mapping):
        return
    fields = cast("Mapping[str, Any]", result)
    usage = fields.get("usage")
    if isinstance(usage, Mapping):
        yield UsageReported((_build_model_call("", cast("Mapping[str, Any]", usage), "inputTokens", "outputTokens"),))
        return
    models = _look_up(fields, "_meta", "quota", "model_usage")
    if isinstance(models, list):
        counts = [(each, _look_up(each, "token_count")) for each in cast("list[Any]", models)]
        yield UsageReported(
            tuple(
                _build_model_call(str(_look_up(each, "model") or ""), count, "input_tokens", "output_tokens")
                for each, count in counts
                if isinstance(count, Mapping)
            )
        )


def _build_model_call(model: str, counts: Mapping[str, Any], *names: str) -> ModelCall:
    input_tokens, output_tokens, cached_tokens = (
        _read_count(counts.get(name)) for name in (*names, "cachedReadTokens")
    )
    return build_model_call(
        "gemini" if model.startswith("gemini") else "", model, input_tokens, output_tokens, cached_tokens
    )


def _read_count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value <= MAX_TOKEN_COUNT else 0


def _find_tool_name(call: Mapping[str, Any], *, use_title: bool = True) -> str:
    """The tool's name. Without `use_title` it is empty if only a title or kind is there."""
    meta = call.get("_meta")
    for part in cast("Mapping[str, Any]", meta).values() if isinstance(meta, Mapping) else ():
        if isinstance(part, Mapping) and isinstance(name := part.get("toolName"), str):
            return name
    if (match := _NAME_IN_ID.fullmatch(_get_call_id(call))) is not None:
        return match[1]
    if not use_title:
        return ""
    title = str(call.get("title") or "")
    return title if _WORD.fullmatch(title) else get_tool_kind(call) or "tool"


def _get_call_id(call: Mapping[str, Any]) -> str:
    return str(call.get("toolCallId") or "")


def _collect_displayed_details(call: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"title": call["title"]} if call.get("title") else {}
    locations = call.get("locations")
    if isinstance(locations, list):
        paths = [_look_up(each, "path") for each in cast("list[Any]", locations)]
        fields |= {"paths": paths} if paths else {}
    content = call.get("content")
    for part in cast("list[Any]", content) if isinstance(content, list) else ():
        if _look_up(part, "type") == "diff":
            fields |= {"path": _look_up(part, "path"), "content": _look_up(part, "newText")}
    return fields


def _parse_tool_end(call: Mapping[str, Any]) -> Iterator[ToolEnded]:
    status = call.get("status")
    if status not in ("completed", "failed"):
        return
    output = _read_output(call)
    code = _look_up(call, "rawOutput", "exit_code")
    if status == "failed" or (isinstance(code, int) and code != 0):
        text = output if isinstance(output, str) else codec.compact_json(output)
        yield ToolEnded(_get_call_id(call), "error", text or (f"exit code {code}" if code else "failed"))
    else:
        yield ToolEnded(_get_call_id(call), "ok", output)


def _read_output(call: Mapping[str, Any]) -> Any:
    raw = call.get("rawOutput")
    if isinstance(raw, Mapping):
        return next((raw[name] for name in _OUTPUTS if isinstance(raw.get(name), str)), cast("Any", raw))
    if raw is not None:
        return raw
    content = call.get("content")
    parts = [_look_up(part, "content") for part in cast("list[Any]", content)] if isinstance(content, list) else []
    return join_texts([part for part in parts if part is not None])


def _look_up(value: Any, *path: str) -> Any:
    for step in path:
        value = cast("Mapping[str, Any]", value).get(step) if isinstance(value, Mapping) else None
    return value

"""The Responses API of the OpenAI stand-in: the same replies as for chat completions, in its own format."""

from collections.abc import Iterator, Mapping
from typing import Any

from viva.model import codec
from viva.model.message import Message, MessageRole, ToolCall
from viva.testing.model_server import MODEL, Say, split_text

_ROLES: dict[str, MessageRole] = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


def read_response_messages(body: Any) -> Iterator[Message]:
    """Yield the messages of a request to /v1/responses."""
    tool_names: dict[str, str] = {}
    if body.get("instructions"):
        yield Message("system", body["instructions"])
    items = [{"role": "user", "content": body["input"]}] if isinstance(body["input"], str) else body["input"]
    for item in items:
        match item.get("type", "message"):
            case "message":
                yield Message(_ROLES[item["role"]], _join_text(item["content"]))
            case "function_call" | "custom_tool_call":
                tool_names[item["call_id"]] = item["name"]
                arguments = item.get("arguments", item.get("input"))
                yield Message("assistant", tool_calls=(ToolCall(item["name"], arguments, item["call_id"]),))
            case "function_call_output" | "custom_tool_call_output":
                name = tool_names.get(item["call_id"])
                yield Message("tool", _join_text(item["output"]), name=name, tool_call_id=item["call_id"])
            case _:  # reasoning items, which are sent back unchanged
                pass


def _join_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return (
        "\n".join(part.get("text", "") for part in content)
        if isinstance(content, list)
        else codec.compact_json(content)
    )


def build_response(say: Say, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response to a request that does not stream."""
    whole = {"output": _build_items(say, body), "usage": _build_usage(say), **_build_incomplete_fields(say)}
    return _build_envelope(body, "completed") | whole | dict(say.extra)


def _build_incomplete_fields(say: Say) -> dict[str, Any]:
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(say.effective_finish_reason)
    return {"status": "incomplete", "incomplete_details": {"reason": reason}} if reason else {}


def build_response_stream(say: Say, body: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Return the events of a streamed response: for each item its start, its pieces and its end, and the whole response last."""
    start = _build_envelope(body, "in_progress")
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": start},
        {"type": "response.in_progress", "response": start},
    ]
    for index, item in enumerate(_build_items(say, body)):
        place = {"output_index": index, "item_id": item["id"]}
        events.append({"type": "response.output_item.added", "output_index": index, "item": _build_started_item(item)})
        match item["type"]:
            case "message":
                part, at = item["content"][0], place | {"content_index": 0}
                events.append({"type": "response.content_part.added", **at, "part": part | {"text": ""}})
                events += [
                    {"type": "response.output_text.delta", **at, "delta": piece} for piece in split_text(part["text"])
                ]
                events.append({"type": "response.output_text.done", **at, "text": part["text"]})
                events.append({"type": "response.content_part.done", **at, "part": part})
            case "function_call":
                arguments = item["arguments"]
                kind = "response.function_call_arguments"
                events += [{"type": f"{kind}.delta", **place, "delta": piece} for piece in split_text(arguments)]
                events.append({"type": f"{kind}.done", **place, "arguments": arguments})
            case _:
                pass
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    response = build_response(say, body)
    events.append({"type": f"response.{response['status']}", "response": response})
    for number, event in enumerate(events):
        event["sequence_number"] = number
    return tuple(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), codec.encode(event)) for event in events)


def _build_items(say: Say, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    turn = body.get("turn", 1)
    if say.thought:
        summary = [{"type": "summary_text", "text": say.thought}]
        items.append({"type": "reasoning", "id": f"rs_{turn}", "summary": summary, "encrypted_content": None})
    if say.content:
        text = {"type": "output_text", "text": say.content, "annotations": []}
        items.append(
            {"type": "message", "id": f"msg_{turn}", "role": "assistant", "status": "completed", "content": [text]}
        )
    for index, call in enumerate(say.tool_calls):
        arguments = call.arguments if isinstance(call.arguments, str) else codec.compact_json(call.arguments or {})
        names = {"id": f"fc_{turn}_{index + 1}", "call_id": call.id or f"call_{index + 1}", "name": call.name}
        space = _build_namespace_field(call.name, body)
        items.append({"type": "function_call", **names, **space, "arguments": arguments, "status": "completed"})
    return items


def _build_namespace_field(name: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Return the field `namespace` of a tool call, if the request has the tool in a namespace, as Codex has MCP tools."""
    spaces = [tool for tool in body.get("tools") or () if tool.get("type") == "namespace"]
    names = [space["name"] for space in spaces if name in [tool.get("name") for tool in space["tools"]]]
    return {"namespace": names[0]} if names else {}


def _build_started_item(item: dict[str, Any]) -> dict[str, Any]:
    empty = {"message": {"content": []}, "function_call": {"arguments": ""}}.get(item["type"])
    return item if empty is None else item | empty | {"status": "in_progress"}


def _build_usage(say: Say) -> dict[str, Any]:
    return {
        "input_tokens": say.input_tokens,
        "input_tokens_details": {"cached_tokens": say.cached_tokens},
        "output_tokens": say.output_tokens,
        "output_tokens_details": {"reasoning_tokens": say.reasoning_tokens},
        "total_tokens": say.input_tokens + say.output_tokens,
    }


def _build_envelope(body: Mapping[str, Any], status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{body.get('turn', 1)}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": body.get("model", MODEL),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }

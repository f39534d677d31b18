"""Reads the events of one AG-UI run into a reply."""

from collections.abc import Mapping
from typing import Any, cast

from msgspec import structs

from viva.agents.json_objects import as_list, as_object, get_text
from viva.agents.replies import parse_model_calls
from viva.agents.streamed_reply import StreamedReply
from viva.errors import AgentFailed
from viva.model import codec
from viva.model.ellipsis import cut_end
from viva.model.message import ModelCall, Reply, ToolCall
from viva.model.progress import CallProgress

_MAX_SHOWN = 200
_MAX_COPIED = 16 * 1024 * 1024
"""How many bytes one patch may copy: copies of copies double the state."""
_USAGE_NAMES = {
    "provider": "provider",
    "model": "model",
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cachedInputTokens": "cached_tokens",
}


class RunReader:
    """Reads one run: its reply so far, the shared state, the interrupts that it ended with, and the messages of a snapshot."""

    def __init__(self, progress: CallProgress, state: Any) -> None:
        self._state = {"": state}  # changed in place by patches
        self.interrupts: list[str] = []
        self.messages: list[Any] | None = None
        self.usage: tuple[ModelCall, ...] = ()
        self.has_events = False
        self.is_finished = False
        self._streamed = StreamedReply(progress)
        self._message = ""
        self._last_call = ""
        self._has_state_changed = False

    def add(self, data: bytes) -> None:
        """Adds one event. What is not an event of the protocol is the agent's failure; unknown types are ignored."""
        try:
            value = codec.decode(data)
        except codec.DecodeError as error:
            raise AgentFailed(f"it sent an event that is not JSON: {error}") from error
        event = as_object(value)
        kind = event.get("type")
        if not isinstance(kind, str):
            raise AgentFailed("it sent an event without a type")
        self.has_events = True
        match kind:
            case "TEXT_MESSAGE_CONTENT" | "TEXT_MESSAGE_CHUNK":
                self._add_text(event)
            case "TEXT_MESSAGE_START" | "TEXT_MESSAGE_END":
                self._streamed.end_message()
            case "TOOL_CALL_START" | "TOOL_CALL_ARGS" | "TOOL_CALL_CHUNK":
                self._add_call(event)
            case "TOOL_CALL_RESULT":
                self._streamed.add_result(get_text(event, "toolCallId"), event.get("content"))
            case "STATE_SNAPSHOT":
                self._state, self._has_state_changed = {"": event.get("snapshot")}, True
            case "STATE_DELTA":
                apply_patch(self._state, event.get("delta"))
                self._has_state_changed = True
            case "MESSAGES_SNAPSHOT":
                messages = event.get("messages")
                self.messages = cast("list[Any]", messages) if isinstance(messages, list) else self.messages
            case "RUN_FINISHED":
                self._end_run(event)
            case "RUN_ERROR":
                raise AgentFailed(cut_end(get_text(event, "message"), _MAX_SHOWN) or "it ended the run with an error")
            case _:
                return

    def copy_state(self) -> Any:
        """The shared state. One that patches have nested too deeply is the agent's failure."""
        try:
            return codec.to_plain_checked(self._state[""])
        except (ValueError, RecursionError) as error:
            raise AgentFailed(f"its state cannot be used: {error}") from error

    def build_reply(self) -> Reply:
        """The reply so far."""
        reply = self._streamed.build()
        data = self.copy_state() if reply.data is None and self._has_state_changed else reply.data
        return structs.replace(reply, data=data, calls=self.usage)

    def _add_text(self, event: Mapping[str, Any]) -> None:
        message = get_text(event, "messageId") or self._message
        if message != self._message:
            self._streamed.end_message()
            self._message = message
        self._streamed.add_text(get_text(event, "delta"))

    def _add_call(self, event: Mapping[str, Any]) -> None:
        call = self._last_call = get_text(event, "toolCallId") or self._last_call
        if name := get_text(event, "toolCallName"):
            self._streamed.add_call(ToolCall(name, id=call))
        if delta := get_text(event, "delta"):
            self._streamed.add_arguments(call, delta)

    def _end_run(self, event: Mapping[str, Any]) -> None:
        self.is_finished = True
        outcome = as_object(event.get("outcome"))
        if event.get("outcome") == "interrupt":  # drafts of the protocol
            outcome = {"type": "interrupt", "interrupts": [event.get("interrupt")]}
        if outcome.get("type") == "cancelled":
            raise AgentFailed("it cancelled the run")
        self.usage = parse_model_calls([_rename_usage(as_object(each)) for each in as_list(event.get("usage"))])
        if event.get("result") is not None:
            self._streamed.set_fields(data=event["result"])
        self._streamed.mark_pending(
            {each for each in as_list(outcome.get("pendingToolCallIds")) if isinstance(each, str)}
        )
        if outcome.get("type") != "interrupt":
            return
        interrupts = [as_object(each) for each in as_list(outcome.get("interrupts"))]
        self.interrupts = [get_text(each, "id") for each in interrupts if get_text(each, "id")]
        hints = [get_text(each, "message") or get_text(each, "reason") for each in interrupts]
        self._streamed.mark_pending({get_text(each, "toolCallId") for each in interrupts})
        self._streamed.set_fields(protocol_state="input-required", input_hint="\n".join(filter(None, hints)) or None)


def apply_patch(holder: dict[str, Any], operations: Any) -> None:
    """Changes the state in `holder` by a JSON Patch. One that does not fit is the agent's failure."""
    copied = 0
    try:
        for operation in cast("list[Any]", operations):
            path = ["", *_split_pointer(operation["path"])]
            kind = operation["op"]
            if kind in ("move", "copy"):
                source = ["", *_split_pointer(operation["from"])]
                encoded = codec.encode(_get_at(holder, source))
                value, copied = codec.decode(encoded), copied + len(encoded)
                if copied > _MAX_COPIED:
                    raise ValueError("it copies too much")
                if kind == "move":
                    _apply_operation(holder, source, "remove", None)
                _apply_operation(holder, path, "add", value)
            elif kind == "test":
                if _get_at(holder, path) != operation["value"]:
                    raise ValueError("a test of the patch fails")
            else:
                _apply_operation(holder, path, kind, operation.get("value"))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise AgentFailed(cut_end(f"its STATE_DELTA does not fit the state: {error!r}", _MAX_SHOWN)) from error


def _split_pointer(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _get_at(value: Any, path: list[str]) -> Any:
    for part in path:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def _apply_operation(holder: Any, path: list[str], kind: str, value: Any) -> None:
    parent, last = _get_at(holder, path[:-1]), path[-1]
    match kind:
        case "add" if isinstance(parent, list):
            cast("list[Any]", parent).insert(len(cast("list[Any]", parent)) if last == "-" else int(last), value)
        case "add":
            parent[last] = value
        case "replace":
            _get_at(holder, path)
            parent[int(last) if isinstance(parent, list) else last] = value
        case "remove":
            del parent[int(last) if isinstance(parent, list) else last]
        case _:
            raise ValueError(f"unknown operation {kind!r}")


def _rename_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {ours: usage[theirs] for theirs, ours in _USAGE_NAMES.items() if theirs in usage}

"""Replies that an HTTP endpoint streams: server-sent events, JSON lines or plain text.

Each event is a JSON object in which paths find a piece of text, tool calls and the end. Without paths the usual places are
tried: those of OpenAI's, Anthropic's and Ollama's APIs among them.
"""

import codecs
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, cast

from msgspec import Struct

from viva.agents.replies import parse_declared_state, parse_model_calls, parse_tool_calls
from viva.agents.reply_paths import (
    ABSENT,
    find_tool_calls,
    find_usage,
    find_value,
    find_values,
    get_at_path,
    read_awaiting_flag,
)
from viva.agents.streamed_reply import StreamedReply
from viva.errors import AgentFailed
from viva.llm.calls import extract_error_message
from viva.llm.sse import LineParser, SseEvent, SseParser
from viva.model import codec
from viva.model.message import Reply

StreamFormat = Literal["sse", "json_lines", "text"]
_END_NAMES = frozenset({"end", "done", "close"})
_CHOICE = ("choices", 0)
_USUAL_DELTAS = (
    ("delta",), (*_CHOICE, "delta", "content"), ("delta", "text"), ("delta", "content"), ("token",), ("text",), ("content",),
    ("message", "content"), ("response",),
)  # fmt: skip
_USUAL_CALLS = (*_CHOICE, "delta", "tool_calls")
_NO_TEXT = ("reasoning", "thinking", "tool", "function", "call_arguments", "call_code")
"""Types of events whose `delta` is not text of the reply."""
_WHOLE = ".done"
"""The end of the types of events that have the whole text of a message."""
_SHOWN = 80
_HEAD_BYTES = 4000


class StreamPaths(Struct, frozen=True):
    """Where the parts of a reply are in an event. `delta_when` and `done_when` map paths to the values that an event must have
    there. `parts` are the paths of everything else, as in an answer that is not streamed.
    """

    delta: str | None = None
    delta_when: Mapping[str, Any] = {}
    done: str | None = None
    done_when: Mapping[str, Any] = {}
    parts: Mapping[str, str] = {}


class StreamReader:
    """Reads one streamed answer into a reply."""

    def __init__(
        self, kind: StreamFormat, paths: StreamPaths, streamed: StreamedReply, secrets: tuple[str, ...]
    ) -> None:
        self._kind: StreamFormat = kind
        self._paths = paths
        self._streamed = streamed
        self._secrets = secrets
        self._head = b""
        self._count = 0
        self._first = b""
        self._is_done = False
        self._last_usage: Any = None
        self.session_id: Any = None
        self._is_ended = False
        self._has_documents = False
        self._call_keys: dict[int, tuple[str, Any]] = {}  # key and id of the last call with an index

    async def read(self, chunks: AsyncIterator[bytes]) -> Reply:
        """Reads the stream to its end and returns the reply. A stream without a reply is the agent's failure."""
        if self._kind == "text":
            return await self._read_text(chunks)
        parser = SseParser() if self._kind == "sse" else LineParser()
        async for chunk in chunks:
            self._head += chunk[: _HEAD_BYTES - len(self._head)]
            for event in parser.feed_events(chunk):
                self._add_event(event)
            if self._is_done:
                break
        else:
            self._is_ended = True
            for event in parser.feed_events(b"\n\n"):  # the last one may lack its end
                self._add_event(event)
        return self._finish()

    async def _read_text(self, chunks: AsyncIterator[bytes]) -> Reply:
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        async for chunk in chunks:
            self._streamed.add_text(decoder.decode(chunk))
        self._streamed.add_text(decoder.decode(b"", final=True))
        reply = self._streamed.build()
        if not reply.content:
            raise AgentFailed("answer is empty")
        return reply

    def _finish(self) -> Reply:
        self._streamed.add_piece(Reply(calls=parse_model_calls(self._last_usage)))
        reply = self._streamed.build()
        has_end = self._paths.done is not None or bool(self._paths.done_when)
        if has_end and not self._is_done:
            raise AgentFailed("the stream ended before its end by `done`")
        if not reply.content and reply.data is None and not reply.tool_calls:
            raise AgentFailed(self._explain_no_reply())
        return reply

    def _explain_no_reply(self) -> str:
        shown = extract_error_message(self._first or self._head, self._secrets, _SHOWN)
        if not shown:
            return "answer is empty"
        if not self._count:
            return f"the answer has no events: {shown}; remove `stream` if the agent does not stream"
        hint = "`delta` finds no text in them" if self._paths.delta else "set `delta` to the path of their text"
        return f"the stream has no reply in its {self._count} events: {hint}; the first is {shown}"

    def _add_event(self, event: SseEvent) -> None:
        if self._is_done:
            return
        self._count += 1
        self._first = self._first or event.data
        if event.data.strip() == b"[DONE]":
            self._is_done = True
            return
        if event.name == "error":
            raise AgentFailed(f"the stream has an error: {extract_error_message(event.data, self._secrets)}")
        document = self._decode(event.data)
        if isinstance(document, str):
            self._streamed.add_text(document)
        else:
            self._add_json_event(document, event.data)
        self._is_done = self._is_done or event.name in _END_NAMES

    def _decode(self, data: bytes) -> Any:
        """The value of an event. Without `delta`, an event that is no JSON is text of the reply, unless it looks like a broken object."""
        try:
            value = codec.decode(data)
        except codec.DecodeError as error:
            if self._is_ended and self._has_documents:
                raise AgentFailed(f"the stream ended in the middle of event {self._count}") from error
            is_broken = data.startswith(b'{"') and data.endswith(b"}")
            if self._kind == "sse" and self._paths.delta is None and not is_broken:
                return data.decode(errors="replace")
            shown = extract_error_message(data, self._secrets, _SHOWN)
            raise AgentFailed(f"event {self._count} of the stream is not JSON: {shown} ({error})") from error
        return value if isinstance(value, str | dict | list) else data.decode(errors="replace")

    def _add_json_event(self, document: Any, data: bytes) -> None:
        self._has_documents = True
        text = self._find_delta(document)
        if text and self._paths.delta is None and str(get_at_path(document, ("type",))).endswith(_WHOLE):
            self._streamed.add_message(text)
        elif text:
            self._streamed.add_text(text)
        has_calls = self._add_calls(document)
        self._add_parts(document)
        paths = self._paths
        if paths.done is None and not paths.done_when:
            self._is_done = get_at_path(document, ("done",)) is True
        elif _matches(document, paths.done_when):
            values = find_values(document, paths.done) if paths.done is not None else [True]
            self._is_done = any(value not in (None, False, "") for value in values)
        error = get_at_path(document, ("error",))
        if error not in (ABSENT, None, False, "") and not text and not has_calls:
            raise AgentFailed(f"the stream has an error: {extract_error_message(data, self._secrets)}")

    def _find_delta(self, document: Any) -> str:
        if not _matches(document, self._paths.delta_when):
            return ""
        if self._paths.delta is not None:
            values = find_values(document, self._paths.delta)
            return "".join(value for value in values if isinstance(value, str))
        kind = get_at_path(document, ("type",))
        if isinstance(kind, str) and any(word in kind.lower() for word in _NO_TEXT):
            return ""
        values = (get_at_path(document, path) for path in _USUAL_DELTAS)
        return next((value for value in values if isinstance(value, str)), "")

    def _add_calls(self, document: Any) -> bool:
        """Adds tool calls: whole ones, or fragments with an `index`."""
        path = self._paths.parts.get("tool_calls")
        calls = find_tool_calls(document, path)
        if calls is None and path is None and (usual := get_at_path(document, _USUAL_CALLS)) is not ABSENT:
            calls = usual
        if calls is None:
            return False
        if not isinstance(calls, list):
            calls = [calls]
        for call in cast("list[Any]", calls):
            at = cast("dict[str, Any]", call).get("index") if isinstance(call, dict) else None
            if type(at) is int:
                self._add_call_fragment(at, cast("dict[str, Any]", call))
            else:
                for whole in parse_tool_calls([call]):
                    self._streamed.add_call(whole)
        return bool(calls)

    def _add_call_fragment(self, at: int, call: dict[str, Any]) -> None:
        function = call.get("function")
        source = cast("dict[str, Any]", function) if isinstance(function, dict) else call
        key, known = self._call_keys.get(at, (f"index {at}", None))
        arguments = source.get("arguments")
        if source.get("name"):
            if known and call.get("id") and call["id"] != known:  # some agents send all calls with the index 0
                key += "'"
            self._call_keys[at] = key, call.get("id") or known
            whole = {"id": call.get("id"), "name": source["name"]}
            self._streamed.add_call(parse_tool_calls([whole])[0], key)
        if arguments is not None:
            text = arguments if isinstance(arguments, str) else codec.compact_json(arguments)
            self._streamed.add_arguments(key, text)

    def _add_parts(self, document: Any) -> None:
        paths = self._paths.parts
        fields: dict[str, Any] = {}
        for name in ("input_hint", "finish_reason", "protocol_state"):
            if (value := find_value(document, name, paths.get(name))) is not None:
                fields[name] = value if isinstance(value, str) else codec.compact_json(value)
        if (flag := read_awaiting_flag(document, paths.get("awaiting_input"))) is not None:
            fields["declared_state"] = parse_declared_state(flag)
        if "data" in paths and (value := find_value(document, "data", paths["data"])) is not None:
            fields["data"] = value
        if fields:
            self._streamed.set_fields(**fields)
        if "content" in paths:
            for text in find_values(document, paths["content"]):
                if isinstance(text, str) and text:
                    self._streamed.add_message(text)
        self._last_usage = find_usage(document, paths.get("usage")) or self._last_usage
        session_id = find_value(document, "session_id", paths.get("session_id"))
        self.session_id = self.session_id if session_id is None else session_id


def _matches(document: Any, conditions: Mapping[str, Any]) -> bool:
    return all(expected in find_values(document, path) for path, expected in conditions.items())

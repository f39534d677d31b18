"""A reply that arrives in pieces: texts of one or more messages, tool calls and their results, then the rest."""

import time
from collections.abc import Collection
from typing import Any

from msgspec import UNSET, structs

from viva.agents.step_log import StepLog
from viva.errors import AgentFailed
from viva.model import codec
from viva.model.message import ModelCall, Reply, ToolCall
from viva.model.progress import CallProgress

MAX_SIZE = 64 * 1024 * 1024
_PIECE_SIZE = 16
"""What each piece counts in addition to its length, so that an endless stream of empty pieces ends, too."""
_LAST_COUNTS = ("data", "declared_state", "input_hint", "finish_reason", "protocol_state")


class StreamedReply:
    """Collects the pieces of a reply. With the `progress` of the call, the time from `started` to the first text is
    measured.
    """

    def __init__(self, progress: CallProgress | None = None, started: float = 0.0) -> None:
        self._progress = progress
        self._started = started or time.perf_counter()
        self._first_token_ms: float | None = None
        self._messages: list[list[str]] = []
        self._is_open = False
        self._tool_calls: dict[str, ToolCall] = {}
        self._tool_times = StepLog(self._started)
        self._arguments: dict[str, list[str]] = {}  # of calls whose arguments come in pieces, by key
        self._fields: dict[str, Any] = {}
        self._model_calls: list[ModelCall] = []
        self._size = 0

    def add_text(self, text: str) -> None:
        """Adds a piece of the current message, or of a new one after `end_message`."""
        self._count_size(text)
        if not text:
            return
        if self._first_token_ms is None and self._progress is not None:
            self._first_token_ms = self._progress.compute_elapsed_ms(self._started)
        if not self._is_open:
            self._messages.append([])
            self._is_open = True
        self._messages[-1].append(text)

    def end_message(self) -> None:
        self._is_open = False

    def add_message(self, text: str) -> None:
        """Add a whole message, unless its pieces have arrived before."""
        if not self._is_open or "".join(self._messages[-1]) != text:
            self.end_message()
            self.add_text(text)
        self.end_message()

    def add_call(self, call: ToolCall, key: str = "") -> None:
        """Add a tool call, or merge it into the one with the same key, which is usually its id."""
        self._count_size(call.name)
        key = key or call.id or f"#{len(self._tool_calls)}"
        if (known := self._tool_calls.get(key)) is not None:
            changes = {
                name: value
                for name in ("arguments", "result", "error")
                if (value := getattr(call, name)) is not None and value is not UNSET
            }
            call = structs.replace(known, **changes, pending=call.pending, refused=call.refused or known.refused)
        self._tool_calls[key] = call
        self._tool_times.start_tool(key, call.name)
        if call.result is not UNSET or call.error is not None:
            self._tool_times.end_tool(key)

    def add_arguments(self, key: str, text: str) -> None:
        """Adds a piece of the arguments of a call. Together the pieces are JSON."""
        self._count_size(text)
        self._arguments.setdefault(key, []).append(text)

    def mark_pending(self, keys: Collection[str]) -> None:
        """Mark the calls with these keys as waiting, for example for an approval."""
        for key, call in self._tool_calls.items():
            if key in keys:
                self._tool_calls[key] = structs.replace(call, pending=True)

    def add_result(self, key: str, result: Any, error: str | None = None) -> None:
        """Add the result of a tool call, found by the call's id or else by the tool's name. An unknown call is ignored."""
        for known, call in self._tool_calls.items():
            if key in (call.id, call.name) and call.result is UNSET and call.error is None:
                self._tool_times.end_tool(known)
                self._tool_calls[known] = (
                    structs.replace(call, result=result, pending=False)
                    if error is None
                    else structs.replace(call, error=error, pending=False)
                )
                return

    def add_piece(self, piece: Reply) -> None:
        """Adds a piece with more than text. Its content is a whole message; of its other fields the last value counts."""
        for text in piece.parts or ((piece.content,) if piece.content else ()):
            self.add_message(text)
        for call in piece.tool_calls:
            self.add_call(call)
        self._model_calls += piece.calls
        self._tool_times.add_steps(piece.steps)
        self.set_fields(**{name: value for name in _LAST_COUNTS if (value := getattr(piece, name)) is not None})

    def set_fields(self, **fields: Any) -> None:
        """Sets fields of the reply: data, declared_state, input_hint, finish_reason, protocol_state."""
        self._count_size("")
        self._fields |= fields

    def build(self) -> Reply:
        """The reply so far."""
        texts = tuple("".join(pieces) for pieces in self._messages)
        return Reply(
            "\n".join(texts),
            tool_calls=tuple(self._with_arguments(key, call) for key, call in self._tool_calls.items()),
            calls=tuple(self._model_calls),
            parts=texts if len(texts) > 1 else (),
            first_token_ms=self._first_token_ms,
            steps=self._tool_times.build(),
            **self._fields,
        )

    def _with_arguments(self, key: str, call: ToolCall) -> ToolCall:
        if not (pieces := self._arguments.get(key)):
            return call
        text = "".join(pieces)
        try:
            return structs.replace(call, arguments=codec.decode(text))
        except codec.DecodeError:
            return structs.replace(call, arguments=text)

    def _count_size(self, text: str) -> None:
        self._size += len(text) + _PIECE_SIZE
        if self._size > MAX_SIZE:
            raise AgentFailed(f"streamed more than {MAX_SIZE} bytes")

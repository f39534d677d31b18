"""Parses chat completions, complete or streamed."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import Struct, field

from viva.agents.model_session import Completion, OnText, decode_answer, skip_rest
from viva.agents.openai_messages import encode_assistant
from viva.errors import Unreachable
from viva.llm.sse import SseParser
from viva.model import codec
from viva.model.message import TokenCount, ToolCall


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class _Call(Struct, gc=False):
    id: str | None = None
    function: _Function = field(default_factory=_Function)
    index: int | None = None
    extra_content: Any = None
    """Gemini's signature of what it thought: without it the call is refused when it is sent back."""


class _Message(Struct, gc=False):
    role: str | None = None
    content: str | list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct, gc=False):
    message: msgspec.Raw = msgspec.Raw(b"{}")
    delta: _Message = field(default_factory=_Message)
    finish_reason: str | None = None


class _Cached(Struct, gc=False):
    cached_tokens: TokenCount | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: TokenCount | None = None
    completion_tokens: TokenCount | None = None
    prompt_tokens_details: _Cached | None = None


class _Answer(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


_answers = codec.Decoder[_Answer](_Answer)
_messages = codec.Decoder[_Message](_Message)


def parse_completion(body: bytes) -> Completion:
    """The completion in an answer. Anything else is the provider's fault."""
    answer = _decode(body)
    if not answer.choices:
        raise Unreachable("the answer has no choices")
    choice = answer.choices[0]
    message_in = decode_answer(_messages, choice.message, "a chat completion")
    content, calls = _read_text(message_in), _read_calls(message_in.tool_calls or ())
    # A model may refuse to take back a message without role or content.
    usable = message_in.role == "assistant" and (message_in.content is not None or calls)
    message = bytes(choice.message) if usable else encode_assistant(content, calls)
    return Completion(message, content, calls, choice.finish_reason, answer.model or "", *_count_tokens(answer.usage))


async def parse_completion_stream(chunks: AsyncIterator[bytes], on_text: OnText) -> Completion:
    """The completion from a stream of deltas. It may end without `[DONE]`, but not without a finish reason."""
    events, joiner = SseParser(), _DeltaJoiner(on_text)
    async for chunk in chunks:
        for event in events.feed_data(chunk):
            joiner.add(event)
        if joiner.is_done:
            await skip_rest(chunks)
            break
    else:
        for event in events.feed_eof():
            joiner.add(event)
    return joiner.completion()


class _DeltaJoiner:
    """Joins the deltas of a stream to one message."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._texts: list[str] = []
        self._calls: dict[tuple[int, int], _Call] = {}
        self._last_at: dict[int, int] = {}  # the number of the last call with an index
        self._arguments: dict[tuple[int, int], list[str]] = {}
        self._finish_reason: str | None = None
        self._model: str | None = None
        self._usage: _Usage | None = None
        self.is_done = False

    def add(self, event: bytes) -> None:
        if self.is_done:
            return
        if event.strip() == b"[DONE]":
            self.is_done = True
            return
        answer = _decode(event)
        self._model = answer.model or self._model
        self._usage = answer.usage or self._usage
        for choice in (answer.choices or ())[:1]:
            self._finish_reason = choice.finish_reason or self._finish_reason
            if text := _read_text(choice.delta):
                self._on_text(text)
                self._texts.append(text)
            for call in choice.delta.tool_calls or ():
                self._add_call(call)

    def _add_call(self, delta: _Call) -> None:
        at = self._choose_place(delta)
        call = self._calls.setdefault(at, _Call())
        call.id = call.id or delta.id
        call.function.name = call.function.name or delta.function.name
        call.extra_content = call.extra_content or delta.extra_content
        if (arguments := delta.function.arguments) is not None:
            self._arguments.setdefault(at, []).append(
                arguments if isinstance(arguments, str) else codec.compact_json(arguments)
            )

    def _choose_place(self, delta: _Call) -> tuple[int, int]:
        """The call that a delta belongs to. Some servers send calls without an index, or all with the index 0: then another
        id begins another call. Where there is an index, a name has to come with it: some servers send a new id with each piece.
        """
        index = delta.index or 0
        number = self._last_at.setdefault(index, 0)
        call = self._calls.get((index, number))
        begins = delta.index is None or bool(delta.function.name)
        if call is not None and call.id and delta.id and delta.id != call.id and begins:
            self._last_at[index] = number = number + 1
        return index, number

    def completion(self) -> Completion:
        if not self.is_done and self._finish_reason is None:
            raise Unreachable("the stream ended before the answer did")
        for at, call in self._calls.items():
            call.function.arguments = "".join(self._arguments.get(at, ()))
        deltas = [call for _, call in sorted(self._calls.items())]
        content, calls = "".join(self._texts), _read_calls(deltas)
        extras = [{"extra_content": each.extra_content} if each.extra_content else {} for each in deltas]
        message = encode_assistant(content or (None if calls else ""), calls, extras)
        return Completion(message, content, calls, self._finish_reason, self._model or "", *_count_tokens(self._usage))


def _decode(body: bytes) -> _Answer:
    return decode_answer(_answers, body, "a chat completion")


def _count_tokens(usage: _Usage | None) -> tuple[int, int, int]:
    if usage is None:
        return 0, 0, 0
    cached = usage.prompt_tokens_details
    return usage.prompt_tokens or 0, usage.completion_tokens or 0, 0 if cached is None else cached.cached_tokens or 0


def _read_text(message_in: _Message) -> str:
    """The text, else the refusal. Some servers send a list of parts."""
    content = message_in.content
    if isinstance(content, list):
        content = "".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        )
    return content or message_in.refusal or ""


def _read_calls(calls: "list[_Call] | tuple[()]") -> list[ToolCall]:
    return [
        ToolCall(call.function.name or "", call.function.arguments, call.id or f"call_{number}")
        for number, call in enumerate(calls, 1)
    ]

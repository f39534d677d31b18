"""Events of a CLI's turn, and the reply that they add up to.

A `CliSpec` parses them from the lines of its stream. Other lines have no events: an invalid line cannot end a turn.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, structs

from viva.agents.step_log import StepLog
from viva.llm.price import compute_cost
from viva.model.connector import Connector
from viva.model.message import ModelCall, Reply, ToolCall

ResultStatus = Literal["ok", "error", "refused"]


class SessionStarted(Struct, frozen=True, tag="session"):
    """The id of the session, and the model if it is known."""

    id: str
    model: str = ""


class TextPrinted(Struct, frozen=True, tag="text"):
    """A piece of the agent's text, or with `is_new_message` a new message."""

    text: str
    is_new_message: bool = False


class ToolStarted(Struct, frozen=True, tag="tool_call"):
    """A tool was called. A second event with the same id adds details."""

    name: str
    arguments: Any = None
    id: str = ""


class ToolEnded(Struct, frozen=True, tag="tool_result"):
    """A tool has ended or was refused. Without an id it is the last one that was called without an id."""

    id: str
    status: ResultStatus = "ok"
    output: Any = ""


class UsageReported(Struct, frozen=True, tag="usage"):
    """The usage of models in one step, in this turn, or in the session so far.

    `turn_tokens` is the usage of the turn alone by another count, for CLIs whose versions differ in scope.
    """

    calls: tuple[ModelCall, ...]
    scope: Literal["step", "turn", "session"] = "turn"
    id: str = ""
    turn_tokens: int | None = None


class TroubleReported(Struct, frozen=True, tag="trouble"):
    """The CLI reports a problem and continues. A warning is part of the report, however the turn ends."""

    text: str
    is_warning: bool = False


class InputRequested(Struct, frozen=True, tag="awaiting"):
    """The agent waits for input. `state` is the protocol's name for that, `hint` what it needs."""

    state: str
    hint: str = ""


class CliTurnEnded(Struct, frozen=True, tag="turn_end"):
    """The CLI ends the turn, with success or an `error`. An empty error text means that the error was reported before.
    `result` is the CLI's own final text.
    """

    error: str | None = None
    finish_reason: str | None = None
    result: Any = None


CliEvent = (
    SessionStarted
    | TextPrinted
    | ToolStarted
    | ToolEnded
    | UsageReported
    | TroubleReported
    | InputRequested
    | CliTurnEnded
)


def build_model_call(
    provider: str, model: str, input_tokens: int, output_tokens: int, cached_tokens: int, cost: float | None = None
) -> ModelCall:
    """The usage of a model. The cost is what the CLI reports, else computed from the price table. Negative
    numbers count as 0: they would let other calls exceed a limit.
    """
    input_tokens, output_tokens, cached_tokens = max(0, input_tokens), max(0, output_tokens), max(0, cached_tokens)
    if cost is None or cost < 0:
        cost = compute_cost(Connector(name="", provider=provider), model, input_tokens, output_tokens, cached_tokens)
    return ModelCall(model, provider, input_tokens, output_tokens, cached_tokens, cost)


class CliTurn:
    """A running turn. `previous_usage` is the usage of the session before this turn, for CLIs that count per session; `model` is the
    requested one, if the CLI reports none. With `started`, the time until its first text is measured.
    """

    def __init__(self, previous_usage: Sequence[ModelCall] = (), model: str = "", started: float | None = None) -> None:
        self._started = started
        self._first_token_ms: float | None = None
        self._model = model
        self.session: str | None = None
        self.end: CliTurnEnded | None = None
        self.session_usage: tuple[ModelCall, ...] = tuple(previous_usage)
        self._before = {call.model: call for call in previous_usage}
        self._texts: list[list[str]] = []  # the pieces of each message
        self._calls: dict[str, ToolCall] = {}
        self._tool_times = StepLog(started)
        self._steps: dict[str, tuple[ModelCall, ...]] = {}
        self._turn: tuple[ModelCall, ...] | None = None
        self._input_request: InputRequested | None = None
        self._trouble = ""
        self.warnings: dict[str, None] = {}  # ordered, without duplicates

    def add_event(self, event: CliEvent) -> None:
        match event:
            case SessionStarted(id=session, model=model):
                self.session, self._model = session or self.session, self._model or model
            case TextPrinted(text=text, is_new_message=begins):
                self._add_text(text, begins=begins)
            case ToolStarted():
                self._start_call(event)
            case ToolEnded():
                self._end_call(event)
            case UsageReported():
                self._add_usage(event)
            case InputRequested():
                self._input_request = event
            case CliTurnEnded(error=""):
                self.end = CliTurnEnded(self._trouble or "it ended with an error", event.finish_reason, event.result)
            case CliTurnEnded():
                self.end = event
            case TroubleReported(text=text, is_warning=is_warning):
                self._trouble = text
                if is_warning and text:
                    self.warnings[text] = None

    def _add_text(self, text: str, *, begins: bool) -> None:
        if self._started is not None and self._first_token_ms is None and text:
            self._first_token_ms = (time.perf_counter() - self._started) * 1e3
        if begins or not self._texts:
            self._texts.append([])
        self._texts[-1].append(text)

    def _start_call(self, event: ToolStarted) -> None:
        key = event.id or f"#{len(self._calls)}"
        call = self._calls.get(key)
        arguments = event.arguments if event.arguments or call is None else call.arguments
        if call is None:
            self._calls[key] = ToolCall(event.name, arguments, event.id)
            self._tool_times.start_tool(key, event.name)
        else:
            self._calls[key] = structs.replace(call, name=call.name or event.name, arguments=arguments)

    def _end_call(self, event: ToolEnded) -> None:
        key = event.id or self._find_open_call()
        if (call := self._calls.get(key)) is None:
            return
        self._tool_times.end_tool(key)
        if event.status == "ok":
            self._calls[key] = ToolCall(call.name, call.arguments, call.id, event.output)
        else:
            text = event.output if isinstance(event.output, str) and event.output else call.error or event.status
            refused = call.refused or event.status == "refused"  # often reported twice, the second time as a failure
            self._calls[key] = ToolCall(call.name, call.arguments, call.id, error=text, refused=refused)

    def _find_open_call(self) -> str:
        """The key of the last call without an id that has not ended: a result without an id is of that call."""
        open_keys = (
            key
            for key, call in reversed(self._calls.items())
            if not call.id and call.result is UNSET and call.error is None
        )
        return next(open_keys, "")

    def _add_usage(self, event: UsageReported) -> None:
        calls = tuple(call if call.model else _name_model(self._model, call) for call in event.calls)
        if event.scope == "step":
            self._steps[event.id or f"#{len(self._steps)}"] = calls
        elif event.scope == "turn":
            self._turn = calls
        else:
            is_session_total = (
                event.turn_tokens is None
                or _sum_tokens(calls) >= _sum_tokens(self._before.values()) + event.turn_tokens
            )
            self.session_usage = calls
            self._turn = (
                tuple(_subtract_usage(call, self._before.get(call.model)) for call in calls)
                if is_session_total
                else calls
            )

    def get_tool_name(self, call: str) -> str:
        """The name of a call's tool."""
        return self._calls[call].name if call in self._calls else ""

    @property
    def usage(self) -> tuple[ModelCall, ...]:
        """The usage of models in this turn, as far as the CLI reports it."""
        calls = self._turn if self._turn is not None else [call for step in self._steps.values() for call in step]
        return tuple(call for call in calls if call.input_tokens or call.output_tokens)

    def build_reply(self) -> Reply:
        request = self._input_request
        texts = ["".join(pieces) for pieces in self._texts]
        messages = tuple(filter(None, texts))
        return Reply(
            content="\n".join(texts),
            parts=messages if len(messages) > 1 else (),
            first_token_ms=self._first_token_ms,
            tool_calls=tuple(self._calls.values()),
            steps=self._tool_times.build(),
            finish_reason=self.end.finish_reason if self.end else None,
            protocol_state=request.state if request else None,
            input_hint=(request.hint or None) if request else None,
            calls=self.usage,
        )


def _name_model(model: str, call: ModelCall) -> ModelCall:
    """The call with its model's name, which may start with the provider."""
    provider, slash, name = model.rpartition("/")
    provider = provider if slash else call.provider
    return build_model_call(provider, name, call.input_tokens, call.output_tokens, call.cached_tokens, call.cost_usd)


def _subtract_usage(now: ModelCall, before: ModelCall | None) -> ModelCall:
    """The usage after `before`. A lower count means that counting started again."""
    if before is None or now.input_tokens < before.input_tokens or now.output_tokens < before.output_tokens:
        return now
    return build_model_call(
        now.provider,
        now.model,
        now.input_tokens - before.input_tokens,
        now.output_tokens - before.output_tokens,
        max(0, now.cached_tokens - before.cached_tokens),
        None if now.cost_usd is None or before.cost_usd is None else max(0.0, now.cost_usd - before.cost_usd),
    )


def _sum_tokens(calls: Iterable[ModelCall]) -> int:
    return sum(call.input_tokens + call.output_tokens for call in calls)


def join_texts(content: Any) -> Any:
    """The text of a list of text parts; anything else as it is."""
    if not isinstance(content, list):
        return content
    texts = list(_iter_texts(content))
    return "\n".join(texts) if len(texts) == len(content) else content


def _iter_texts(parts: list[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
            yield text

"""What happens in a turn of a CLI, whatever its own stream calls it, and the reply that all of it adds up to.

A dialect makes these of the lines of its stream. A line that is no line of it makes none: noise, a torn or a garbled
line can never end a turn.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, structs

from viva.llm.price import compute_cost
from viva.model.connector import Connector
from viva.model.message import ModelCall, Reply, ToolCall

ResultStatus = Literal["ok", "error", "refused"]


class SessionStarted(Struct, frozen=True, tag="session"):
    """The CLI says which session this is, and perhaps which model it speaks to."""

    id: str
    model: str = ""


class TextPrinted(Struct, frozen=True, tag="text"):
    """Some text of the agent: the next piece, or with `begins` a message of its own."""

    text: str
    is_new_message: bool = False


class ToolStarted(Struct, frozen=True, tag="tool_call"):
    """A tool was called; said again for the same id, what is new stands."""

    name: str
    arguments: Any = None
    id: str = ""


class ToolEnded(Struct, frozen=True, tag="tool_result"):
    """A tool has ended, or was not allowed to begin."""

    id: str
    status: ResultStatus = "ok"
    output: Any = ""


class UsageReported(Struct, frozen=True, tag="usage"):
    """What models used: in one step of this turn, in this turn as a whole, or in the whole session up to now.

    Where versions of a CLI differ in that, `own` tells: the tokens that the turn itself has used, by another count.
    """

    calls: tuple[ModelCall, ...]
    scope: Literal["step", "turn", "session"] = "turn"
    id: str = ""
    turn_tokens: int | None = None


class TroubleReported(Struct, frozen=True, tag="trouble"):
    """The CLI tells of something that goes wrong, and goes on. A warning stands in the report, however the turn ends."""

    text: str
    is_warning: bool = False


class InputRequested(Struct, frozen=True, tag="awaiting"):
    """The agent waits for somebody: `state` is its protocol's word for it, `hint` what it wants."""

    state: str
    hint: str = ""


class EndReported(Struct, frozen=True, tag="turn_end"):
    """The turn is over by the CLI's own word: well, or with an `error`, whose text may be empty: then it has told before
    what went wrong. `result` is what it holds for its last word.
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
    | EndReported
)


def build_model_call(
    provider: str, model: str, input_tokens: int, output_tokens: int, cached_tokens: int = 0, cost: float | None = None
) -> ModelCall:
    """Tokens of a model, with the CLI's own word on what they cost, or what the table of prices says. Nothing is below 0:
    a call that gives tokens or money back would let the others break a limit.
    """
    input_tokens, output_tokens, cached_tokens = max(0, input_tokens), max(0, output_tokens), max(0, cached_tokens)
    if cost is None or cost < 0:
        cost = compute_cost(Connector(name="", provider=provider), model, input_tokens, output_tokens, cached_tokens)
    return ModelCall(model, provider, input_tokens, output_tokens, cached_tokens, cost)


class CliTurn:
    """A turn while it happens. `before` is what its session had used until now, for CLIs that count on and on; `model` is
    the one that was asked for, where the CLI itself does not say.
    """

    def __init__(self, previous_usage: Sequence[ModelCall] = (), model: str = "") -> None:
        self._model = model
        self.session: str | None = None
        self.end: EndReported | None = None
        self.session_usage: tuple[ModelCall, ...] = tuple(previous_usage)
        self._before = {call.model: call for call in previous_usage}
        self._texts: list[str] = []
        self._calls: dict[str, ToolCall] = {}
        self._steps: dict[str, tuple[ModelCall, ...]] = {}
        self._turn: tuple[ModelCall, ...] | None = None
        self._awaits: InputRequested | None = None
        self._trouble = ""
        self.warnings: dict[str, None] = {}  # each once, in order

    def add_event(self, event: CliEvent) -> None:
        match event:
            case SessionStarted(id=session, model=model):
                self.session, self._model = session or self.session, self._model or model
            case TextPrinted(text=text, is_new_message=begins):
                self._texts.append(f"\n{text}" if begins and self._texts else text)
            case ToolStarted():
                self._call(event)
            case ToolEnded():
                self._return(event)
            case UsageReported():
                self._use(event)
            case InputRequested():
                self._awaits = event
            case EndReported(error=""):
                self.end = EndReported(self._trouble or "it ended with an error", event.finish_reason, event.result)
            case EndReported():
                self.end = event
            case TroubleReported(text=text, is_warning=is_warning):
                self._trouble = text
                if is_warning and text:
                    self.warnings[text] = None

    def _call(self, event: ToolStarted) -> None:
        key = event.id or f"#{len(self._calls)}"
        known = self._calls.get(key)
        arguments = event.arguments if event.arguments or known is None else known.arguments
        if known is None:
            self._calls[key] = ToolCall(event.name, arguments, event.id)
        else:
            self._calls[key] = structs.replace(known, name=known.name or event.name, arguments=arguments)

    def _return(self, event: ToolEnded) -> None:
        if (known := self._calls.get(event.id)) is None:
            return
        if event.status == "ok":
            self._calls[event.id] = ToolCall(known.name, known.arguments, known.id, event.output)
        else:
            said = event.output if isinstance(event.output, str) and event.output else known.error or event.status
            refused = (
                known.refused or event.status == "refused"
            )  # a refusal is often told twice, the second time as a failure
            self._calls[event.id] = ToolCall(known.name, known.arguments, known.id, error=said, refused=refused)

    def _use(self, event: UsageReported) -> None:
        calls = tuple(call if call.model else _of(self._model, call) for call in event.calls)
        if event.scope == "step":
            self._steps[event.id or f"#{len(self._steps)}"] = calls
        elif event.scope == "turn":
            self._turn = calls
        else:
            counts_on = (
                event.turn_tokens is None or _tokens(calls) >= _tokens(self._before.values()) + event.turn_tokens
            )
            self.session_usage = calls
            self._turn = tuple(_since(call, self._before.get(call.model)) for call in calls) if counts_on else calls

    def get_tool_name(self, call: str) -> str:
        """The tool behind a call that was told of."""
        return self._calls[call].name if call in self._calls else ""

    @property
    def usage(self) -> tuple[ModelCall, ...]:
        """What models used in this turn, as far as the CLI has told."""
        calls = self._turn if self._turn is not None else [call for step in self._steps.values() for call in step]
        return tuple(call for call in calls if call.input_tokens or call.output_tokens)

    def build_reply(self) -> Reply:
        waits = self._awaits
        return Reply(
            content="".join(self._texts),
            tool_calls=tuple(self._calls.values()),
            finish_reason=self.end.finish_reason if self.end else None,
            protocol_state=waits.state if waits else None,
            input_hint=(waits.hint or None) if waits else None,
            calls=self.usage,
        )


def collect_turn(events: Iterable[CliEvent], previous_usage: Sequence[ModelCall] = ()) -> CliTurn:
    turn = CliTurn(previous_usage)
    for event in events:
        turn.add_event(event)
    return turn


def _of(model: str, call: ModelCall) -> ModelCall:
    """The call with its model's name, which may begin with its provider's."""
    provider, slash, name = model.rpartition("/")
    who = provider if slash else call.provider
    return build_model_call(who, name, call.input_tokens, call.output_tokens, call.cached_tokens, call.cost_usd)


def _since(now: ModelCall, before: ModelCall | None) -> ModelCall:
    """What was used after `before`. A count that went back was begun anew."""
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


def _tokens(calls: Iterable[ModelCall]) -> int:
    return sum(call.input_tokens + call.output_tokens for call in calls)


def join_texts(content: Any) -> Any:
    """The text of a list of parts, as tools return them; anything else as it is."""
    if not isinstance(content, list):
        return content
    texts = list(_texts(content))
    return "\n".join(texts) if len(texts) == len(content) else content


def _texts(parts: list[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
            yield text

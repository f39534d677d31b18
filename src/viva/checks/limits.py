"""Checks of what an answer cost: time, money, tokens, turns. Over a turn or, as a final claim, over the whole case."""

from collections.abc import Iterator

from viva.checks.base import LocalCheck
from viva.checks.formatting import format_label
from viva.errors import CheckError
from viva.model.message import ModelCall
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext
from viva.text.duration import format_duration, parse_duration

_REMEDY = "return `usage` with `input_tokens` and `output_tokens`, or name its path in the agent's config"


class MaxLatency(LocalCheck, frozen=True, kw_only=True):
    """The agent took no longer than `value`: a duration like `2m30s`, or a number of seconds."""

    value: str | int | float

    def __post_init__(self) -> None:
        _refuse_negative(parse_duration(self.value))

    @property
    def label(self) -> str:
        return format_label("max_latency", format_duration(parse_duration(self.value)))

    def check(self, context: CheckContext) -> Verdict:
        limit_s = parse_duration(self.value)
        took_s = sum(turn.latency_ms for turn in context.turns) / 1e3
        if took_s <= limit_s:
            return PASSED
        return Verdict(
            "failed",
            f"took {format_duration(took_s)}, allowed {format_duration(limit_s)}",
            expected=limit_s,
            actual=took_s,
        )


class MaxCost(LocalCheck, frozen=True, kw_only=True):
    """The agent's model calls cost no more than `value` USD. A price that is not known is an error, never 0."""

    value: int | float

    def __post_init__(self) -> None:
        _refuse_negative(self.value)

    @property
    def label(self) -> str:
        return format_label("max_cost", f"${self.value:g}")

    def check(self, context: CheckContext) -> Verdict:
        calls = list(_model_calls(context))
        if not calls:
            raise CheckError(
                f"the agent reported no usage, so what it cost is not known; {_REMEDY}", deterministic=True
            )
        spent_usd = 0.0
        for call in calls:
            if call.cost_usd is None:
                raise CheckError(
                    f"the price of {call.model or 'a model call'} is not known: give its connector a `price`, or report"
                    " `cost_usd` in the agent's `usage`",
                    deterministic=True,
                )
            spent_usd += call.cost_usd
        if spent_usd <= self.value:
            return PASSED
        return Verdict(
            "failed", f"cost ${spent_usd:.6g}, allowed ${self.value:g}", expected=self.value, actual=spent_usd
        )


class MaxTokens(LocalCheck, frozen=True, kw_only=True):
    """The agent's model calls used no more than `value` tokens, input and output together."""

    value: int

    def __post_init__(self) -> None:
        _refuse_negative(self.value)

    @property
    def label(self) -> str:
        return format_label("max_tokens", str(self.value))

    def check(self, context: CheckContext) -> Verdict:
        used = sum(call.input_tokens + call.output_tokens for call in _model_calls(context))
        if not used:
            raise CheckError(
                f"the agent reported no usage, so its tokens cannot be counted; {_REMEDY}", deterministic=True
            )
        if used <= self.value:
            return PASSED
        return Verdict("failed", f"used {used} tokens, allowed {self.value}", expected=self.value, actual=used)


class MaxTurns(LocalCheck, frozen=True, kw_only=True):
    """No more than `value` turns: as a claim of a turn, up to this one; as a final claim, in all."""

    value: int

    def __post_init__(self) -> None:
        _refuse_negative(self.value)

    @property
    def label(self) -> str:
        return format_label("max_turns", str(self.value))

    def check(self, context: CheckContext) -> Verdict:
        turns = len(context.state.turns) if context.turn_scope == "case" else context.turn.number
        if turns <= self.value:
            return PASSED
        return Verdict("failed", f"took {turns} turns, allowed {self.value}", expected=self.value, actual=turns)


def _model_calls(context: CheckContext) -> Iterator[ModelCall]:
    for turn in context.turns:
        if turn.reply is not None:
            yield from turn.reply.calls


def _refuse_negative(value: float) -> None:
    if not value >= 0:
        raise ValueError(f"value is {value}: a limit is 0 or more")

"""Checks of time, cost, tokens and turns: of one turn or, as a final assertion, of the whole case."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from viva.checks.base_check import Count, LocalCheck, NotNegative
from viva.checks.formatting import format_label
from viva.errors import CheckError
from viva.model.message import ModelCall, Reply
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext
from viva.text.duration import format_duration, parse_duration

Duration = Annotated[str | int | float, Meta(extra_json_schema={"$ref": "#/$defs/duration"})]
_HOW_TO_REPORT_USAGE = "return `usage` with `input_tokens` and `output_tokens`, or name its path in the agent's config"


class _TimeLimit(LocalCheck, frozen=True, kw_only=True):
    value: Duration

    def __post_init__(self) -> None:
        if not (seconds := parse_duration(self.value)) >= 0:
            raise ValueError(f"value is {seconds}: a limit is 0 or more")

    def _format_label(self, name: str) -> str:
        return format_label(name, format_duration(parse_duration(self.value)))

    def _compare(self, took_s: float, prefix: str) -> Verdict:
        """The verdict on a measured time; a reason starts with `prefix`."""
        limit_s = parse_duration(self.value)
        if took_s <= limit_s:
            return PASSED
        took, limit = format_duration(took_s), format_duration(limit_s)
        return Verdict("failed", f"{prefix} {took}, allowed {limit}", expected=limit, actual=took)


class MaxLatency(_TimeLimit, frozen=True, kw_only=True):
    """The agent took no longer than this in the turn or case."""

    value: Duration
    """A duration such as `2s` or `2m30s`; a bare number is seconds."""

    @property
    def label(self) -> str:
        return self._format_label("max_latency")

    def check(self, context: CheckContext) -> Verdict:
        return self._compare(sum(turn.latency_ms for turn in context.turns) / 1e3, "took")


class MaxFirstToken(_TimeLimit, frozen=True, kw_only=True):
    """The first text of a streamed reply arrived within this time: of the turn's reply or of each reply of the case."""

    value: Duration
    """A duration such as `800ms` or `2s`; a bare number is seconds."""

    @property
    def label(self) -> str:
        return self._format_label("max_first_token")

    def check(self, context: CheckContext) -> Verdict:
        replies = [turn.reply for turn in context.turns if turn.reply is not None] or [Reply()]
        return self._compare(max(map(_require_first_token_ms, replies)) / 1e3, "the first text came after")


class MaxCost(LocalCheck, frozen=True, kw_only=True):
    """The agent's model calls in the turn or case cost no more USD than this."""

    value: NotNegative
    """USD. An unknown price makes the check an error."""

    @property
    def label(self) -> str:
        return format_label("max_cost", f"${self.value:g}")

    def check(self, context: CheckContext) -> Verdict:
        calls = list(_iterate_model_calls(context))
        if not calls:
            raise CheckError(
                f"the cost is unknown: the agent reported no usage; {_HOW_TO_REPORT_USAGE}", deterministic=True
            )
        spent_usd = 0.0
        for call in calls:
            if call.cost_usd is None:
                raise CheckError(_describe_unknown_price(call.model), deterministic=True)
            spent_usd += call.cost_usd
        if spent_usd <= self.value * (1 + 1e-9):  # the sum of three times $0.1 is a little more than 0.3
            return PASSED
        reason = f"cost ${spent_usd:.6g}, allowed ${self.value:g}"
        return Verdict("failed", reason, expected=self.value, actual=spent_usd)


class MaxTokens(LocalCheck, frozen=True, kw_only=True):
    """The agent's model calls in the turn or case used no more tokens than this."""

    value: Count
    """Input and output tokens together."""

    @property
    def label(self) -> str:
        return format_label("max_tokens", str(self.value))

    def check(self, context: CheckContext) -> Verdict:
        used = sum(call.input_tokens + call.output_tokens for call in _iterate_model_calls(context))
        if not used:
            raise CheckError(
                f"the tokens cannot be counted: the agent reported no usage; {_HOW_TO_REPORT_USAGE}", deterministic=True
            )
        if used <= self.value:
            return PASSED
        return Verdict("failed", f"used {used} tokens, allowed {self.value}", expected=self.value, actual=used)


class MaxTurns(LocalCheck, frozen=True, kw_only=True):
    """The conversation took no more turns than this: up to this turn or, as a final assertion, in all."""

    value: Count
    """The number of turns."""

    @property
    def label(self) -> str:
        return format_label("max_turns", str(self.value))

    def check(self, context: CheckContext) -> Verdict:
        turns = context.turn.number
        if turns <= self.value:
            return PASSED
        return Verdict(
            "failed", f"took {turns} turn{'s' * (turns != 1)}, allowed {self.value}", expected=self.value, actual=turns
        )


def _require_first_token_ms(reply: Reply) -> float:
    if reply.first_token_ms is not None:
        return reply.first_token_ms
    reason = (
        "a reply was not streamed; set `stream` in the agent's config, or let a Python agent yield its text in pieces"
        if reply.content
        else "a reply had no text"
    )
    raise CheckError(f"the time to the first token is unknown: {reason}", deterministic=True)


def _describe_unknown_price(model: str) -> str:
    if not model:
        return "the price of a model call is not known: report its `model`, or `cost_usd`, in the agent's `usage`"
    return (
        f"the price of {model} is not known: give its connector a `price`, or report `cost_usd` in the agent's `usage`"
    )


def _iterate_model_calls(context: CheckContext) -> Iterator[ModelCall]:
    for turn in context.turns:
        if turn.reply is not None:
            yield from turn.reply.calls

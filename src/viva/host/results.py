"""What a trial's record comes to in events: who was asked, that tools were used, what it cost, how it ended. No words."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal

from msgspec import Struct

from viva.checks.golden import ReturnSchema
from viva.host.agents import HostedAgent
from viva.host.events import (
    InvocationOutcome,
    agent_decided,
    agent_reasoned,
    invocation_ended,
    invocation_started,
    provider_usage,
    tool_called,
    tool_returned,
)
from viva.host.log import EventDraft, RunLog
from viva.model import codec
from viva.model.message import ModelCall
from viva.model.record import TrialRecord, TurnRecord

FailureCode = Literal["agent_failed", "structured_output_invalid", "tool_not_allowed"]
_REFUSALS = frozenset({"content_filter", "refusal", "safety"})


class InvocationResult(Struct, frozen=True, kw_only=True):
    """The events of one invocation, and how it ended. `output` is what the agent answered: only the one who asked may see it."""

    events: tuple[EventDraft, ...]
    outcome: InvocationOutcome
    failure_code: FailureCode = "agent_failed"
    """Of one that failed."""
    output: Any = None


def build_invocation_result(
    record: TrialRecord,
    agent: HostedAgent,
    invocation: str,
    *,
    source: str = "run-api",
    is_valid: bool | None = None,
) -> InvocationResult:
    """One invocation, first to last. A result that is not `valid` by the agent's schema is a failure, never shipped."""
    turn = record.turns[-1] if record.turns else None
    used = [] if turn is None else [call.name for call in turn.tool_calls if call.error is None]
    foreign = [name for name in used if not agent.is_tool_allowed(name)]
    outcome = _outcome(record, turn, bad=is_valid is False or bool(foreign))
    own, judges = _shares(record, turn)
    events = (
        invocation_started(invocation, agent.agent_id, agent.model_class, source),
        agent_reasoned(agent.agent_id),
        *_tools(agent, turn, invocation),
        *(provider_usage(call) for call in own),
        agent_decided(agent.agent_id, outcome),
        invocation_ended(invocation, agent.agent_id, outcome, is_valid),
        *(provider_usage(call) for call in judges),
    )
    why: FailureCode = (
        "structured_output_invalid" if is_valid is False else "tool_not_allowed" if foreign else "agent_failed"
    )
    return InvocationResult(
        events=events, outcome=outcome, failure_code=why, output=get_output(record) if outcome == "completed" else None
    )


def get_output(record: TrialRecord) -> Any:
    """What the agent answered: its data or, without any, its text."""
    turn = record.turns[-1] if record.turns else None
    return None if turn is None else turn.output if turn.data is None else turn.data


def matches_schema(schema: dict[str, Any], output: Any) -> bool:
    """Is an output valid by a schema? A text that is JSON counts as what it says."""
    if isinstance(output, str):
        with suppress(codec.DecodeError):
            output = codec.decode(output)
    return ReturnSchema(schema=schema).describe_errors(output) is None


def _outcome(record: TrialRecord, turn: TurnRecord | None, *, bad: bool) -> InvocationOutcome:
    """Whether the agent did its part. How well is another question: a wrong answer is an answer."""
    if turn is None or turn.error is not None or record.fault in ("infra", "undetermined") or bad:
        return "failed"
    return "refused" if (turn.finish_reason or "").lower() in _REFUSALS else "completed"


def _shares(record: TrialRecord, turn: TurnRecord | None) -> tuple[Sequence[ModelCall], Sequence[ModelCall]]:
    """The agent's calls and those of its judges, who are asked after it. Of a cut-off reply all calls are the agent's."""
    calls = record.model_calls
    if turn is None or turn.error is not None:
        return calls, ()
    own = turn.usage.calls if turn.usage else 0
    return calls[:own], calls[own:]


def _tools(agent: HostedAgent, turn: TurnRecord | None, invocation: str) -> Iterable[EventDraft]:
    """Tools that were called. One that the agent may not use was not: nobody ran it for it."""
    for number, call in enumerate(turn.tool_calls if turn else (), 1):
        if agent.is_tool_allowed(call.name):
            name = f"{invocation}-{number}"
            yield tool_called(agent.agent_id, call.name, name)
            yield tool_returned(agent.agent_id, call.name, name, failed=call.error is not None)


def sum_usage(log: RunLog, more: Sequence[EventDraft] = ()) -> dict[str, Any] | None:
    """What the model calls of a run add up to, by the events that tell of them."""
    usages = [event.payload for event in log.events_of_type("provider.usage")]
    usages += [draft.payload for draft in more if draft.type == "provider.usage"]
    if not usages:
        return None
    costs = [usage["costEstimateUsd"] for usage in usages if "costEstimateUsd" in usage]
    tokens = {
        "input": sum(usage["inputTokens"] for usage in usages),
        "output": sum(usage["outputTokens"] for usage in usages),
    }
    rollup = {"tokens": tokens, "provider": usages[-1]["provider"], "model": usages[-1]["model"]}
    return {"openwopCost": {**rollup, "usd": sum(costs)} if len(costs) == len(usages) else rollup}

"""Every event that a host emits is built here, field by field, from identifiers, counts and numbers.

Nothing that an agent, a user, a judge or a suite says can get into one, since no builder takes it: the only exception is
`invocation_completed`, which ends a run whose very purpose is to give the agent's answer back to the one who asked.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from viva.host.log import EventDraft
from viva.model.message import ModelCall

InvocationOutcome = Literal["completed", "refused", "failed"]
_DECISIONS: Mapping[InvocationOutcome, str] = {"completed": "answer", "refused": "refuse", "failed": "fail"}
_PLAIN = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
UNKNOWN_NAME = "unknown"


def run_started(workflow: str, tenant: str) -> EventDraft:
    return EventDraft("run.started", {"workflowId": workflow, "transport": "rest", "owner": {"tenant": tenant}})


def run_completed(outputs: Mapping[str, Any] | None = None) -> EventDraft:
    """`outputs` is a summary, or nothing: see above."""
    return EventDraft("run.completed", {"outputs": dict(outputs)} if outputs is not None else {})


def run_failed(code: str, message: str) -> EventDraft:
    return EventDraft("run.failed", {"error": {"code": code, "message": message}})


def run_cancelled(cancelled_by: str) -> EventDraft:
    return EventDraft("run.cancelled", {"reason": "cancelled by the caller", "cancelledBy": cancelled_by})


def invocation_completed(output: Any, outcome: InvocationOutcome) -> EventDraft:
    """The end of a single invocation, with what the agent answered."""
    return EventDraft("run.completed", {"outputs": {"output": output, "outcome": outcome}})


def node_started(node: str, kind: str) -> EventDraft:
    return EventDraft("node.started", {"nodeId": node, "typeId": kind, "attempt": 0}, node)


def node_completed(node: str) -> EventDraft:
    return EventDraft("node.completed", {"nodeId": node, "outputs": {}}, node)


def eval_started(suite: str, version: str, tasks: int, modes: Sequence[str], baseline: str | None) -> EventDraft:
    payload: dict[str, Any] = {"suiteId": suite, "suiteVersion": version, "taskCount": tasks, "modes": list(modes)}
    return EventDraft("eval.started", {**payload, "baselineRunId": baseline} if baseline else payload)


def eval_scored(
    task: str,
    score: float,
    *,
    passed: bool,
    cost_usd: float | None = None,
    latency_ms: int | None = None,
    schema_valid: bool | None = None,
    findings: int | None = None,
) -> EventDraft:
    known = {
        "costUsd": cost_usd,
        "latencyMs": latency_ms,
        "schemaValid": schema_valid,
        "safetyFindingCount": findings,
    }
    told = {key: value for key, value in known.items() if value is not None}
    return EventDraft("eval.scored", {"taskId": task, "score": score, "passed": passed, **told})


def eval_completed(score: float, tasks: int, passed_tasks: int, *, passed: bool, delta: float | None) -> EventDraft:
    payload = {"aggregateScore": score, "passed": passed, "taskCount": tasks, "passedCount": passed_tasks}
    return EventDraft("eval.completed", {**payload, "regressionVsBaseline": delta} if delta is not None else payload)


def invocation_started(invocation: str, agent: str, model_class: str, source: str = "run-api") -> EventDraft:
    payload = {"invocationId": invocation, "agentId": agent, "source": source, "modelClass": model_class}
    return EventDraft("agent.invocation.started", payload)


def invocation_ended(
    invocation: str, agent: str, outcome: InvocationOutcome, schema_valid: bool | None = None
) -> EventDraft:
    payload: dict[str, Any] = {"invocationId": invocation, "agentId": agent, "outcome": outcome}
    return EventDraft(
        "agent.invocation.completed",
        payload if schema_valid is None else {**payload, "schemaValidated": schema_valid},
    )


def agent_reasoned(agent: str) -> EventDraft:
    """That there was reasoning; what it said is never told."""
    return EventDraft("agent.reasoned", {"agentId": agent, "reasoning": "", "verbosity": "off"})


def tool_called(agent: str, tool: str, call: str) -> EventDraft:
    return EventDraft("agent.toolCalled", {"agentId": agent, "toolName": to_plain_name(tool), "callId": call})


def tool_returned(agent: str, tool: str, call: str, *, failed: bool) -> EventDraft:
    status = "error" if failed else "ok"
    payload = {"agentId": agent, "toolName": to_plain_name(tool), "callId": call, "status": status}
    return EventDraft("agent.toolReturned", payload)


def agent_decided(agent: str, outcome: InvocationOutcome) -> EventDraft:
    return EventDraft("agent.decided", {"agentId": agent, "decision": _DECISIONS[outcome]})


def provider_usage(call: ModelCall) -> EventDraft:
    payload: dict[str, Any] = {
        "provider": to_plain_name(call.provider.lower()),
        "model": to_plain_name(call.model),
        "inputTokens": max(0, call.input_tokens),
        "outputTokens": max(0, call.output_tokens),
        "totalTokens": max(0, call.input_tokens) + max(0, call.output_tokens),
    }
    if call.cost_usd is not None:
        payload["costEstimateUsd"] = call.cost_usd
    if call.cached_tokens:
        payload["cacheReadTokens"] = call.cached_tokens
    return EventDraft("provider.usage", payload)


def run_annotated(annotation: str, kind: str) -> EventDraft:
    return EventDraft("run.annotated", {"annotationId": annotation, "signal": {"kind": kind}})


def to_plain_name(name: str) -> str:
    """A name as programs have them. A model may call a tool by a whole sentence: that is content, and stays here."""
    return name if _PLAIN.fullmatch(name) else UNKNOWN_NAME

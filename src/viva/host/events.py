"""Every event that a host emits is built here, field by field, from identifiers, counts and numbers.

Nothing that an agent, a user, a judge or a suite says can get into one, since no builder takes it: the only exception is
`invocation_completed`, which ends a run whose very purpose is to give the agent's answer back to the one who asked.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from viva.host.log import Draft
from viva.model.message import ModelCall

Outcome = Literal["completed", "refused", "failed"]
_DECISIONS: Mapping[Outcome, str] = {"completed": "answer", "refused": "refuse", "failed": "fail"}
_PLAIN = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
UNKNOWN = "unknown"


def run_started(workflow: str, tenant: str) -> Draft:
    return Draft("run.started", {"workflowId": workflow, "transport": "rest", "owner": {"tenant": tenant}})


def run_completed(outputs: Mapping[str, Any] | None = None) -> Draft:
    """`outputs` is a summary, or nothing: see above."""
    return Draft("run.completed", {"outputs": dict(outputs)} if outputs is not None else {})


def run_failed(code: str, message: str) -> Draft:
    return Draft("run.failed", {"error": {"code": code, "message": message}})


def run_cancelled(by: str) -> Draft:
    return Draft("run.cancelled", {"reason": "cancelled by the caller", "cancelledBy": by})


def invocation_completed(output: Any, outcome: Outcome) -> Draft:
    """The end of a single invocation, with what the agent answered."""
    return Draft("run.completed", {"outputs": {"output": output, "outcome": outcome}})


def node_started(node: str, kind: str) -> Draft:
    return Draft("node.started", {"nodeId": node, "typeId": kind, "attempt": 0}, node)


def node_completed(node: str) -> Draft:
    return Draft("node.completed", {"nodeId": node, "outputs": {}}, node)


def eval_started(suite: str, version: str, tasks: int, modes: Sequence[str], baseline: str | None) -> Draft:
    payload: dict[str, Any] = {"suiteId": suite, "suiteVersion": version, "taskCount": tasks, "modes": list(modes)}
    return Draft("eval.started", {**payload, "baselineRunId": baseline} if baseline else payload)


def eval_scored(
    task: str,
    score: float,
    *,
    passed: bool,
    cost_usd: float | None = None,
    latency_ms: int | None = None,
    schema_valid: bool | None = None,
    findings: int | None = None,
) -> Draft:
    known = {
        "costUsd": cost_usd,
        "latencyMs": latency_ms,
        "schemaValid": schema_valid,
        "safetyFindingCount": findings,
    }
    told = {key: value for key, value in known.items() if value is not None}
    return Draft("eval.scored", {"taskId": task, "score": score, "passed": passed, **told})


def eval_completed(score: float, tasks: int, passed_tasks: int, *, passed: bool, delta: float | None) -> Draft:
    payload = {"aggregateScore": score, "passed": passed, "taskCount": tasks, "passedCount": passed_tasks}
    return Draft("eval.completed", {**payload, "regressionVsBaseline": delta} if delta is not None else payload)


def invocation_started(invocation: str, agent: str, model_class: str, source: str = "run-api") -> Draft:
    payload = {"invocationId": invocation, "agentId": agent, "source": source, "modelClass": model_class}
    return Draft("agent.invocation.started", payload)


def invocation_ended(invocation: str, agent: str, outcome: Outcome, schema_valid: bool | None = None) -> Draft:
    payload: dict[str, Any] = {"invocationId": invocation, "agentId": agent, "outcome": outcome}
    return Draft(
        "agent.invocation.completed",
        payload if schema_valid is None else {**payload, "schemaValidated": schema_valid},
    )


def reasoned(agent: str) -> Draft:
    """That there was reasoning; what it said is never told."""
    return Draft("agent.reasoned", {"agentId": agent, "reasoning": "", "verbosity": "off"})


def tool_called(agent: str, tool: str, call: str) -> Draft:
    return Draft("agent.toolCalled", {"agentId": agent, "toolName": plain_name(tool), "callId": call})


def tool_returned(agent: str, tool: str, call: str, *, failed: bool) -> Draft:
    status = "error" if failed else "ok"
    payload = {"agentId": agent, "toolName": plain_name(tool), "callId": call, "status": status}
    return Draft("agent.toolReturned", payload)


def decided(agent: str, outcome: Outcome) -> Draft:
    return Draft("agent.decided", {"agentId": agent, "decision": _DECISIONS[outcome]})


def provider_usage(call: ModelCall) -> Draft:
    payload: dict[str, Any] = {
        "provider": plain_name(call.provider.lower()),
        "model": plain_name(call.model),
        "inputTokens": max(0, call.input_tokens),
        "outputTokens": max(0, call.output_tokens),
        "totalTokens": max(0, call.input_tokens) + max(0, call.output_tokens),
    }
    if call.cost_usd is not None:
        payload["costEstimateUsd"] = call.cost_usd
    if call.cached_tokens:
        payload["cacheReadTokens"] = call.cached_tokens
    return Draft("provider.usage", payload)


def annotated(annotation: str, kind: str) -> Draft:
    return Draft("run.annotated", {"annotationId": annotation, "signal": {"kind": kind}})


def plain_name(name: str) -> str:
    """A name as programs have them. A model may call a tool by a whole sentence: that is content, and stays here."""
    return name if _PLAIN.fullmatch(name) else UNKNOWN

"""The workflows of a host. `viva.agent` invokes an agent. The nodes of all others do nothing or wait, for clients that test
the API.

An invocation returns the agent's reply to its caller, in the outputs of the last event. Evals never return replies.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import pairwise
from typing import Any, Literal

from msgspec import Struct, structs

from viva.checks.golden import ReturnSchema, to_canonical_text
from viva.engine.event_bus import EventBus
from viva.engine.trial import run_trial
from viva.errors import BadInput
from viva.host.errors import validation_error
from viva.host.events import (
    EventDraft,
    RunEvent,
    RunLog,
    node_completed,
    node_started,
    provider_usage,
    run_completed,
    run_failed,
    to_plain_name,
)
from viva.host.host import Host
from viva.host.inventory import AGENT_KEYS, HostedAgent, parse_agent_overrides, reject_unknown_keys
from viva.host.requests import validate_body
from viva.host.runs import RunEnd, RunError
from viva.host.store import Run
from viva.host.tokens import Principal
from viva.host.turns import HostWork
from viva.model import codec
from viva.model.case import Case, Limits, UserMessage
from viva.model.message import Message, ModelCall
from viva.model.record import ToolCallRecord, TrialRecord, TurnRecord
from viva.protocols import PlannedTrial
from viva.session.options.run_options import AllRunOptions
from viva.session.run import create_run_context
from viva.session.run_plan import build_run_plan
from viva.users.script import Script

NOOP, DELAY, AGENT_WORKFLOW = "core.noop", "core.delay", "viva.agent"
MAX_DELAY_MS = 60_000
_DEFAULT_DELAY_MS = 1000


def _build_workflow(name: str, title: str, nodes: tuple[str, ...], *variables: dict[str, Any], kind: str = NOOP) -> Any:
    return {
        "id": name,
        "name": title,
        "version": "1.0",
        "nodes": [
            {"id": node, "typeId": kind, "name": node, "position": {"x": 0, "y": 0}, "config": {}, "inputs": {}}
            for node in nodes
        ],
        "edges": [
            {"id": f"{a}-{b}", "source": a, "target": b, "sourceNodeId": a, "targetNodeId": b}
            for a, b in pairwise(nodes)
        ],
        "triggers": [{"id": "manual", "type": "manual", "enabled": True}],
        "variables": list(variables),
        "metadata": {"tags": ["viva"] if kind == AGENT_WORKFLOW else ["conformance"]},
        "settings": {"timeout": 10000 if kind == NOOP else 300_000},
    }


def _index_by_id(*workflows: dict[str, Any]) -> Mapping[str, dict[str, Any]]:
    return {workflow["id"]: workflow for workflow in workflows}


def _build_variable(name: str, kind: str, description: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "type": kind, "description": description, "required": required}


_DELAY_MS = _build_variable("delayMs", "number", "Delay in milliseconds, at most a minute.")
_ADVERTISED = _index_by_id(
    _build_workflow("conformance-noop", "No operation", ("noop",)),
    _build_workflow(
        "conformance-idempotent",
        "No operation, with a nonce",
        ("noop",),
        _build_variable("nonce", "string", "Distinguishes requests.", required=True),
    ),
)
WORKFLOWS = {
    **_ADVERTISED,
    AGENT_WORKFLOW: _build_workflow(
        AGENT_WORKFLOW,
        "Call an agent once",
        ("agent",),
        _build_variable("input", "object", "The task: a text or any value."),
        _build_variable("messages", "array", "Or a conversation; the last message is the user's."),
        kind=AGENT_WORKFLOW,
    ),
}
CONFORMANCE_WORKFLOWS = _index_by_id(
    _build_workflow("conformance-agent-reasoning", "No operation", ("reasoner",)),
    _build_workflow("conformance-dispatch-loop", "No operation, three times", ("supervisor", "dispatch", "worker")),
    _build_workflow("conformance-delay", "Wait", ("delay",), _DELAY_MS, kind=DELAY),
    _build_workflow("conformance-cancellable", "Wait, or be cancelled", ("delay",), _DELAY_MS, kind=DELAY),
)
"""Workflows that exist only with `--conformance`."""
_UNADVERTISED = frozenset({"conformance-agent-reasoning", "conformance-dispatch-loop"})
"""Conformance workflows that are not advertised as fixtures: their nodes do nothing here."""


def list_workflows(*, is_conformance: bool) -> Mapping[str, dict[str, Any]]:
    return {**WORKFLOWS, **(CONFORMANCE_WORKFLOWS if is_conformance else {})}


def list_fixtures(*, is_conformance: bool) -> list[str]:
    """Returns the ids of the workflows for tests that the host advertises."""
    return [*_ADVERTISED, *(name for name in CONFORMANCE_WORKFLOWS if is_conformance and name not in _UNADVERTISED)]


def validate_inputs(workflow: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    required = [variable["name"] for variable in workflow["variables"] if variable["required"]]
    if missing := [name for name in required if name not in inputs]:
        raise validation_error(f"Missing inputs of the workflow: {', '.join(missing)}", "inputs", missing=missing)
    delay = inputs.get("delayMs", 0) if _DELAY_MS in workflow["variables"] else 0
    if type(delay) not in (int, float) or not 0 <= delay <= MAX_DELAY_MS:
        raise validation_error(f"delayMs must be a number from 0 to {MAX_DELAY_MS}", "inputs.delayMs")


def select_used_inputs(workflow: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs that the nodes use. Others are not stored."""
    return {"delayMs": inputs["delayMs"]} if _DELAY_MS in workflow["variables"] and "delayMs" in inputs else {}


async def run_workflow(host: Host, run: Run, log: RunLog, _inputs: bytes | None, _work: HostWork) -> RunEnd:
    workflow = host.workflows.get(run.workflow)
    if workflow is None:
        raise RunError("workflow_gone", "The host no longer has this workflow")
    return await run_nodes(workflow, run.request, log)


async def run_nodes(workflow: Mapping[str, Any], inputs: Mapping[str, Any], log: RunLog) -> RunEnd:
    """Executes the nodes of a workflow, except those that were completed before a restart of the host."""
    started, completed = (
        {event.node_id for event in log.events_of_type(f"node.{kind}")} for kind in ("started", "completed")
    )
    for node in workflow["nodes"]:
        name, kind = str(node["id"]), str(node["typeId"])
        if name in completed:
            continue
        if kind == DELAY:
            if name not in started:
                log.append([node_started(name, kind)])
            await asyncio.sleep(inputs.get("delayMs", _DEFAULT_DELAY_MS) / 1e3)
            log.append([node_completed(name)])
        else:
            log.append([node_started(name, kind), node_completed(name)])
    return RunEnd("completed", (run_completed({}),))


InvocationOutcome = Literal["completed", "refused", "failed"]
FailureCode = Literal[
    "agent_failed", "agent_unreachable", "failure_undetermined", "structured_output_invalid", "tool_not_allowed"
]
_DECISIONS: dict[InvocationOutcome, str] = {"completed": "answer", "refused": "refuse", "failed": "fail"}
_REFUSAL_REASONS = frozenset({"content_filter", "refusal", "safety"})
_FAILURE_MESSAGES: dict[FailureCode, str] = {
    "agent_failed": "The agent did not reply",
    "agent_unreachable": "The agent or its model could not be reached",
    "failure_undetermined": "The agent did not reply; the fault may be its own or that of something behind it",
    "structured_output_invalid": "The result does not match the agent's return schema",
    "tool_not_allowed": "The agent used a tool that it may not use",
}
_FAILURE_CODES: dict[str, FailureCode] = {"infra": "agent_unreachable", "undetermined": "failure_undetermined"}


class InvocationRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent is asked. `options` are passed to the agent; `result_schema` overrides the agent's return schema."""

    message: Message
    history: tuple[Message, ...] = ()
    options: dict[str, Any] = {}
    result_schema: dict[str, Any] | None = None
    source: str = "run-api"
    agent_fields: dict[str, Any] | None = None
    """Fields of the agent's config entry that the caller overrides."""


class InvocationResult(Struct, frozen=True, kw_only=True):
    """The events of one invocation, and its outcome. Only the caller may see `output`, the agent's reply."""

    events: tuple[EventDraft, ...]
    outcome: InvocationOutcome
    failure_code: FailureCode = "agent_failed"
    """Why the invocation failed, if its outcome is `failed`."""
    output: Any = None


def prepare_invocation_run(host: Host, principal: Principal, body: dict[str, Any]) -> tuple[Run, bytes]:
    """Validates a request for the workflow `viva.agent`. Returns the run and its encoded inputs. Raises an ApiError."""
    agent = host.agents.find(body.get("agentId", ""), principal.tenant)
    if agent is None:
        raise validation_error("Unknown agent", "agentId")
    inputs = validate_body("INVOCATION", body.get("inputs", {}), "inputs")
    configurable = body.get("configurable", {})
    reject_unknown_keys(configurable, AGENT_KEYS)
    fields = parse_agent_overrides(host.settings, agent, configurable)
    request = structs.replace(_parse_request(inputs), agent_fields=fields or None)
    task = request.message.content if request.message.data is None else request.message.data
    schema = agent.manifest.task_schema
    if schema is not None and ReturnSchema(schema=schema).describe_errors(task) is not None:
        raise validation_error("The input does not match the agent's task schema", "inputs")
    run = build_invocation_run(host, principal, agent)
    if configurable:
        run.request["configurable"] = configurable
    return run, codec.encode(request)


def build_invocation_run(host: Host, principal: Principal, agent: HostedAgent) -> Run:
    return host.build_run(principal, kind="invocation", workflow=AGENT_WORKFLOW, agent=agent.agent_id, request={})


def _parse_request(inputs: dict[str, Any]) -> InvocationRequest:
    if "messages" not in inputs:
        task = inputs["input"]
        message = Message("user", to_canonical_text(task), data=None if isinstance(task, str) else task)
        return InvocationRequest(message=message)
    messages = [Message(item["role"], item["content"], data=item.get("data")) for item in inputs["messages"]]
    if messages[-1].role != "user":
        raise validation_error("The last message must have the role user", "inputs.messages")
    return InvocationRequest(message=messages[-1], history=tuple(messages[:-1]))


async def run_invocation(host: Host, run: Run, _log: RunLog, inputs: bytes | None, work: HostWork) -> RunEnd:
    """Calls the agent. After a restart the run fails instead: the agent may have acted already."""
    if inputs is None:
        raise RunError("host_restarted", "The host restarted during the call; the agent may have acted")
    agent = host.agents.get(run.agent or "")
    if agent is None:
        raise RunError("agent_gone", "The agent is no longer in the config")
    try:
        result = await call_agent(host, run, agent, codec.decode_own(inputs, type=InvocationRequest), work)
    except BadInput:  # the problem may quote the config; its owner sees it with `viva agents`
        raise RunError("agent_gone", "The agent cannot be opened") from None
    usage = UsageTotal()
    usage.add(result.events)
    run.metrics = usage.to_metrics()
    if result.outcome == "failed":
        code, message = result.failure_code, _FAILURE_MESSAGES[result.failure_code]
        run.error = {"code": code, "message": message}
        return RunEnd("failed", (*result.events, run_failed(code, message)))
    outputs = {"output": result.output, "outcome": result.outcome}
    return RunEnd("completed", (*result.events, run_completed(outputs)))


async def call_agent(
    host: Host, run: Run, agent: HostedAgent, request: InvocationRequest, work: HostWork
) -> InvocationResult:
    """Runs a conversation of one turn with the agent."""
    settings = host.settings
    options = AllRunOptions(
        inputs=(),
        agents=(agent.instance or agent.name,),
        agent_fields=request.agent_fields,
        folder=settings.folder,
        config=settings.file,
    )
    async with aclosing(await build_run_plan(options)) as plan:
        plan.redactor.add_secrets(settings.redactor.secrets)  # an agent may know the tokens of tenants
        case = Case(
            id="invocation",
            user=Script((UserMessage(request.message),)),
            history=request.history,
            options=request.options,
            limits=Limits(timeout_s=settings.defaults.timeout_s or 300.0, max_turns=1),
            records_model_calls=True,
        )
        context = create_run_context(plan, run.id, EventBus((), ()))
        async with work.take_turn():
            record = await run_trial(context, PlannedTrial(case, 0, agent=plan.tested_agents[0].name))
    schema = request.result_schema or agent.manifest.return_schema
    has_reply = bool(record.turns) and record.turns[-1].error is None
    is_valid = _matches_schema(schema, get_output(record)) if schema is not None and has_reply else None
    return build_invocation_result(record, agent, "invocation", source=request.source, is_valid=is_valid)


def build_invocation_result(
    record: TrialRecord, agent: HostedAgent, invocation: str, *, source: str = "run-api", is_valid: bool | None = None
) -> InvocationResult:
    """Builds the result of one invocation from its record. `is_valid` tells whether the reply matches its schema, if there is one."""
    turn = record.turns[-1] if record.turns else None
    if turn is not None and _is_refusal(turn):
        is_valid = None  # the text of a refusal is no result that the schema could forbid
    calls = () if turn is None else turn.tool_calls
    used_forbidden = any(call.error is None and not agent.is_tool_allowed(call.name) for call in calls)
    outcome = _get_outcome(record, turn, is_rejected=is_valid is False or used_forbidden)
    agent_calls, judge_calls = _split_agent_and_judge_calls(record, turn)
    validated = {} if is_valid is None else {"schemaValidated": is_valid}
    drafts = (
        _build_agent_event(
            agent, "invocation.started", invocationId=invocation, source=source, modelClass=agent.model_class
        ),
        _build_agent_event(agent, "reasoned", reasoning="", verbosity="off"),  # the text is never sent
        *_build_tool_events(agent, calls, invocation),
        *map(provider_usage, agent_calls),
        _build_agent_event(agent, "decided", decision=_DECISIONS[outcome]),
        _build_agent_event(agent, "invocation.completed", invocationId=invocation, outcome=outcome, **validated),
        *map(provider_usage, judge_calls),
    )
    code: FailureCode = "agent_failed"
    if is_valid is False:
        code = "structured_output_invalid"
    elif used_forbidden:
        code = "tool_not_allowed"
    elif record.fault in _FAILURE_CODES:
        code = _FAILURE_CODES[record.fault]
    output = get_output(record) if outcome == "completed" else None
    return InvocationResult(events=drafts, outcome=outcome, failure_code=code, output=output)


def get_output(record: TrialRecord) -> Any:
    """Returns the data of the agent's last reply or, if it has none, the text."""
    turn = record.turns[-1] if record.turns else None
    return None if turn is None else turn.output if turn.data is None else turn.data


def _matches_schema(schema: dict[str, Any], output: Any) -> bool:
    """Does the output match a schema? A text that is JSON is decoded first."""
    if isinstance(output, str):
        with suppress(codec.DecodeError):
            output = codec.decode(output)
    return ReturnSchema(schema=schema).describe_errors(output) is None


def _get_outcome(record: TrialRecord, turn: TurnRecord | None, *, is_rejected: bool) -> InvocationOutcome:
    """Returns whether the agent replied, refused or failed. A wrong reply counts as `completed`."""
    if turn is None or turn.error is not None or record.fault in ("infra", "undetermined") or is_rejected:
        return "failed"
    return "refused" if _is_refusal(turn) else "completed"


def _is_refusal(turn: TurnRecord) -> bool:
    return (turn.finish_reason or "").lower() in _REFUSAL_REASONS


def _split_agent_and_judge_calls(
    record: TrialRecord, turn: TurnRecord | None
) -> tuple[Sequence[ModelCall], Sequence[ModelCall]]:
    """Returns the model calls of the agent, and those of judges. All calls of a failed turn are the agent's."""
    calls = record.model_calls
    if turn is None or turn.error is not None:
        return calls, ()
    count = turn.usage.calls if turn.usage else 0
    return calls[:count], calls[count:]


def _build_agent_event(agent: HostedAgent, kind: str, **payload: Any) -> EventDraft:
    return EventDraft(f"agent.{kind}", {"agentId": agent.agent_id, **payload})


def _build_tool_events(agent: HostedAgent, calls: Sequence[ToolCallRecord], invocation: str) -> Iterable[EventDraft]:
    """Yields the events of tool calls. Tools that are not allowed are left out."""
    for number, call in enumerate(calls, 1):
        if agent.is_tool_allowed(call.name):
            payload = {"toolName": to_plain_name(call.name), "callId": f"{invocation}-{number}"}
            yield _build_agent_event(agent, "toolCalled", **payload)
            yield _build_agent_event(agent, "toolReturned", **payload, status="ok" if call.error is None else "error")


class UsageTotal(Struct):
    """The tokens and cost of a run, from its `provider.usage` events."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    """None: the cost of a call is unknown."""
    last: dict[str, Any] | None = None
    """The payload of the last event."""

    def add(self, events: Iterable[EventDraft | RunEvent]) -> None:
        for event in events:
            if event.type == "provider.usage":
                self.last = event.payload
                self.input_tokens += event.payload["inputTokens"]
                self.output_tokens += event.payload["outputTokens"]
                cost = event.payload.get("costEstimateUsd")
                self.cost_usd = None if cost is None or self.cost_usd is None else self.cost_usd + cost

    def to_metrics(self) -> dict[str, Any] | None:
        """The `metrics` of a run. None without any call."""
        if self.last is None:
            return None
        tokens = {"input": self.input_tokens, "output": self.output_tokens}
        total = {"tokens": tokens, "provider": self.last["provider"], "model": self.last["model"]}
        return {"openwopCost": total if self.cost_usd is None else {**total, "usd": self.cost_usd}}

"""One invocation of an agent, as a run of its own: the workflow `viva.agent`, with the agent as its root.

This is how an agent is asked over the public API for its answer: evals never tell what was said. The answer stands in
the outputs of the run's last event, for the tenant who asked, and nowhere else.
"""

from typing import Any

from msgspec import Struct

from viva.checks.golden import ReturnSchema, to_canonical_text
from viva.engine.event_bus import EventBus
from viva.engine.trial import run_trial
from viva.errors import BadInput
from viva.host import schemas as bodies
from viva.host.agents import HostedAgent
from viva.host.auth import Principal
from viva.host.errors import validation_error
from viva.host.events import invocation_completed, run_failed
from viva.host.host import Host
from viva.host.log import RunLog
from viva.host.results import (
    FailureCode,
    InvocationResult,
    build_invocation_result,
    get_output,
    matches_schema,
    sum_usage,
)
from viva.host.runs import RunError
from viva.host.store import Run
from viva.host.workflows import AGENT_WORKFLOW
from viva.model.case import Case, Limits, UserMessage
from viva.model.message import Message
from viva.protocols import PlannedTrial
from viva.session.options import RunOptions
from viva.session.run import create_run_context
from viva.session.run_plan import build_run_plan
from viva.users.script import Script

_WORDS: dict[FailureCode, str] = {
    "agent_failed": "the agent did not answer",
    "structured_output_invalid": "the result is not what the agent's return schema demands",
    "tool_not_allowed": "the agent used a tool that it may not use",
}


class InvocationRequest(Struct, frozen=True, kw_only=True):
    """Who is asked what. `options` reach the agent; a `result_schema` of the caller's stands over the agent's own."""

    agent: HostedAgent
    message: Message
    history: tuple[Message, ...] = ()
    options: dict[str, Any] = {}
    result_schema: dict[str, Any] | None = None
    source: str = "run-api"


def validate_invocation(host: Host, principal: Principal, body: dict[str, Any]) -> Run:
    """A run of the workflow `viva.agent`, if all that it needs is there."""
    agent = host.agents.get(body.get("agentId", ""))
    if agent is None:
        raise validation_error("there is no such agent", "agentId")
    inputs = bodies.validate_body("INVOCATION", body.get("inputs", {}), "inputs")
    asked = _asked(agent, inputs)
    task = asked.message.content if asked.message.data is None else asked.message.data
    if (
        agent.terms.task_schema is not None
        and ReturnSchema(schema=agent.terms.task_schema).describe_errors(task) is not None
    ):
        raise validation_error("the agent's task schema does not take this input", "inputs")
    return create_invocation_run(host, principal, asked)


def create_invocation_run(host: Host, principal: Principal, asked: InvocationRequest) -> Run:
    run = host.build_run(principal, kind="invocation", workflow=AGENT_WORKFLOW, agent=asked.agent.agent_id, asked={})
    host.run_inputs[run.id] = asked
    return run


def _asked(agent: HostedAgent, inputs: dict[str, Any]) -> InvocationRequest:
    if "messages" not in inputs:
        task = inputs["input"]
        said = Message("user", to_canonical_text(task), data=None if isinstance(task, str) else task)
        return InvocationRequest(agent=agent, message=said)
    messages = [Message(each["role"], each["content"], data=each.get("data")) for each in inputs["messages"]]
    if messages[-1].role != "user":
        raise validation_error("the last message is the user's", "inputs.messages")
    return InvocationRequest(agent=agent, message=messages[-1], history=tuple(messages[:-1]))


async def run_invocation(host: Host, run: Run, log: RunLog) -> None:
    """Asks the agent and ends the run. An agent may have acted when a host goes down: it is not asked again."""
    asked: InvocationRequest | None = host.run_inputs.pop(run.id, None)
    if asked is None:
        raise RunError("host_restarted", "the host went down while the agent was asked; it may have acted")
    try:
        told = await call_agent(host, run, asked)
    except BadInput:  # what is wrong with the config is for its owner to see
        raise RunError("agent_gone", "the agent cannot be opened") from None
    run.metrics = sum_usage(log, told.events)
    if told.outcome == "failed":
        run.error = {"code": told.failure_code, "message": _WORDS[told.failure_code]}
        host.runs.end(run, log, "failed", [*told.events, run_failed(told.failure_code, _WORDS[told.failure_code])])
    else:
        host.runs.end(run, log, "completed", [*told.events, invocation_completed(told.output, told.outcome)])


async def call_agent(host: Host, run: Run, asked: InvocationRequest) -> InvocationResult:
    """One conversation of one turn with an agent, on the engine that holds all others."""
    agent = asked.agent
    options = RunOptions(inputs=(), agent=agent.instance or agent.name, folder=host.folder, config=host.settings.file)
    prepared = await build_run_plan(options)
    prepared.redactor.add_secrets(host.settings.redactor.secrets)  # an agent may know the tokens of tenants
    try:
        case = Case(
            id="invocation",
            user=Script((UserMessage(asked.message),)),
            history=asked.history,
            options=asked.options,
            limits=Limits(timeout_s=host.settings.defaults.timeout_s or 300.0, max_turns=1),
            keep_calls=True,
        )
        record = await run_trial(create_run_context(prepared, run.id, EventBus((), ())), PlannedTrial(case, 0))
    finally:
        await prepared.http.close()
    schema = asked.result_schema or agent.terms.return_schema
    valid = None if schema is None else matches_schema(schema, get_output(record))
    return build_invocation_result(record, agent, "invocation", source=asked.source, is_valid=valid)

"""One invocation of an agent, as a run of its own: the workflow `viva.agent`, with the agent as its root.

This is how an agent is asked over the public API for its answer: evals never tell what was said. The answer stands in
the outputs of the run's last event, for the tenant who asked, and nowhere else.
"""

from typing import Any

from msgspec import Struct

from viva.checks.golden import Returned, stringified
from viva.engine.bus import EventBus
from viva.engine.trial import run_trial
from viva.errors import BadInput
from viva.host import bodies
from viva.host.auth import Principal
from viva.host.events import invocation_completed, run_failed
from viva.host.host import Host
from viva.host.inventory import Listed
from viva.host.log import RunLog
from viva.host.refusals import invalid
from viva.host.runs import Failed
from viva.host.store import Run
from viva.host.telling import Told, Why, fits, metrics_of, output_of, told_of
from viva.host.workflows import AGENT
from viva.model.case import Case, Limits, UserMessage
from viva.model.message import Message
from viva.protocols import PlannedTrial
from viva.session.options import RunOptions
from viva.session.prepare import prepare
from viva.session.run import stage_of
from viva.users.script import Script

_WORDS: dict[Why, str] = {
    "agent_failed": "the agent did not answer",
    "structured_output_invalid": "the result is not what the agent's return schema demands",
    "tool_not_allowed": "the agent used a tool that it may not use",
}


class Asked(Struct, frozen=True, kw_only=True):
    """Who is asked what. `options` reach the agent; a `result_schema` of the caller's stands over the agent's own."""

    agent: Listed
    message: Message
    history: tuple[Message, ...] = ()
    options: dict[str, Any] = {}
    result_schema: dict[str, Any] | None = None
    source: str = "run-api"


def checked_run(host: Host, principal: Principal, body: dict[str, Any]) -> Run:
    """A run of the workflow `viva.agent`, if all that it needs is there."""
    agent = host.inventory.get(body.get("agentId", ""))
    if agent is None:
        raise invalid("there is no such agent", "agentId")
    inputs = bodies.fitting("INVOCATION", body.get("inputs", {}), "inputs")
    asked = _asked(agent, inputs)
    task = asked.message.content if asked.message.data is None else asked.message.data
    if agent.terms.task_schema is not None and Returned(schema=agent.terms.task_schema).wrong_with(task) is not None:
        raise invalid("the agent's task schema does not take this input", "inputs")
    return new_run(host, principal, asked)


def new_run(host: Host, principal: Principal, asked: Asked) -> Run:
    run = host.new_run(principal, kind="invocation", workflow=AGENT, agent=asked.agent.agent_id, asked={})
    host.waiting[run.id] = asked
    return run


def _asked(agent: Listed, inputs: dict[str, Any]) -> Asked:
    if "messages" not in inputs:
        task = inputs["input"]
        said = Message("user", stringified(task), data=None if isinstance(task, str) else task)
        return Asked(agent=agent, message=said)
    messages = [Message(each["role"], each["content"], data=each.get("data")) for each in inputs["messages"]]
    if messages[-1].role != "user":
        raise invalid("the last message is the user's", "inputs.messages")
    return Asked(agent=agent, message=messages[-1], history=tuple(messages[:-1]))


async def invoke(host: Host, run: Run, log: RunLog) -> None:
    """Asks the agent and ends the run. An agent may have acted when a host goes down: it is not asked again."""
    asked: Asked | None = host.waiting.pop(run.id, None)
    if asked is None:
        raise Failed("host_restarted", "the host went down while the agent was asked; it may have acted")
    try:
        told = await hold(host, run, asked)
    except BadInput:  # what is wrong with the config is for its owner to see
        raise Failed("agent_gone", "the agent cannot be opened") from None
    run.metrics = metrics_of(log, told.events)
    if told.outcome == "failed":
        run.error = {"code": told.why, "message": _WORDS[told.why]}
        host.runs.end(run, log, "failed", [*told.events, run_failed(told.why, _WORDS[told.why])])
    else:
        host.runs.end(run, log, "completed", [*told.events, invocation_completed(told.output, told.outcome)])


async def hold(host: Host, run: Run, asked: Asked) -> Told:
    """One conversation of one turn with an agent, on the engine that holds all others."""
    agent = asked.agent
    options = RunOptions(inputs=(), agent=agent.given or agent.name, folder=host.folder, config=host.settings.file)
    prepared = await prepare(options)
    prepared.redactor.learn(host.settings.redactor.secrets)  # an agent may know the tokens of tenants
    try:
        case = Case(
            id="invocation",
            user=Script((UserMessage(asked.message),)),
            history=asked.history,
            options=asked.options,
            limits=Limits(timeout_s=host.settings.defaults.timeout_s or 300.0, max_turns=1),
            keep_calls=True,
        )
        record = await run_trial(stage_of(prepared, run.id, EventBus((), ())), PlannedTrial(case, 0))
    finally:
        await prepared.http.close()
    schema = asked.result_schema or agent.terms.return_schema
    valid = None if schema is None else fits(schema, output_of(record))
    return told_of(record, agent, "invocation", source=asked.source, valid=valid)

"""What `viva serve --conformance` adds for OpenWOP's conformance suite: an agent, a suite, and test routes under
`/v1/host/sample`.

The agent echoes its input. On request it breaks a rule, for example with a tool that is not allowed, so that clients can
test whether the host enforces the rule. Routes that start runs wait for their end.
"""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from viva.host.errors import ApiError, not_found, not_provided, validation_error
from viva.host.events import EventDraft, read_summary, to_plain_name
from viva.host.host import Host
from viva.host.inventory import HostedAgent, HostedSuite
from viva.host.requests import parse_json
from viva.host.routes import authenticate, get_host, prepare_run, read_body, respond_json
from viva.host.store import Run
from viva.host.tokens import Principal
from viva.host.workflows import NOOP, InvocationRequest, build_invocation_run
from viva.model import codec
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.record.atomic_files import replace_file
from viva.record.private_files import make_private_folder

SUITE_ID, VERSION = "local.viva.evals.conformance", "1.0.0"
STRICT_RESULT: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
"""The return schema `conformance-strict-handoff` of OpenWOP."""
TOOL = "viva:echo"
PREFIX = "/v1/host/sample"
MAX_EXECUTORS = 32
_USAGE_FIELDS = {
    "provider": str, "model": str, "inputTokens": int, "outputTokens": int, "totalTokens": int,
    "costEstimateUsd": (int, float), "currency": str, "cacheHit": bool, "cacheReadTokens": int,
    "cacheWriteTokens": int, "nodeId": str, "traceId": str,
}  # fmt: skip
_REQUIRED_USAGE = ("provider", "model", "inputTokens", "outputTokens")


def echo(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Reply:
    """Replies with its input. `options["metadata"]` may ask for data in the reply, or for a tool call."""
    metadata: Mapping[str, Any] = options.get("metadata") or {}
    text = str(messages[-1].get("content", ""))
    tools = [ToolCall(str(tool), {}, id="attempt") for tool in (metadata.get("attempt_tool"),) if tool]
    results: dict[str, Any] = {"valid": {"answer": text}, "invalid": {"wrong": True}}
    return Reply(
        content=text,
        data=results[metadata["returns"]] if "returns" in metadata else None,
        tool_calls=tuple(tools),
        calls=(ModelCall("echo", "viva", len(text), len(text), cost_usd=0.0),),
    )


ECHO_AGENT = HostedAgent(
    agent_id="core.viva.conformance",
    name="conformance",
    persona="Conformance Echo",
    description="Replies with its input.",
    tools=(TOOL,),
    instance=echo,
)


def write_suite(folder: Path) -> HostedSuite:
    """Writes the built-in suite into a folder."""
    tasks = [
        ("exact", "hello", "exact", "hello"),
        ("contains", "hello world", "contains", "world"),
        ("json", {"a": [1, 2]}, "json-match", {"a": [1, 2]}),
    ]
    suite = {
        "suiteId": SUITE_ID,
        "version": VERSION,
        "modes": ["golden"],
        "tasks": [
            {
                "taskId": name,
                "input": task_input,
                "expected": {"kind": "golden", "match": {"strategy": strategy, "value": value}},
            }
            for name, task_input, strategy, value in tasks
        ],
    }
    make_private_folder(folder)
    path = folder / "conformance.json"
    replace_file(path, codec.encode(suite), private=True)
    return HostedSuite(path=path, ref=path.name)


def build_test_routes() -> list[Route]:
    post = ["POST"]
    return [
        Route(f"{PREFIX}/test/runs/{{runId}}/events", read_log),
        Route(f"{PREFIX}/test/reset", reset, methods=post),
        Route(f"{PREFIX}/test/emit-provider-usage", emit_usage, methods=post),
        Route(f"{PREFIX}/test/idempotency/concurrent-claim", race_for_run, methods=post),
        Route(f"{PREFIX}/agents/eval-run", run_builtin_suite, methods=post),
        Route(f"{PREFIX}/agents/live-invoke", invoke_agent, methods=post),
        Route(f"{PREFIX}/agents/deployment-transition", reject_deployment, methods=post),
        Route(f"{PREFIX}/agents/{{agentId}}/dispatch", dispatch_agent, methods=post),
    ]


async def read_log(request: Request) -> Response:
    """Responds with the events of a run, filtered by the query; an unknown run has none."""
    host, principal = get_host(request), authenticate(request)
    run = host.store.find_run(request.path_params["runId"], principal.tenant)
    query = request.query_params
    kind, node = query.get("type"), query.get("nodeId")
    cause = query.get("causationId") or query.get("correlationId")
    events = [logged.event for logged in host.logs.open_log(run.id).iterate()] if run else []
    return respond_json(
        {
            "events": [
                event
                for event in events
                if (kind is None or event.type == kind)
                and (node is None or event.node_id == node)
                and (cause is None or event.causation_id == cause)
            ]
        }
    )


async def reset(request: Request) -> Response:
    """Does nothing: scenarios share no state, and logs are permanent."""
    authenticate(request)
    return respond_json({"ok": True})


async def emit_usage(request: Request) -> Response:
    """Appends a `provider.usage` event to the log of a run, and creates the run if needed."""
    host, principal = get_host(request), authenticate(request)
    body = await _read_json_object(request)
    payload = _validate_usage(body.get("payload"))
    name = _get_optional_name(body, "runId")
    if name is None:
        raise validation_error("runId is missing", "runId")
    cause, node = _get_optional_name(body, "correlationId"), _get_optional_name(body, "nodeId")
    run = host.store.find_run(name, principal.tenant)
    if run is None:
        if host.store.has_run(name):  # it belongs to another tenant
            raise not_found("run")
        run = host.build_run(principal, kind="workflow", workflow="conformance-usage", request={})
        run.id = name
        host.store.create_run(run)
    is_executing = host.store.holds_lease(run.id)
    if not is_executing and host.store.claim_run(run.id) is None:
        raise ApiError(409, "run_terminal", "The run is finished", {"status": run.status})
    host.logs.open_log(run.id).append([EventDraft("provider.usage", payload, node, cause)])
    if not is_executing:
        host.store.release_lease(run.id)
    return respond_json({"ok": True, "runId": run.id})


async def race_for_run(request: Request) -> Response:
    """Lets several executors try to start one run at the same time. `delivered` counts how often its node was executed."""
    host, principal = get_host(request), authenticate(request)
    count = (await _read_json_object(request)).get("executors", 2)
    if type(count) is not int or not 2 <= count <= MAX_EXECUTORS:
        raise validation_error(f"executors must be an integer from 2 to {MAX_EXECUTORS}", "executors")
    run = host.build_run(principal, kind="workflow", workflow="conformance-noop", request={})
    all_ready = asyncio.Barrier(count)

    async def race(number: int) -> str:
        identity = compute_effect_identity(run, "noop")
        await all_ready.wait()
        if number == 0:
            host.store.create_run(run)
        await asyncio.sleep(0)  # all of them see the run before the first one tries
        host.runs.claim_and_start(run.id)
        return identity

    identities = await asyncio.gather(*map(race, range(count)))
    await host.runs.wait_for_end(run)
    delivered = len(host.logs.open_log(run.id).events_of_type("node.completed"))
    result = {"logicalInvocationId": identities[0], "mintedIds": identities, "attempted": count, "delivered": delivered}
    return respond_json(result)


def compute_effect_identity(run: Run, node: str, ordinal: int = 0) -> str:
    """Computes the id of the effect of a node, as OpenWOP defines it: the same for every executor and every attempt."""
    fields = ("openwop:activity:v2", run.tenant, run.id, node, str(ordinal), NOOP)
    return urlsafe_b64encode(sha256("\0".join(fields).encode()).digest()).decode().rstrip("=")


def _validate_usage(payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise validation_error("payload must be an object", "payload")
    usage: dict[str, Any] = payload
    texts = [value for value in usage.values() if isinstance(value, str)]
    if any("secret:" in text.lower() for text in texts) or any("credential" in key.lower() for key in usage):
        raise ApiError(400, "provider_usage_credential_leak", "The payload refers to a credential")
    for key, value in usage.items():
        kind = _USAGE_FIELDS.get(key)
        is_valid = kind is not None and isinstance(value, kind) and isinstance(value, bool) == (key == "cacheHit")
        if not is_valid or (isinstance(value, int | float) and value < 0):
            raise validation_error("Unknown or invalid field of usage", f"payload.{to_plain_name(key)}")
    if missing := [key for key in _REQUIRED_USAGE if key not in usage]:
        raise validation_error(f"payload is missing {', '.join(missing)}", "payload")
    return usage


async def run_builtin_suite(request: Request) -> Response:
    """Runs the built-in suite, with the built-in agent or another one, and waits for the end of the run."""
    host, principal = get_host(request), authenticate(request)
    body = await _read_json_object(request)
    eval_request = {
        "mode": "eval",
        "evalSuiteRef": f"{SUITE_ID}@{VERSION}",
        "agentId": body.get("agentId") or ECHO_AGENT.agent_id,
        "configurable": {"evalModes": body.get("modes") or ["golden"]},
    }
    mutation = await prepare_run(host, principal, codec.encode(eval_request))
    mutation.write()
    mutation.start()
    run = await host.runs.wait_for_end(host.find_run(principal, codec.decode(mutation.body)["runId"]))
    summary = read_summary(host.logs.open_log(run.id)) or {}
    fields = ("suiteId", "suiteVersion", "taskCount", "passed", "aggregateScore")
    return respond_json({"runId": run.id, **{key: summary[key] for key in fields if key in summary}}, 201)


async def invoke_agent(request: Request) -> Response:
    """Invokes an agent, and waits for the end of the run. The body tells the built-in agent which rule to break."""
    host, principal = get_host(request), authenticate(request)
    body = await _read_json_object(request)
    agent = host.agents.find(_get_optional_name(body, "agentId") or ECHO_AGENT.agent_id, principal.tenant)
    if agent is None:
        raise validation_error("Unknown agent", "agentId")
    metadata: dict[str, Any] = {}
    if "returnSchemaRef" in body:
        metadata["returns"] = "invalid" if body.get("forceInvalidResult") else "valid"
    if body.get("attemptTool"):
        metadata["attempt_tool"] = str(body["attemptTool"])
    source = body.get("source", "run-api")
    if source not in ("workflow-node", "run-api", "chat-mention"):
        raise validation_error("source must be workflow-node, run-api or chat-mention", "source")
    invocation = InvocationRequest(
        message=Message("user", "hello"),
        options={"metadata": metadata} if metadata else {},
        result_schema=STRICT_RESULT if "returnSchemaRef" in body else None,
        source=source,
    )
    run = await _run_invocation(host, principal, agent, invocation)
    ended = host.logs.open_log(run.id).events_of_type("agent.invocation.completed")
    fields = ("invocationId", "outcome")
    return respond_json({"runId": run.id, **({key: ended[-1].payload[key] for key in fields} if ended else {})}, 201)


async def dispatch_agent(request: Request) -> Response:
    """Runs one turn of an agent, and returns its events."""
    host, principal = get_host(request), authenticate(request)
    body = await _read_json_object(request)
    agent = host.agents.find(request.path_params["agentId"], principal.tenant)
    if agent is None:
        raise not_found("agent")
    task = body.get("task", {})
    text = task if isinstance(task, str) else codec.encode_canonically(task).decode()
    message = Message("user", text, data=None if isinstance(task, str) else task)
    run = await _run_invocation(host, principal, agent, InvocationRequest(message=message))
    log = host.logs.open_log(run.id)
    events = [logged.event for logged in log.iterate() if logged.event.type.startswith("agent.")]
    outcomes = [event.payload["outcome"] for event in events if "outcome" in event.payload]
    return respond_json(
        {
            "agentId": agent.agent_id,
            "status": outcomes[-1] if outcomes else "failed",
            "runId": run.id,
            "toolSurface": list(agent.tools),
            "events": [{"type": event.type, **event.payload} for event in events],
        }
    )


async def reject_deployment(request: Request) -> Response:
    """Answers 501: deployments are not provided."""
    authenticate(request)
    raise not_provided("agents.deployment")


async def _run_invocation(host: Host, principal: Principal, agent: HostedAgent, invocation: InvocationRequest) -> Run:
    run = build_invocation_run(host, principal, agent)
    host.store.create_run(run, codec.encode(invocation))
    host.runs.start(run)
    return await host.runs.wait_for_end(run)


async def _read_json_object(request: Request) -> dict[str, Any]:
    body = parse_json(await read_body(request))
    if not isinstance(body, dict):
        raise validation_error("The body must be an object")
    return cast("dict[str, Any]", body)


def _get_optional_name(body: Mapping[str, Any], field: str) -> str | None:
    """An optional name of 1 to 256 characters."""
    name = body.get(field)
    if name is not None and not (isinstance(name, str) and 1 <= len(name) <= 256):
        raise validation_error(f"{field} must be a text of 1 to 256 characters", field)
    return name

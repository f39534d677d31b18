"""What a host has for OpenWOP's conformance suite, and only where it was asked for: an agent, a suite, and doors to them
under `/v1/host/sample`.

The agent echoes. Asked to, it breaks a rule (a result that its schema forbids, a tool that it may not use), so that one
can see the host hold it to that rule. The doors show what the host does anyway: each starts an ordinary run of the one who
asks, waits for its end, and says its id.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from viva.host import creation as creating
from viva.host import invocations
from viva.host import schemas as bodies
from viva.host.agents import HostedAgent
from viva.host.auth import Principal
from viva.host.errors import ApiError, not_found, not_provided, validation_error
from viva.host.events import to_plain_name
from viva.host.host import Host
from viva.host.invocations import InvocationRequest
from viva.host.log import EventDraft
from viva.host.routes import authenticate, get_host, read_body, respond_json
from viva.host.store import Run
from viva.host.suites import HostedSuite
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
"""What `conformance-strict-handoff` stands for."""
TOOL = "viva:echo"
PREFIX = "/v1/host/sample"
_USAGE = {
    "provider": str, "model": str, "inputTokens": int, "outputTokens": int, "totalTokens": int,
    "costEstimateUsd": (int, float), "currency": str, "cacheHit": bool, "cacheReadTokens": int,
    "cacheWriteTokens": int, "nodeId": str, "traceId": str,
}  # fmt: skip
_NEEDED = ("provider", "model", "inputTokens", "outputTokens")


def echo(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Reply:
    """Says again what it was told."""
    asked: Mapping[str, Any] = options.get("metadata") or {}
    said = str(messages[-1].get("content", ""))
    tools = [ToolCall(str(tool), {}, id="attempt") for tool in (asked.get("attempt_tool"),) if tool]
    return Reply(
        content=said,
        data=_result(asked, said),
        tool_calls=tuple(tools),
        calls=(ModelCall("echo", "viva", len(said), len(said), cost_usd=0.0),),
    )


def _result(asked: Mapping[str, Any], said: str) -> Any:
    if "returns" not in asked:
        return None
    return {"answer": said} if asked["returns"] == "valid" else {"wrong": True}


ECHO_AGENT = HostedAgent(
    agent_id="core.viva.conformance",
    name="conformance",
    persona="Conformance Echo",
    description="Says again what it was told.",
    tools=(TOOL,),
    instance=echo,
)


def write_suite(folder: Path) -> HostedSuite:
    """The suite, written where the host keeps its own things."""
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
                "input": asked,
                "expected": {"kind": "golden", "match": {"strategy": strategy, "value": value}},
            }
            for name, asked, strategy, value in tasks
        ],
    }
    make_private_folder(folder)
    path = folder / "conformance.json"
    replace_file(path, codec.encode(suite), private=True)
    return HostedSuite(path=path, ref=path.name)


def build_test_routes() -> list[Route]:
    post = ["POST"]
    return [
        Route(f"{PREFIX}/test/runs/{{run_id}}/events", read_log),
        Route(f"{PREFIX}/test/reset", reset, methods=post),
        Route(f"{PREFIX}/test/emit-provider-usage", emit_usage, methods=post),
        Route(f"{PREFIX}/agents/eval-run", run_builtin_suite, methods=post),
        Route(f"{PREFIX}/agents/live-invoke", invoke_agent, methods=post),
        Route(f"{PREFIX}/agents/deployment-transition", reject_deployment, methods=post),
        Route(f"{PREFIX}/agents/{{agent_id}}/dispatch", dispatch_agent, methods=post),
    ]


async def read_log(request: Request) -> Response:
    """The log of a run of the one who asks; an unknown one has no events."""
    host, principal = get_host(request), authenticate(request)
    run = host.store.find_run(request.path_params["run_id"], principal.tenant)
    asked = request.query_params
    kind, node = asked.get("type"), asked.get("nodeId")
    cause = asked.get("causationId") or asked.get("correlationId")
    events = [each.event for each in host.logs.open_log(run.id).events] if run else []
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
    """Nothing is left over between scenarios here, so there is nothing to take back: logs stay as they are."""
    authenticate(request)
    return respond_json({"ok": True})


async def emit_usage(request: Request) -> Response:
    """One `provider.usage` in the log of a run, which is made for it."""
    host, principal = get_host(request), authenticate(request)
    body = await _body(request)
    payload = _usage(body.get("payload"))
    name = _text(body, "runId")
    if name is None:
        raise validation_error("runId names a run", "runId")
    cause, node = _text(body, "correlationId"), _text(body, "nodeId")
    run = host.store.find_run(name, principal.tenant)
    if run is None:
        run = host.build_run(principal, kind="workflow", workflow="conformance-usage", asked={})
        run.id, run.status = name, "completed"
        _keep_new(host, run)
    host.logs.open_log(run.id).append([EventDraft("provider.usage", payload, node, cause)])
    return respond_json({"ok": True, "runId": run.id})


def _keep_new(host: Host, run: Run) -> None:
    if host.store.has_run(run.id):  # somebody else's: it is not there for this tenant, and stays theirs
        raise not_found("run")
    host.store.save_run(run)


def _usage(payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise validation_error("payload is an object", "payload")
    given: dict[str, Any] = payload
    texts = [value for value in given.values() if isinstance(value, str)]
    if any("secret:" in text.lower() for text in texts) or any("credential" in key.lower() for key in given):
        raise ApiError(400, "provider_usage_credential_leak", "the payload refers to a credential")
    for key, value in given.items():
        fits = key in _USAGE and isinstance(value, _USAGE[key]) and isinstance(value, bool) == (key == "cacheHit")
        if not fits or (isinstance(value, int | float) and value < 0):
            raise validation_error("the payload has a field that usage does not have", f"payload.{to_plain_name(key)}")
    if missing := [key for key in _NEEDED if key not in given]:
        raise validation_error(f"the payload misses {', '.join(missing)}", "payload")
    return given


async def run_builtin_suite(request: Request) -> Response:
    """The built-in suite on the built-in agent (or on another), to its end."""
    host, principal = get_host(request), authenticate(request)
    body = await _body(request)
    asked = {
        "mode": "eval",
        "evalSuiteRef": f"{SUITE_ID}@{VERSION}",
        "agentId": body.get("agentId") or ECHO_AGENT.agent_id,
        "configurable": {"evalModes": body.get("modes") or ["golden"]},
    }
    run = await _held(host, principal, codec.encode(asked))
    summary = run.summary or {}
    shown = ("suiteId", "suiteVersion", "taskCount", "passed", "aggregateScore")
    return respond_json({"runId": run.id, **{key: summary[key] for key in shown if key in summary}}, 201)


async def invoke_agent(request: Request) -> Response:
    """One invocation, to its end. The built-in agent breaks the rule that is asked for; the host holds it to it."""
    host, principal = get_host(request), authenticate(request)
    body = await _body(request)
    agent = host.agents.get(_text(body, "agentId") or ECHO_AGENT.agent_id)
    if agent is None:
        raise validation_error("there is no such agent", "agentId")
    metadata: dict[str, Any] = {}
    if "returnSchemaRef" in body:
        metadata["returns"] = "invalid" if body.get("forceInvalidResult") else "valid"
    if body.get("attemptTool"):
        metadata["attempt_tool"] = str(body["attemptTool"])
    source = body.get("source", "run-api")
    if source not in ("workflow-node", "run-api", "chat-mention"):
        raise validation_error("source is workflow-node, run-api or chat-mention", "source")
    asked = InvocationRequest(
        agent=agent,
        message=Message("user", "hello"),
        options={"metadata": metadata} if metadata else {},
        result_schema=STRICT_RESULT if "returnSchemaRef" in body else None,
        source=source,
    )
    run = await _invoked(host, principal, asked)
    ended = host.logs.open_log(run.id).events_of_type("agent.invocation.completed")
    told = {"invocationId": ended[-1].payload["invocationId"], "outcome": ended[-1].payload["outcome"]} if ended else {}
    return respond_json({"runId": run.id, **told}, 201)


async def dispatch_agent(request: Request) -> Response:
    """One turn of an agent, with the events that it made."""
    host, principal = get_host(request), authenticate(request)
    body = await _body(request)
    agent = host.agents.get(request.path_params["agent_id"])
    if agent is None:
        raise not_found("agent")
    task = body.get("task", {})
    text = task if isinstance(task, str) else codec.canonical_bytes(task).decode()
    asked = InvocationRequest(agent=agent, message=Message("user", text, data=None if isinstance(task, str) else task))
    run = await _invoked(host, principal, asked)
    events = [each.event for each in host.logs.open_log(run.id).events if each.event.type.startswith("agent.")]
    outcome = next((e.payload["outcome"] for e in reversed(events) if "outcome" in e.payload), "failed")
    shown = [{"type": event.type, **event.payload} for event in events]
    told = {"agentId": agent.agent_id, "status": outcome, "runId": run.id, "toolSurface": list(agent.tools)}
    return respond_json({**told, "events": shown})


async def reject_deployment(request: Request) -> Response:
    """Deployments are not built here: 501."""
    authenticate(request)
    raise not_provided("agents.deployment")


async def _invoked(host: Host, principal: Principal, asked: InvocationRequest) -> Run:
    run = invocations.create_invocation_run(host, principal, asked)
    host.store.save_run(run)
    host.runs.start(run)
    return await host.runs.wait_for_end(run)


async def _held(host: Host, principal: Principal, raw: bytes) -> Run:
    deed = await creating.prepare_run(host, principal, raw)
    deed.write()
    deed.start()
    run = host.find_run(principal, codec.decode(deed.body)["runId"])
    return await host.runs.wait_for_end(run)


async def _body(request: Request) -> dict[str, Any]:
    body = bodies.parse_json(await read_body(request))
    if not isinstance(body, dict):
        raise validation_error("the body is an object")
    return cast("dict[str, Any]", body)


def _text(body: Mapping[str, Any], name: str) -> str | None:
    """A name that may be left out."""
    given = body.get(name)
    if given is not None and not (isinstance(given, str) and 1 <= len(given) <= 256):
        raise validation_error(f"{name} is a name", name)
    return given

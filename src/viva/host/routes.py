"""The endpoints of the API, one function each."""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from viva.host.connections import CONNECTION_KEY
from viva.host.discovery import MAX_BODY_BYTES, build_openapi, compute_etag
from viva.host.errors import ApiError, forbidden, not_found, not_provided, validation_error
from viva.host.evals import prepare_eval_run
from viva.host.events import (
    MAX_BUFFER_MS,
    EventDraft,
    RunLog,
    StreamOptions,
    build_snapshot,
    diff_logs,
    iter_frames,
    parse_last_event_id,
    parse_number,
    parse_stream_modes,
    read_summary,
    utc_timestamp,
    wait_for_events,
)
from viva.host.host import Host
from viva.host.inventory import reject_unknown_keys
from viva.host.monitoring import RUN_ID_KEY
from viva.host.requests import KEY_HEADER, Mutation, decode_body, parse_large_json, validate_body
from viva.host.store import Run
from viva.host.tokens import Principal
from viva.host.workflows import AGENT_WORKFLOW, prepare_invocation_run, select_used_inputs, validate_inputs
from viva.model import codec

JSON = "application/json"
MAX_RUN_IDS = 100
MAX_ANNOTATIONS = 1000
MAX_METADATA_BYTES = 50 * 1024
REDACTED = "[redacted]"
_SECRET_PATTERN = re.compile(
    r"\b(?:sk|pk|rk|hk|ghp|gho|xox[abp]|viva)[-_][A-Za-z0-9_-]{8,}|\bAKIA[0-9A-Z]{12,}"
    r"|(?<![\w-])eyJ[\w-]+\.[\w-]+\.[\w-]+|(?i:\bbearer\s+)[\w.~+/-]{8,}=*"
    r"|(?i:\b(?:api[_-]?key|secret|password|token)\b\s*[:=]\s*)\S+"
)
"""Matches keys and tokens, which users may paste into an annotation."""


def get_host(request: Request) -> Host:
    return request.app.state.host


def authenticate(request: Request) -> Principal:
    """Returns the principal of a request, and counts the request. Raises an ApiError. It may be called more than once."""
    if not hasattr(request.state, "principal"):
        host = get_host(request)
        principal = host.tokens.authenticate(request.headers)
        if (connection := request.scope.get(CONNECTION_KEY)) is not None:
            connection.mark_authenticated()
        host.runs.limits.count_request(principal.tenant)
        request.state.principal = principal
    return request.state.principal


def find_run(request: Request) -> Run:
    """Returns the run in the path of a request. Raises an ApiError if the principal may not read it."""
    return get_host(request).find_run(authenticate(request), request.path_params["runId"])


def respond_json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(codec.encode(body), status, headers, JSON)


async def read_body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            message = f"The body is larger than {MAX_BODY_BYTES} bytes"
            raise ApiError(413, "payload_too_large", message, {"maxRequestBodyBytes": MAX_BODY_BYTES})
        parts.append(part)
    return b"".join(parts)


async def respond_once(
    request: Request, principal: Principal, raw: bytes, validate: Callable[[], Awaitable[Mutation]]
) -> Response:
    """Responds to a mutation, which is executed once for each Idempotency-Key."""
    operation = f"{request.method} {request.url.path}"
    key = request.headers.get(KEY_HEADER)
    status, body, headers = await get_host(request).idempotency.run_once(principal, operation, key, raw, validate)
    return Response(body, status, headers, JSON)


async def get_capabilities(request: Request) -> Response:
    host = get_host(request)
    headers = {"Cache-Control": "public, max-age=60", "ETag": host.capabilities_etag}
    headers["Capabilities-Etag"] = host.negotiation_etag
    if _has_current_etag(request, host.capabilities_etag):
        return Response(status_code=304, headers=headers)
    return Response(host.capabilities, 200, headers, JSON)


async def get_openapi(request: Request) -> Response:
    document = build_openapi(get_host(request).options.public_url)
    return respond_json(document, headers={"Cache-Control": "public, max-age=60"})


async def create_run(request: Request) -> Response:
    host, principal = get_host(request), authenticate(request)
    principal.require_scope("runs:create")
    raw = await read_body(request)
    with host.runs.turns.work_for(principal.tenant):
        response = await respond_once(request, principal, raw, lambda: prepare_run(host, principal, raw))
    request.scope[RUN_ID_KEY] = codec.decode(bytes(response.body))["runId"]
    return response


async def prepare_run(host: Host, principal: Principal, raw: bytes) -> Mutation:
    """Validates a request for a new run. Raises an ApiError."""
    value = await parse_large_json(raw)
    if not host.eval_modes and isinstance(value, dict) and value.get("mode") == "eval":
        raise not_provided("agents.evalSuite")
    body = validate_body("CREATE_RUN", value)
    _reject_unsupported(principal, body)
    host.runs.check_capacity(principal.tenant)
    inputs: bytes | None = None
    if body.get("mode") == "eval":
        run = await prepare_eval_run(host, principal, body)
    elif body["workflowId"] == AGENT_WORKFLOW:
        run, inputs = prepare_invocation_run(host, principal, body)
    else:
        run = _build_workflow_run(host, principal, body)
    run.tags, run.metadata = body.get("tags"), body.get("metadata")
    url = host.run_url(run)
    response = {"runId": run.id, "status": "pending", "eventsUrl": f"{url}/events", "statusUrl": url}
    return Mutation(
        201,
        codec.encode(response),
        write=lambda: host.store.create_run(run, inputs),
        start=lambda: host.runs.start(run),
    )


def _reject_unsupported(principal: Principal, body: dict[str, Any]) -> None:
    if body.get("tenantId", principal.tenant) != principal.tenant:
        raise forbidden("tenantId is not the tenant of this token")
    configurable = body.get("configurable", {})
    if "mockProvider" in configurable:
        raise ApiError(403, "mock_provider_forbidden", "This host does not mock providers")
    for fields, key, capability in (
        (configurable, "budget", "budget"),
        (body, "callbackUrl", "webhooks"),
        (body, "residency", "residency"),
    ):
        if key in fields:
            raise not_provided(capability)
    if len(codec.encode(body.get("metadata", {}))) > MAX_METADATA_BYTES:
        raise validation_error(f"metadata is larger than {MAX_METADATA_BYTES} bytes", "metadata")


def _build_workflow_run(host: Host, principal: Principal, body: dict[str, Any]) -> Run:
    workflow = host.workflows.get(body["workflowId"])
    if workflow is None:
        raise validation_error("Unknown workflow", "workflowId")
    inputs = body.get("inputs", {})
    validate_inputs(workflow, inputs)
    reject_unknown_keys(body.get("configurable", {}))
    return host.build_run(
        principal, kind="workflow", workflow=workflow["id"], request=select_used_inputs(workflow, inputs)
    )


async def get_run(request: Request) -> Response:
    snapshot = build_snapshot(find_run(request))
    etag = compute_etag(snapshot)
    headers = {"Cache-Control": "private, no-cache", "ETag": etag}
    if _has_current_etag(request, etag):
        return Response(status_code=304, headers=headers)
    return respond_json(snapshot, headers=headers)


async def stream_events(request: Request) -> Response:
    host, run = get_host(request), find_run(request)
    log = host.logs.open_log(run.id)
    last_event_id = request.headers.get("last-event-id")
    options = StreamOptions(
        modes=parse_stream_modes(request.query_params.get("streamMode")),
        buffer_ms=parse_number(request.query_params.get("bufferMs"), "bufferMs", 0, 0, MAX_BUFFER_MS),
        after_sequence=await parse_last_event_id(last_event_id, log),
        is_resumed=bool(last_event_id),
    )
    headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
    if request.method == "HEAD":  # answered without waiting for events
        return Response(None, 200, headers, "text/event-stream")
    frames = iter_frames(log, options, lambda: host.store.find_run(run.id, run.tenant) or run, host.shutdown)
    return StreamingResponse(frames, 200, headers, "text/event-stream")


async def poll_events(request: Request) -> Response:
    host, run = get_host(request), find_run(request)
    after_sequence = parse_number(request.query_params.get("lastSequence"), "lastSequence", -1, -1, 2**53)
    timeout_s = parse_number(request.query_params.get("timeout"), "timeout", 30, 1, 60)
    log = host.logs.open_log(run.id)
    events, is_complete = await wait_for_events(log, after_sequence, timeout_s, host.shutdown)
    return respond_json({"events": events, "isComplete": is_complete})


async def cancel_run(request: Request) -> Response:
    host, principal, run = get_host(request), authenticate(request), find_run(request)
    principal.require_scope("runs:cancel")
    raw = await read_body(request)

    async def validate() -> Mutation:
        decode_body("CANCEL", raw)
        current = host.find_run(principal, run.id)
        if current.is_finished and current.status != "cancelled":
            raise ApiError(409, "run_terminal", "The run is finished", {"status": current.status})
        if not current.is_finished:
            current = host.runs.cancel(current, principal.name)
        return Mutation(200, codec.encode({"runId": current.id, "status": current.status}))

    return await respond_once(request, principal, raw, validate)


async def cancel_runs(request: Request) -> Response:
    """Cancels runs of the caller. The response has one result for each run; one that fails does not stop the others."""
    host, principal = get_host(request), authenticate(request)
    principal.require_scope("runs:cancel")
    raw = await read_body(request)

    async def validate() -> Mutation:
        names: list[str] = decode_body("BULK_CANCEL", raw)["runIds"]
        if len(names) > MAX_RUN_IDS:
            message = f"At most {MAX_RUN_IDS} runs can be cancelled in one request"
            raise validation_error(message, "runIds", maxRunIds=MAX_RUN_IDS)
        results = [cancel_one(host, host.store.find_run(name, principal.tenant), name, principal) for name in names]
        return Mutation(200, codec.encode({"results": results}))

    return await respond_once(request, principal, raw, validate)


def cancel_one(host: Host, run: Run | None, name: str, principal: Principal) -> dict[str, Any]:
    """Cancels a run if possible, and returns its entry of the response."""
    error = None
    if run is None:
        error = {"code": "not_found", "message": "run not found"}
    elif run.is_finished and run.status != "cancelled":
        error = {"code": "run_terminal", "message": "The run is finished"}
    elif not run.is_finished:
        run = host.runs.cancel(run, principal.name)
    outcome = {"error": error} if error else {"status": run.status if run else None}
    return {"runId": name, "ok": error is None, **outcome}


async def get_eval_summary(request: Request) -> Response:
    run = find_run(request)
    if run.kind != "eval" or not get_host(request).eval_modes:
        raise not_found("eval run")
    if not run.is_finished:
        raise ApiError(409, "run_not_terminal", "The eval is still running", {"status": run.status})
    summary = read_summary(get_host(request).logs.open_log(run.id))
    if summary is None:
        raise not_found("eval summary")
    return respond_json(summary)


async def diff_runs(request: Request) -> Response:
    host, run = get_host(request), find_run(request)
    against = request.query_params.get("against")
    if not against:
        raise validation_error("The parameter against is missing: the run to compare with", "against")
    other = host.find_run(authenticate(request), against)
    return respond_json(await diff_logs(run, other, host.logs.open_log(run.id), host.logs.open_log(other.id)))


async def list_agents(request: Request) -> Response:
    principal = authenticate(request)
    principal.require_scope("runs:read")
    return respond_json(get_host(request).agents.describe_agents(principal.tenant))


async def get_agent(request: Request) -> Response:
    principal = authenticate(request)
    principal.require_scope("runs:read")
    return respond_json(get_host(request).agents.describe_agent(request.path_params["agentId"], principal.tenant))


async def get_workflow(request: Request) -> Response:
    authenticate(request).require_scope("runs:read")
    workflow = get_host(request).workflows.get(request.path_params["workflowId"])
    if workflow is None:
        raise not_found("workflow")
    return respond_json(workflow)


async def list_annotations(request: Request) -> Response:
    return respond_json({"annotations": get_host(request).store.load_annotations(find_run(request).id)})


async def create_annotation(request: Request) -> Response:
    host, principal, run = get_host(request), authenticate(request), find_run(request)
    principal.require_scope("annotations:write")
    raw = await read_body(request)

    async def validate() -> Mutation:
        log = host.logs.open_log(run.id)
        redact = host.settings.redactor.redact_text
        annotation = await build_annotation(decode_body("ANNOTATION", raw), log, principal, redact)
        signal = {"kind": annotation["signal"]["kind"]}
        if host.store.count_annotations(run.id) >= MAX_ANNOTATIONS:
            raise ApiError(409, "too_many_annotations", f"A run can have {MAX_ANNOTATIONS} annotations")
        notice = EventDraft("run.annotated", {"annotationId": annotation["annotationId"], "signal": signal})
        return Mutation(
            201,
            codec.encode(annotation),
            write=lambda: host.store.add_annotation(run.id, annotation),
            start=lambda: log.send_notice(notice),
        )

    return await respond_once(request, principal, raw, validate)


async def build_annotation(
    body: Mapping[str, Any], log: RunLog, principal: Principal, redact: Callable[[str], str]
) -> dict[str, Any]:
    """Builds an annotation, with secrets redacted. Annotations change neither events nor scores of a run."""
    target = body.get("target", {})
    if target:
        names = {"eventId": "an event", "nodeId": "a node"}
        async for page in log.iterate_pages():
            ids = {
                "eventId": {logged.event.event_id for logged in page},
                "nodeId": {logged.event.node_id for logged in page},
            }
            names = {field: name for field, name in names.items() if target.get(field) not in ids[field]}
        for field, name in names.items():
            if field in target:
                raise validation_error(f"target.{field} is not {name} of this run", f"target.{field}")

    def clean(text: str) -> str:
        return redact(_SECRET_PATTERN.sub(REDACTED, text))

    signal = {key: clean(value) if isinstance(value, str) else value for key, value in body["signal"].items()}
    annotation = {
        "annotationId": f"ann-{secrets.token_hex(12)}",
        "target": {"runId": log.run_id, **target},
        "signal": {**signal, "kind": body["signal"]["kind"]},
        "actor": {"principalRef": principal.name},
        "createdAt": utc_timestamp(),
    }
    return {**annotation, "note": clean(body["note"])} if "note" in body else annotation


async def unknown_endpoint(request: Request) -> Response:
    """Responds 404. With 501, clients would think that the feature is advertised."""
    authenticate(request)
    raise not_found("endpoint")


def make_unsupported_endpoint(capability: str) -> Callable[[Request], Awaitable[Response]]:
    """Makes an endpoint that responds 501: it is part of OpenWOP, but this host does not provide it."""

    async def endpoint(request: Request) -> Response:
        authenticate(request)
        raise not_provided(capability)

    return endpoint


def _has_current_etag(request: Request, etag: str) -> bool:
    known = request.headers.get("if-none-match", "")
    return known == "*" or etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]

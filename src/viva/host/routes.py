"""The endpoints, one function each: who asks, what is asked, and the answer. What it takes stands elsewhere."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from viva.host import creation as creating
from viva.host import schemas as bodies
from viva.host.annotations import build_annotation
from viva.host.auth import Principal
from viva.host.diff import diff_logs
from viva.host.discovery import MAX_BODY_BYTES, compute_etag
from viva.host.errors import ApiError, not_found, not_provided, validation_error
from viva.host.events import run_annotated
from viva.host.host import Host
from viva.host.idempotency import KEY_HEADER, Mutation
from viva.host.openapi import build_openapi
from viva.host.snapshots import build_snapshot, build_snapshot_after
from viva.host.stream import (
    MAX_BUFFER_MS,
    StreamOptions,
    parse_last_event_id,
    parse_modes,
    parse_number,
    stream_frames,
    wait_for_events,
)
from viva.model import codec

JSON = "application/json"


def get_host(request: Request) -> Host:
    return request.app.state.host


def respond_json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(codec.encode(body), status, headers, JSON)


def authenticate(request: Request) -> Principal:
    return get_host(request).tokens.authenticate(request.headers)


async def read_body(request: Request) -> bytes:
    """The body, as long as it is not too long to be meant."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            message = f"a body has at most {MAX_BODY_BYTES} bytes"
            raise ApiError(413, "payload_too_large", message, {"maxRequestBodyBytes": MAX_BODY_BYTES})
        parts.append(part)
    return b"".join(parts)


async def respond_once(
    request: Request, principal: Principal, raw: bytes, check: Callable[[], Awaitable[Mutation]]
) -> Response:
    """A change, done once for each Idempotency-Key."""
    operation = f"{request.method} {request.url.path}"
    key = request.headers.get(KEY_HEADER)
    status, body, headers = await get_host(request).idempotency.run_once(principal, operation, key, raw, check)
    return Response(body, status, headers, JSON)


async def get_capabilities(request: Request) -> Response:
    host = get_host(request)
    headers = {"Cache-Control": "public, max-age=60", "ETag": host.capabilities_etag}
    if _unchanged(request, host.capabilities_etag):
        return Response(status_code=304, headers=headers)
    return Response(host.capabilities, 200, headers, JSON)


async def get_openapi(request: Request) -> Response:
    return respond_json(build_openapi(get_host(request).options), headers={"Cache-Control": "public, max-age=60"})


async def create_run(request: Request) -> Response:
    host, principal = get_host(request), authenticate(request)
    principal.require_scope("runs:create")
    raw = await read_body(request)
    return await respond_once(request, principal, raw, lambda: creating.prepare_run(host, principal, raw))


async def get_run(request: Request) -> Response:
    shown = build_snapshot(get_host(request).find_run(authenticate(request), request.path_params["run_id"]))
    tag = compute_etag(shown)
    headers = {"Cache-Control": "private, no-cache", "ETag": tag}
    return (
        Response(status_code=304, headers=headers) if _unchanged(request, tag) else respond_json(shown, headers=headers)
    )


async def stream_events(request: Request) -> Response:
    host = get_host(request)
    run = host.find_run(authenticate(request), request.path_params["run_id"])
    log = host.logs.open_log(run.id)
    last = request.headers.get("last-event-id")
    watching = StreamOptions(
        modes=parse_modes(request.query_params.get("streamMode")),
        buffer_ms=parse_number(request.query_params.get("bufferMs"), "bufferMs", 0, 0, MAX_BUFFER_MS),
        after_sequence=parse_last_event_id(last, log),
        is_resumed=bool(last),
    )
    headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
    if request.method == "HEAD":  # who wants no events does not wait for the last of them
        return Response(None, 200, headers, "text/event-stream")
    frames = stream_frames(
        log, watching, lambda events: build_snapshot_after(_current(host, run), events), host.shutdown
    )
    return StreamingResponse(frames, 200, headers, "text/event-stream")


def _current(host: Host, run: Any) -> Any:
    return host.store.find_run(run.id, run.tenant) or run


async def poll_events(request: Request) -> Response:
    host = get_host(request)
    run = host.find_run(authenticate(request), request.path_params["run_id"])
    after = parse_number(request.query_params.get("lastSequence"), "lastSequence", -1, -1, 2**53)
    timeout_s = parse_number(request.query_params.get("timeout"), "timeout", 30, 1, 60)
    events, complete = await wait_for_events(host.logs.open_log(run.id), after, timeout_s, host.shutdown)
    return respond_json({"events": events, "isComplete": complete})


async def cancel_run(request: Request) -> Response:
    host, principal = get_host(request), authenticate(request)
    run = host.find_run(principal, request.path_params["run_id"])
    principal.require_scope("runs:cancel")
    raw = await read_body(request)

    async def check() -> Mutation:
        bodies.decode_body("CANCEL", raw)
        current = host.find_run(principal, run.id)
        if current.is_finished and current.status != "cancelled":
            raise ApiError(409, "run_terminal", "the run is over already", {"status": current.status})
        if not current.is_finished:
            current = host.runs.cancel(current, principal.name)
        return Mutation(200, codec.encode({"runId": current.id, "status": current.status}))

    return await respond_once(request, principal, raw, check)


async def get_eval_summary(request: Request) -> Response:
    host = get_host(request)
    run = host.find_run(authenticate(request), request.path_params["run_id"])
    if run.kind != "eval" or not host.eval_modes:
        raise not_found("eval run")
    if not run.is_finished:
        raise ApiError(409, "run_not_terminal", "the eval is still running", {"status": run.status})
    if run.summary is None:
        raise not_found("eval summary")
    return respond_json(run.summary)


async def diff_runs(request: Request) -> Response:
    host, principal = get_host(request), authenticate(request)
    a = host.find_run(principal, request.path_params["run_id"])
    against = request.query_params.get("against")
    if not against:
        raise validation_error("against names the run to compare with", "against")
    b = host.find_run(principal, against)
    return respond_json(diff_logs(a, b, host.logs.open_log(a.id), host.logs.open_log(b.id)))


async def list_agents(request: Request) -> Response:
    authenticate(request).require_scope("runs:read")
    return respond_json(get_host(request).agents.describe_agents())


async def get_agent(request: Request) -> Response:
    authenticate(request).require_scope("runs:read")
    return respond_json(get_host(request).agents.describe_agent(request.path_params["agent_id"]))


async def get_workflow(request: Request) -> Response:
    authenticate(request).require_scope("runs:read")
    found = get_host(request).workflows.get(request.path_params["workflow_id"])
    if found is None:
        raise not_found("workflow")
    return respond_json(found)


async def list_annotations(request: Request) -> Response:
    host = get_host(request)
    run = host.find_run(authenticate(request), request.path_params["run_id"])
    return respond_json({"annotations": host.store.load_annotations(run.id)})


async def create_annotation(request: Request) -> Response:
    host, principal = get_host(request), authenticate(request)
    run = host.find_run(principal, request.path_params["run_id"])
    principal.require_scope("annotations:write")
    raw = await read_body(request)

    async def check() -> Mutation:
        log = host.logs.open_log(run.id)
        made = build_annotation(
            bodies.decode_body("ANNOTATION", raw), run.id, log, principal, host.redactor.redact_text
        )
        return Mutation(
            201,
            codec.encode(made),
            write=lambda: host.store.add_annotation(run.id, made),
            start=lambda: log.send_notice(run_annotated(made["annotationId"], made["signal"]["kind"])),
        )

    return await respond_once(request, principal, raw, check)


def unsupported_endpoint(capability: str) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint of the protocol that this host does not have: it says so to those who may ask."""

    async def endpoint(request: Request) -> Response:
        authenticate(request)
        raise not_provided(capability)

    return endpoint


def _unchanged(request: Request, tag: str) -> bool:
    known = request.headers.get("if-none-match", "")
    return known == "*" or tag in [each.strip().removeprefix("W/") for each in known.split(",")]

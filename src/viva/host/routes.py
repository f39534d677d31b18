"""The endpoints, one function each: who asks, what is asked, and the answer. What it takes stands elsewhere."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from viva.host import bodies, creating
from viva.host.annotations import annotation
from viva.host.auth import Principal
from viva.host.diff import difference
from viva.host.discovery import MAX_BODY_BYTES, etag
from viva.host.events import annotated
from viva.host.host import Host
from viva.host.idempotency import HEADER, Deed
from viva.host.openapi import document
from viva.host.refusals import Refusal, invalid, not_found, not_provided
from viva.host.snapshots import snapshot, snapshot_after
from viva.host.stream import MAX_BUFFER_MS, Watching, parse_modes, parse_number, place_of, poll, stream
from viva.model import codec

JSON = "application/json"


def host_of(request: Request) -> Host:
    return request.app.state.host


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(codec.encode(body), status, headers, JSON)


def principal_of(request: Request) -> Principal:
    return host_of(request).keys.principal(request.headers)


async def raw_body(request: Request) -> bytes:
    """The body, as long as it is not too long to be meant."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            message = f"a body has at most {MAX_BODY_BYTES} bytes"
            raise Refusal(413, "payload_too_large", message, {"maxRequestBodyBytes": MAX_BODY_BYTES})
        parts.append(part)
    return b"".join(parts)


async def once(request: Request, principal: Principal, raw: bytes, check: Callable[[], Awaitable[Deed]]) -> Response:
    """A change, done once for each Idempotency-Key."""
    operation = f"{request.method} {request.url.path}"
    key = request.headers.get(HEADER)
    status, body, headers = await host_of(request).once.answer(principal, operation, key, raw, check)
    return Response(body, status, headers, JSON)


async def discover(request: Request) -> Response:
    host = host_of(request)
    headers = {"Cache-Control": "public, max-age=60", "ETag": host.capabilities_etag}
    if _unchanged(request, host.capabilities_etag):
        return Response(status_code=304, headers=headers)
    return Response(host.capabilities, 200, headers, JSON)


async def openapi(request: Request) -> Response:
    return answer(document(host_of(request).serving), headers={"Cache-Control": "public, max-age=60"})


async def create_run(request: Request) -> Response:
    host, principal = host_of(request), principal_of(request)
    principal.need("runs:create")
    raw = await raw_body(request)
    return await once(request, principal, raw, lambda: creating.checked_run(host, principal, raw))


async def get_run(request: Request) -> Response:
    shown = snapshot(host_of(request).run(principal_of(request), request.path_params["run_id"]))
    tag = etag(shown)
    headers = {"Cache-Control": "private, no-cache", "ETag": tag}
    return Response(status_code=304, headers=headers) if _unchanged(request, tag) else answer(shown, headers=headers)


async def stream_events(request: Request) -> Response:
    host = host_of(request)
    run = host.run(principal_of(request), request.path_params["run_id"])
    log = host.logs.of(run.id)
    last = request.headers.get("last-event-id")
    watching = Watching(
        modes=parse_modes(request.query_params.get("streamMode")),
        buffer_ms=parse_number(request.query_params.get("bufferMs"), "bufferMs", 0, 0, MAX_BUFFER_MS),
        after=place_of(last, log),
        resumed=bool(last),
    )
    headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
    if request.method == "HEAD":  # who wants no events does not wait for the last of them
        return Response(None, 200, headers, "text/event-stream")
    frames = stream(log, watching, lambda events: snapshot_after(_current(host, run), events), host.closing)
    return StreamingResponse(frames, 200, headers, "text/event-stream")


def _current(host: Host, run: Any) -> Any:
    return host.store.run(run.id, run.tenant) or run


async def poll_events(request: Request) -> Response:
    host = host_of(request)
    run = host.run(principal_of(request), request.path_params["run_id"])
    after = parse_number(request.query_params.get("lastSequence"), "lastSequence", -1, -1, 2**53)
    timeout_s = parse_number(request.query_params.get("timeout"), "timeout", 30, 1, 60)
    events, complete = await poll(host.logs.of(run.id), after, timeout_s, host.closing)
    return answer({"events": events, "isComplete": complete})


async def cancel_run(request: Request) -> Response:
    host, principal = host_of(request), principal_of(request)
    run = host.run(principal, request.path_params["run_id"])
    principal.need("runs:cancel")
    raw = await raw_body(request)

    async def check() -> Deed:
        bodies.checked("CANCEL", raw)
        current = host.run(principal, run.id)
        if current.over and current.status != "cancelled":
            raise Refusal(409, "run_terminal", "the run is over already", {"status": current.status})
        if not current.over:
            current = host.runs.cancel(current, principal.name)
        return Deed(200, codec.encode({"runId": current.id, "status": current.status}))

    return await once(request, principal, raw, check)


async def eval_summary(request: Request) -> Response:
    host = host_of(request)
    run = host.run(principal_of(request), request.path_params["run_id"])
    if run.kind != "eval" or not host.modes:
        raise not_found("eval run")
    if not run.over:
        raise Refusal(409, "run_not_terminal", "the eval is still running", {"status": run.status})
    if run.summary is None:
        raise not_found("eval summary")
    return answer(run.summary)


async def diff_runs(request: Request) -> Response:
    host, principal = host_of(request), principal_of(request)
    a = host.run(principal, request.path_params["run_id"])
    against = request.query_params.get("against")
    if not against:
        raise invalid("against names the run to compare with", "against")
    b = host.run(principal, against)
    return answer(difference(a, b, host.logs.of(a.id), host.logs.of(b.id)))


async def list_agents(request: Request) -> Response:
    principal_of(request).need("runs:read")
    return answer(host_of(request).inventory.entries())


async def get_agent(request: Request) -> Response:
    principal_of(request).need("runs:read")
    return answer(host_of(request).inventory.entry(request.path_params["agent_id"]))


async def get_workflow(request: Request) -> Response:
    principal_of(request).need("runs:read")
    found = host_of(request).workflows.get(request.path_params["workflow_id"])
    if found is None:
        raise not_found("workflow")
    return answer(found)


async def list_annotations(request: Request) -> Response:
    host = host_of(request)
    run = host.run(principal_of(request), request.path_params["run_id"])
    return answer({"annotations": host.store.annotations(run.id)})


async def annotate(request: Request) -> Response:
    host, principal = host_of(request), principal_of(request)
    run = host.run(principal, request.path_params["run_id"])
    principal.need("annotations:write")
    raw = await raw_body(request)

    async def check() -> Deed:
        log = host.logs.of(run.id)
        made = annotation(bodies.checked("ANNOTATION", raw), run.id, log, principal, host.redactor.text)
        return Deed(
            201,
            codec.encode(made),
            write=lambda: host.store.annotate(run.id, made),
            begin=lambda: log.notify(annotated(made["annotationId"], made["signal"]["kind"])),
        )

    return await once(request, principal, raw, check)


def outside(capability: str) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint of the protocol that this host does not have: it says so to those who may ask."""

    async def endpoint(request: Request) -> Response:
        principal_of(request)
        raise not_provided(capability)

    return endpoint


def _unchanged(request: Request, tag: str) -> bool:
    known = request.headers.get("if-none-match", "")
    return known == "*" or tag in [each.strip().removeprefix("W/") for each in known.split(",")]

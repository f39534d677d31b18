"""Endpoints for administrators: the runs of all tenants, their cancellation and their deletion. Tokens need the scope admin."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from viva.host.auth import Principal
from viva.host.bodies import decode_body
from viva.host.errors import ApiError, not_found, validation_error
from viva.host.host import Host
from viva.host.retention import delete_runs, delete_tenant_runs
from viva.host.routes import authenticate, cancel_one, get_host, read_body, respond_json
from viva.host.store import FINAL_STATUSES, Run, RunStatus
from viva.host.stream import parse_number

MAX_LISTED = 1000
_UNFINISHED: tuple[RunStatus, ...] = ("pending", "running", "cancelling")
_STATUSES = (*_UNFINISHED, *sorted(FINAL_STATUSES))
_PAGE = 50
"""How many runs are decoded at once: each has its whole summary."""


async def list_runs(request: Request) -> Response:
    """The runs of all tenants, newest first, without their content. Filters: tenant, status, kind, agentId, limit, before."""
    host, _ = _authenticate(request)
    query = request.query_params
    limit = parse_number(query.get("limit"), "limit", 100, 1, MAX_LISTED)
    statuses = tuple((query.get("status") or "").split(",")) if query.get("status") else ()
    if unknown := [status for status in statuses if status not in _STATUSES]:
        raise validation_error(f"Unknown status. Known: {', '.join(_STATUSES)}", "status", count=len(unknown))
    filters = {"kind": query.get("kind"), "agent": query.get("agentId")}
    runs, before = await _find_runs(host, query.get("tenant"), statuses, filters, limit, query.get("before"))
    body: dict[str, Any] = {"runs": [_describe_run(run) for run in runs]}
    return respond_json({**body, "nextBefore": before} if before else body)


async def cancel_runs(request: Request) -> Response:
    """Cancels the unfinished runs that the body selects: runIds, tenant, kind, agentId. At least one of them is needed."""
    host, principal = _authenticate(request)
    body = decode_body("ADMIN_CANCEL", await read_body(request))
    if names := body.get("runIds"):
        runs = [(name, host.store.find_any_run(name)) for name in names]
    else:
        filters = {"kind": body.get("kind"), "agent": body.get("agentId")}
        found, _ = await _find_runs(host, body.get("tenant"), _UNFINISHED, filters, MAX_LISTED, None)
        runs = [(run.id, run) for run in found]
    return respond_json({"results": [cancel_one(host, run, name, principal) for name, run in runs]})


async def delete_run(request: Request) -> Response:
    """Deletes a finished run of any tenant: its rows, its journal and its summary."""
    host, _ = _authenticate(request)
    run = host.store.find_any_run(request.path_params["run_id"])
    if run is None:
        raise not_found("run")
    if not run.is_finished:
        raise ApiError(409, "run_not_terminal", "The run is unfinished. Cancel it first", {"status": run.status})
    await delete_runs(host, [run])
    return respond_json({"deleted": 1})


async def delete_tenant(request: Request) -> Response:
    """Deletes all runs of a tenant: their rows, journals and summaries. Its tokens stay valid."""
    host, _ = _authenticate(request)
    tenant: str = request.path_params["tenant"]
    if unfinished := host.store.count_unfinished(tenant):
        message = "The tenant has unfinished runs. Cancel them first"
        raise ApiError(409, "run_not_terminal", message, {"unfinished": unfinished})
    return respond_json({"deleted": await delete_tenant_runs(host, tenant)})


def _authenticate(request: Request) -> tuple[Host, Principal]:
    principal = authenticate(request)
    principal.require_scope("admin")
    return get_host(request), principal


async def _find_runs(
    host: Host,
    tenant: str | None,
    statuses: tuple[str, ...],
    filters: dict[str, str | None],
    limit: int,
    before: str | None,
) -> tuple[list[Run], str | None]:
    """The runs that match, and from where to go on if there are more."""
    place = _parse_place(before) if before else None
    runs: list[Run] = []
    while page := host.store.list_runs(tenant, statuses, place, _PAGE):
        for created, run in page:
            place = created, run.id
            if all(value is None or getattr(run, name) == value for name, value in filters.items()):
                runs.append(run)
                if len(runs) == limit:
                    return runs, f"{created!r}:{run.id}"
        if len(page) < _PAGE:
            break
        await asyncio.sleep(0)  # other requests come first
    return runs, None


def _parse_place(text: str) -> tuple[float, str]:
    created, _, name = text.partition(":")
    try:
        return float(created), name
    except ValueError:
        raise validation_error("before is no place that a list has returned", "before") from None


def _describe_run(run: Run) -> dict[str, Any]:
    """Ids, states and times: neither metadata nor tags, which tenants write."""
    entry = {
        "runId": run.id,
        "tenant": run.tenant,
        "principal": run.principal,
        "kind": run.kind,
        "workflowId": run.workflow,
        "agentId": run.agent,
        "status": run.status,
        "createdAt": run.created_at,
        "startedAt": run.started_at,
        "completedAt": run.completed_at,
        "errorCode": (run.error or {}).get("code"),
        "metrics": run.metrics,
    }
    return {name: value for name, value in entry.items() if value is not None}

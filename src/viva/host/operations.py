"""Endpoints for operators (health, readiness, metrics, runs of all tenants), and the deletion of runs.

No endpoint shows content of runs. Endpoints for administrators need a token with the scope admin.
"""

import asyncio
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import viva
from viva.concurrency.threads import run_in_thread
from viva.errors import BadInput
from viva.host.connections import ConnectionRegistry, is_on_metrics_address
from viva.host.errors import ApiError, forbidden, not_found, validation_error
from viva.host.events import parse_number
from viva.host.host import Host
from viva.host.monitoring import log_error
from viva.host.requests import decode_body
from viva.host.routes import authenticate, cancel_one, get_host, read_body, respond_json
from viva.host.store import FINAL_STATUSES, Run, RunStatus
from viva.host.tokens import Principal

# Health and metrics

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STARTED_AT = time.time()
Samples = Iterable[tuple[Mapping[str, object], float]]


def format_metrics(host: Host, connections: ConnectionRegistry) -> str:
    monitor, queues = host.monitor, host.store.list_queues()
    requests = [({"method": method, "code": code}, count) for (method, code), count in sorted(monitor.requests.items())]
    ended = [({"kind": kind, "status": status}, count) for (kind, status), count in sorted(host.runs.ended.items())]
    closed = [({"reason": reason}, count) for reason, count in sorted(connections.closed_early.items())]
    count = sum(monitor.requests.values())
    families = (
        _format_family("viva_build_info", "gauge", "The version of Viva.", [({"version": viva.__version__}, 1)]),
        _format_family("viva_ready", "gauge", "Whether the host takes new runs.", [({}, host.readiness().is_ready)]),
        _format_family("viva_http_requests_total", "counter", "Requests by method and status.", requests),
        _format_family("viva_http_request_seconds_sum", "counter", "The time of all requests.", [({}, monitor.request_seconds)]),
        _format_family("viva_http_request_seconds_count", "counter", "How many requests were timed.", [({}, count)]),
        _format_family("viva_runs_running", "gauge", "Runs that execute, by tenant.", [({"tenant": each.tenant}, each.running) for each in queues]),
        _format_family("viva_runs_waiting", "gauge", "Runs that wait, by tenant.", [({"tenant": each.tenant}, each.waiting) for each in queues]),
        _format_family("viva_runs_ended_total", "counter", "Runs that ended on this host.", ended),
        _format_family("viva_connections", "gauge", "Open connections.", [({}, len(connections))]),
        _format_family("viva_connections_anonymous", "gauge", "Open connections without a valid token.", [({}, connections.anonymous_count)]),
        _format_family("viva_connections_closed_total", "counter", "Connections that the host closed itself.", closed),
        _format_family("process_start_time_seconds", "gauge", "When the process started.", [({}, _STARTED_AT)]),
        _format_family("process_resident_memory_bytes", "gauge", "Memory of the process.", [({}, _read_memory())]),
    )  # fmt: skip
    return "".join(families)


def _format_family(name: str, kind: str, description: str, samples: Samples) -> str:
    lines = [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_format_labels(labels)} {_format_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _format_labels(labels: Mapping[str, object]) -> str:
    pairs = [f'{name}="{_escape(str(value))}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _read_memory() -> float:
    """Returns the resident memory in bytes, 0 if the system does not tell it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


async def get_health(_request: Request) -> Response:
    """Answers 200 as long as the process can answer at all. Public."""
    return respond_json({"status": "ok"})


async def get_readiness(request: Request) -> Response:
    """Answers 200 if the host takes new runs, else 503 with the reasons. Public."""
    reasons = [{"code": reason.code, "message": reason.message} for reason in get_host(request).readiness().reasons]
    return respond_json({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


async def get_metrics(request: Request) -> Response:
    """Prometheus text, for tokens with the scope metrics or admin; without a token on the address for metrics."""
    if not is_on_metrics_address(request):
        principal = authenticate(request)
        if not principal.scopes & {"metrics", "admin"}:
            raise forbidden("This token lacks the scope metrics", requiredScope="metrics")
    text = format_metrics(get_host(request), request.app.state.connections)
    return Response(text, 200, {"Cache-Control": "no-store"}, METRICS_CONTENT_TYPE)


# Runs of all tenants

MAX_LISTED = 1000
_UNFINISHED: tuple[RunStatus, ...] = ("pending", "running", "cancelling")
_STATUSES = (*_UNFINISHED, *sorted(FINAL_STATUSES))
_PAGE_SIZE = 100
"""How many runs are decoded in one step."""


async def list_runs(request: Request) -> Response:
    """The runs of all tenants, newest first, without their content. Filters: tenant, status, kind, agentId, limit, before."""
    host, _ = _authenticate_admin(request)
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
    host, principal = _authenticate_admin(request)
    body = decode_body("ADMIN_CANCEL", await read_body(request))
    names: list[str] | None = body.get("runIds")
    if names is None:
        filters = {"kind": body.get("kind"), "agent": body.get("agentId")}
        runs, _ = await _find_runs(host, body.get("tenant"), _UNFINISHED, filters, MAX_LISTED, None)
        names = [run.id for run in runs]
    results: list[dict[str, Any]] = []
    for name in names:
        results.append(cancel_one(host, host.store.find_any_run(name), name, principal))
        await asyncio.sleep(0)  # other requests come first; runs may end meanwhile
    return respond_json({"results": results})


async def delete_run(request: Request) -> Response:
    """Deletes a finished run of any tenant: its rows, its journal and its summary."""
    host, _ = _authenticate_admin(request)
    run = host.store.find_any_run(request.path_params["runId"])
    if run is None:
        raise not_found("run")
    if not run.is_finished:
        raise ApiError(409, "run_not_terminal", "The run is unfinished. Cancel it first", {"status": run.status})
    await delete_runs(host, [run])
    return respond_json({"deleted": 1})


async def delete_tenant(request: Request) -> Response:
    """Deletes all runs of a tenant: their rows, journals and summaries. Its tokens stay valid."""
    host, _ = _authenticate_admin(request)
    tenant: str = request.path_params["tenant"]
    if unfinished := host.store.count_unfinished(tenant):
        message = "The tenant has unfinished runs. Cancel them first"
        raise ApiError(409, "run_not_terminal", message, {"unfinished": unfinished})
    return respond_json({"deleted": await delete_tenant_runs(host, tenant)})


def _authenticate_admin(request: Request) -> tuple[Host, Principal]:
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
    """Returns the runs that match the filters, and the position after the last one if there are more."""
    place = _parse_position(before) if before else None
    runs: list[Run] = []
    while page := host.store.list_runs(tenant, statuses, place, _PAGE_SIZE):
        for created, run in page:
            place = created, run.id
            if all(value is None or getattr(run, name) == value for name, value in filters.items()):
                runs.append(run)
                if len(runs) == limit:
                    return runs, f"{created!r}:{run.id}"
        if len(page) < _PAGE_SIZE:
            break
        await asyncio.sleep(0)  # other requests come first
    return runs, None


def _parse_position(text: str) -> tuple[float, str]:
    created, _, name = text.partition(":")
    try:
        return float(created), name
    except ValueError:
        raise validation_error("before is not a place that a list has returned", "before") from None


def _describe_run(run: Run) -> dict[str, Any]:
    """Returns ids, states and times of a run, without metadata and tags, which tenants write."""
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


# Deletion and retention

RETENTION_INTERVAL_S = 600.0
"""How often a host deletes runs that are too old."""
_BATCH_SIZE = 100
_RUN_ID_PATTERN = re.compile(r"run-[0-9a-f]{24}")


async def delete_runs(host: Host, runs: Sequence[Run]) -> None:
    """Deletes finished runs. Rows go first: if the deletion is interrupted, files without a row are deleted later."""
    for start in range(0, len(runs), _BATCH_SIZE):
        names = [run.id for run in runs[start : start + _BATCH_SIZE]]
        host.store.delete_runs(names)
        await run_in_thread(lambda names=names: _delete_files(host, names))


async def delete_tenant_runs(host: Host, tenant: str) -> int:
    """Deletes all runs and stored responses of a tenant, and returns the number of runs. All runs have to be finished."""
    count = 0
    while runs := [run for _, run in host.store.list_runs(tenant, tuple(FINAL_STATUSES), limit=_BATCH_SIZE)]:
        await delete_runs(host, runs)
        count += len(runs)
    host.store.delete_responses(tenant)
    return count


async def delete_old_runs(host: Host, now: float) -> int:
    """Deletes finished runs whose time is over, and files of deleted runs. Returns the number of runs."""
    count, shortest_s = 0, host.operations.shortest_keep_s
    if shortest_s is not None:
        before = now - shortest_s, ""  # a run that was created later has not ended earlier
        while page := host.store.list_runs(None, tuple(FINAL_STATUSES), before, _BATCH_SIZE):
            before = page[-1][0], page[-1][1].id
            old = [run for created, run in page if _is_old(host, created, run, now)]
            await delete_runs(host, old)
            count += len(old)
            await asyncio.sleep(0)  # other requests come first
    await _delete_orphaned_files(host, now)
    return count


async def watch_retention(host: Host) -> None:
    """Deletes old runs at regular times, until it is cancelled."""
    while True:
        try:
            count = await delete_old_runs(host, host.store.read_clock())
            if count:
                host.monitor.audit("delete_old_runs", count=count)
        except Exception as error:  # a full disk or a lost database: the next pass tries again
            log_error("retention", error)
        await asyncio.sleep(RETENTION_INTERVAL_S)


def _is_old(host: Host, created: float, run: Run, now: float) -> bool:
    """Did a run end too long ago? `created` and `now` are times of the database; the clock of the host may have been wrong."""
    keep_s = host.operations.keep_s_of(run.tenant)
    ended = datetime.fromisoformat(run.completed_at or run.created_at).astimezone(UTC).timestamp()
    return keep_s is not None and max(created, ended) <= now - keep_s


def _delete_files(host: Host, names: Sequence[str]) -> None:
    for name in names:
        with suppress(
            BadInput
        ):  # a journal that is still in use, or an index that is damaged: the next pass tries again
            host.history.remove_run(name)
        (_summaries_folder(host) / name).unlink(missing_ok=True)


async def _delete_orphaned_files(host: Host, now: float) -> None:
    """Deletes files of runs that have no row any more: another host deleted the run, or a deletion was interrupted."""
    deleted, keep_s = host.store.list_deletions(), host.operations.keep_s
    if not deleted and keep_s is None:
        return
    for path, changed_at in await run_in_thread(lambda: _list_run_paths_with_mtime(host)):
        is_old = keep_s is not None and changed_at <= now - keep_s
        if path.name in deleted or (is_old and not host.store.has_run(path.name)):
            await run_in_thread(lambda path=path: _delete_orphaned_path(host, path))


def _list_run_paths_with_mtime(host: Host) -> list[tuple[Path, float]]:
    folders = (host.history.home / "runs", _summaries_folder(host))
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return [(path, path.stat().st_mtime) for path in paths if _RUN_ID_PATTERN.fullmatch(path.name)]


def _delete_orphaned_path(host: Host, path: Path) -> None:
    _delete_files(host, [path.name])
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)


def _summaries_folder(host: Host) -> Path:
    return host.settings.data_folder / "host" / "summaries"

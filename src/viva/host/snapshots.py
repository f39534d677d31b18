"""A run as it stands, or as it stood after some of its events."""

from collections.abc import Sequence
from typing import Any

from viva.host.log import EVENT_LOG_VERSION, FINAL_EVENT_TYPES, LoggedEvent
from viva.host.store import Run


def build_snapshot(run: Run) -> dict[str, Any]:
    """What `GET /v1/runs/{runId}` shows: only what was asked for by the caller, and what we know ourselves."""
    shown = {
        "runId": run.id,
        "workflowId": run.workflow,
        "status": run.status,
        "owner": {"tenant": run.tenant, **({"principal": run.principal} if run.principal else {})},
        "startedAt": run.started_at,
        "completedAt": run.completed_at,
        "agent": {"agentId": run.agent} if run.agent else None,
        "error": run.error,
        "engineVersion": run.engine,
        "eventLogSchemaVersion": EVENT_LOG_VERSION,
        "tags": run.tags,
        "metadata": run.metadata,
        "configurable": run.request.get("configurable") or None,
        "metrics": run.metrics,
    }
    return {key: value for key, value in shown.items() if value is not None}


def build_snapshot_after(run: Run, events: Sequence[LoggedEvent]) -> dict[str, Any]:
    """As it was then: a run that is over now was running before its last event."""
    shown = build_snapshot(run)
    if not run.is_finished or (events and events[-1].event.type in FINAL_EVENT_TYPES):
        return shown
    later = ("completedAt", "error", "metrics")
    return {**{key: value for key, value in shown.items() if key not in later}, "status": "running"}

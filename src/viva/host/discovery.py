"""The documents that describe a host: its capabilities at `/.well-known/openwop`, and OpenAPI 3.1."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import viva
from viva.formats.openwop.modes import MODES
from viva.host.events import EVENT_LOG_VERSION, STREAM_MODES
from viva.host.requests import (
    ACK_TIMEOUT_S,
    ADMIN_CANCEL,
    ANNOTATION,
    ANY_OBJECT,
    BOOLEAN,
    BULK_CANCEL,
    CANCEL,
    CREATE_RUN,
    NONEMPTY,
    TEXT,
    URL,
    array_schema,
    object_schema,
)
from viva.model import codec

MAX_BODY_BYTES = 1024 * 1024
MAX_TASKS = 10_000

_AGENT_SETTINGS: dict[str, Any] = {
    "model": {"type": "string"},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "maxTokens": {"type": "integer", "minimum": 1},
    "promptOverrides": {"type": "object", "properties": {"system": {"type": "string"}}, "additionalProperties": False},
}
"""Settings of a run for agents whose model Viva calls itself. Runs of other agents refuse them."""


def build_capabilities(*, has_suites: bool, has_judge: bool, fixtures: Iterable[str]) -> dict[str, Any]:
    """Builds the capabilities: without suites no `evalSuite`, without a judge no mode `rubric`. `fixtures` are workflows for tests."""
    modes = [mode for mode in MODES if mode != "rubric" or has_judge]
    document: dict[str, Any] = {
        "protocolVersion": "1.0",
        "supportedEnvelopes": [],
        "schemaVersions": {},
        "limits": {
            "clarificationRounds": 0,
            "schemaRounds": 0,
            "envelopesPerTurn": 0,
            "maxRequestBodyBytes": MAX_BODY_BYTES,
        },
        "implementation": {"name": "viva", "version": viva.__version__},
        "engineVersion": 1,
        "eventLogSchemaVersion": EVENT_LOG_VERSION,
        "supportedTransports": ["rest"],
        "configurable": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                **_AGENT_SETTINGS,
                "evalModes": {"type": "array", "items": {"enum": modes}, "uniqueItems": True, "minItems": 1},
                "baselineRunId": {"type": "string"},
                "allowAgentMismatch": {"type": "boolean"},
            },
        },
        "agents": {
            "manifestRuntime": {"supported": True, "handoffValidation": True, "installScope": "host"},
            "liveRuntime": {"supported": True, "structuredOutput": True, "sources": ["run-api"]},
            "evalSuite": {"supported": True, "modes": modes, "maxTasksPerSuite": MAX_TASKS},
            "reasoning": {"verbosity": "off"},
        },
        "providerUsage": {"supported": True, "costEstimates": True, "currency": "USD"},
        "feedback": {
            "supported": True,
            "targets": ["run", "event", "node"],
            "signals": ["rating", "correction", "label", "flag"],
        },
        # `limits` takes no other keys, so the time is here: how long a repeated request waits for the first one.
        "idempotency": {"crossRegion": "single-region", "idempotencyAckTimeoutSec": ACK_TIMEOUT_S},
        "nondeterminismPolicy": {"declared": True},
        "fixtures": list(fixtures),
    }
    if not has_suites:
        del document["agents"]["evalSuite"]
        document["configurable"]["properties"] = _AGENT_SETTINGS
    return document


def compute_etag(document: Any) -> str:
    return f'"{sha256(codec.encode_canonically(document)).hexdigest()[:32]}"'


def compute_negotiation_etag(document: Mapping[str, Any]) -> str:
    """Computes the ETag of all but the implementation: a new version with the same capabilities needs no new negotiation."""
    return compute_etag({key: value for key, value in document.items() if key != "implementation"})


_TIME = {"type": "string", "format": "date-time"}
_COUNT = {"type": "integer", "minimum": 0}


def _schema_ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_STATUSES = [
    "pending", "running", "paused", "waiting-approval", "waiting-input", "waiting-external", "completed", "failed",
    "cancelling", "cancelled",
]  # fmt: skip
SCHEMAS: dict[str, Any] = {
    "Error": object_schema({"details": ANY_OBJECT}, error=NONEMPTY, message=NONEMPTY),
    "CreateRun": CREATE_RUN,
    "Created": object_schema({"statusUrl": URL}, runId=TEXT, status={"enum": ["pending", "running"]}, eventsUrl=URL),
    "RunSnapshot": object_schema(
        {"startedAt": _TIME, "completedAt": _TIME},
        closed=False,
        runId=TEXT,
        workflowId=TEXT,
        status={"enum": _STATUSES},
    ),
    "RunEvent": object_schema(
        {"nodeId": TEXT, "causationId": TEXT},
        closed=False,
        eventId=TEXT,
        runId=TEXT,
        type=TEXT,
        payload=ANY_OBJECT,
        timestamp=_TIME,
        sequence=_COUNT,
    ),
    "Polled": object_schema(events=array_schema(_schema_ref("RunEvent")), isComplete=BOOLEAN),
    "Cancel": CANCEL,
    "BulkCancel": BULK_CANCEL,
    "AdminCancel": ADMIN_CANCEL,
    "BulkCancelled": object_schema(
        results=array_schema(
            object_schema(
                {"status": {"enum": ["cancelled", "cancelling"]}, "error": object_schema(code=TEXT, message=TEXT)},
                runId=TEXT,
                ok=BOOLEAN,
            )
        )
    ),
    "Cancelled": object_schema(runId=TEXT, status={"enum": ["cancelled", "cancelling"]}),
    "EvalSummary": object_schema(
        {"evaluatedModelClass": TEXT, "totalCostUsd": {"type": "number", "minimum": 0}, "regression": ANY_OBJECT},
        suiteId=TEXT,
        suiteVersion=TEXT,
        aggregateScore={"type": "number", "minimum": 0, "maximum": 1},
        passed=BOOLEAN,
        taskCount=_COUNT,
        passedCount=_COUNT,
        tasks=array_schema(ANY_OBJECT),
    ),
    "AnnotationCreate": ANNOTATION,
    "Annotation": object_schema(
        {"note": TEXT}, annotationId=TEXT, target=ANY_OBJECT, signal=ANY_OBJECT, actor=ANY_OBJECT, createdAt=_TIME
    ),
    "Annotations": object_schema(annotations=array_schema(_schema_ref("Annotation"))),
    "RunDiff": object_schema(
        {"divergedAtSeq": {"type": ["integer", "null"], "minimum": 0}, "truncated": BOOLEAN},
        a=TEXT,
        b=TEXT,
        eventDiffs=array_schema(ANY_OBJECT),
        stateDiff=ANY_OBJECT,
    ),
    "Agent": object_schema(
        {"description": TEXT},
        **dict.fromkeys(("agentId", "persona", "label", "modelClass", "packName", "packVersion"), TEXT),
        toolAllowlist=array_schema(TEXT),
        hasHandoffSchemas=BOOLEAN,
    ),
    "Agents": object_schema(agents=array_schema(_schema_ref("Agent")), total=_COUNT),
    "Any": ANY_OBJECT,
}
_EVENT_STREAM, _PLAIN_TEXT = "EventStream", "PlainText"
_TEXT_TYPES = {_EVENT_STREAM: "text/event-stream", _PLAIN_TEXT: "text/plain"}
_DESCRIPTIONS = {
    200: "OK.",
    201: "Created.",
    304: "Not modified.",
    400: "The request is invalid.",
    401: "Missing or invalid token.",
    403: "The token lacks a scope, or the resource belongs to another tenant.",
    404: "Not found for this token.",
    405: "Method not allowed.",
    409: "Conflict with the current state.",
    413: "The body is too large.",
    429: "Too many unfinished runs.",
    500: "Internal error.",
    501: "Capability not provided.",
    503: "The host takes no new runs at the moment.",
}
_RUN_ID_PARAMETER = {
    "name": "runId",
    "in": "path",
    "required": True,
    "schema": {**TEXT, "minLength": 1, "maxLength": 128},
}
_IDEMPOTENCY_KEY = {"name": "Idempotency-Key", "in": "header", "schema": {**TEXT, "minLength": 1, "maxLength": 255}}


def _query_parameter(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": schema}


def _build_endpoint(
    name: str,
    summary: str,
    response: tuple[int, str],
    errors: tuple[int, ...],
    *parameters: dict[str, Any],
    body: str | None = None,
) -> dict[str, Any]:
    status, schema = response
    content = {_TEXT_TYPES[schema]: {"schema": TEXT}} if schema in _TEXT_TYPES else _json_content(schema)
    responses: dict[str, Any] = {str(status): {"description": _DESCRIPTIONS[status], "content": content}}
    for code in errors:
        error = {} if code == 304 else {"content": _json_content("Error")}
        responses[str(code)] = {"description": _DESCRIPTIONS[code], **error}
    endpoint: dict[str, Any] = {"operationId": name, "summary": summary, "responses": responses}
    if parameters:
        endpoint["parameters"] = list(parameters)
    if body is not None:
        endpoint["requestBody"] = {"required": body != "Cancel", "content": _json_content(body)}
    return endpoint


def _json_content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": _schema_ref(schema)}}


def build_openapi(public_url: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Viva as an OpenWOP host", "version": viva.__version__},
        "servers": [{"url": public_url}],
        "security": [{"bearer": []}],
        "paths": {
            **_public_paths(),
            **_operator_paths(),
            **_run_paths(),
            **_cancel_paths(),
            **_event_paths(),
            **_inventory_paths(),
        },
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


_RUN_ERRORS = (401, 403, 404)


def _public_paths() -> dict[str, Any]:
    return {
        "/.well-known/openwop": {
            "get": {**_build_endpoint("discover", "Capabilities of this host.", (200, "Any"), (304,)), "security": []}
        },
        "/v1/openapi.json": {"get": {**_build_endpoint("openapi", "This document.", (200, "Any"), ()), "security": []}},
    }


def _operator_paths() -> dict[str, Any]:
    health = _build_endpoint("health", "Whether the process answers.", (200, "Any"), ())
    readiness = _build_endpoint("readiness", "Whether the host takes new runs, or why not.", (200, "Any"), (503,))
    metrics = _build_endpoint("metrics", "Metrics as Prometheus text.", (200, _PLAIN_TEXT), (401, 403))
    filters = [_query_parameter(name, TEXT) for name in ("tenant", "status", "kind", "agentId", "before")]
    limit = _query_parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100})
    admin = (401, 403)
    return {
        "/healthz": {"get": {**health, "security": []}},
        "/readyz": {"get": {**readiness, "security": []}},
        "/metrics": {"get": metrics},
        "/v1/admin/runs": {
            "get": _build_endpoint(
                "adminListRuns", "Runs of all tenants.", (200, "Any"), (400, *admin), *filters, limit
            )
        },
        "/v1/admin/runs:cancel": {
            "post": _build_endpoint(
                "adminCancelRuns",
                "Cancel the unfinished runs of a tenant, kind or agent, or by id.",
                (200, "BulkCancelled"),
                (400, *admin, 413),
                body="AdminCancel",
            )
        },
        "/v1/admin/runs/{runId}": {
            "delete": _build_endpoint(
                "adminDeleteRun", "Delete a finished run.", (200, "Any"), (*admin, 404, 409), _RUN_ID_PARAMETER
            )
        },
        "/v1/admin/tenants/{tenant}/runs": {
            "delete": _build_endpoint(
                "adminDeleteTenant",
                "Delete all runs of a tenant.",
                (200, "Any"),
                (*admin, 409),
                {"name": "tenant", "in": "path", "required": True, "schema": NONEMPTY},
            )
        },
    }


def _run_paths() -> dict[str, Any]:
    return {
        "/v1/runs": {
            "post": _build_endpoint(
                "createRun",
                "Start an eval, a workflow, or a single invocation of an agent.",
                (201, "Created"),
                (400, 401, 403, 409, 413, 429, 501),
                _IDEMPOTENCY_KEY,
                body="CreateRun",
            )
        },
        "/v1/runs/{runId}": {
            "get": _build_endpoint(
                "getRun", "Snapshot of a run.", (200, "RunSnapshot"), (304, *_RUN_ERRORS), _RUN_ID_PARAMETER
            )
        },
        "/v1/runs/{runId}/eval-summary": {
            "get": _build_endpoint(
                "getEvalSummary", "Summary of an eval.", (200, "EvalSummary"), (*_RUN_ERRORS, 409), _RUN_ID_PARAMETER
            )
        },
        "/v1/runs/{runId}:diff": {
            "get": _build_endpoint(
                "diffRun",
                "Compare two runs.",
                (200, "RunDiff"),
                (400, *_RUN_ERRORS),
                _RUN_ID_PARAMETER,
                _query_parameter("against", NONEMPTY, required=True),
            )
        },
        "/v1/runs/{runId}/annotations": {
            "get": _build_endpoint(
                "listAnnotations", "Annotations of a run.", (200, "Annotations"), _RUN_ERRORS, _RUN_ID_PARAMETER
            ),
            "post": _build_endpoint(
                "annotateRun",
                "Annotate a run.",
                (201, "Annotation"),
                (400, *_RUN_ERRORS, 409, 413),
                _RUN_ID_PARAMETER,
                _IDEMPOTENCY_KEY,
                body="AnnotationCreate",
            ),
        },
    }


def _cancel_paths() -> dict[str, Any]:
    return {
        "/v1/runs/{runId}/cancel": {
            "post": _build_endpoint(
                "cancelRun",
                "Cancel a run.",
                (200, "Cancelled"),
                (400, *_RUN_ERRORS, 409, 413),
                _RUN_ID_PARAMETER,
                _IDEMPOTENCY_KEY,
                body="Cancel",
            )
        },
        "/v1/runs:bulk-cancel": {
            "post": _build_endpoint(
                "cancelRuns",
                "Cancel several runs.",
                (200, "BulkCancelled"),
                (400, 401, 403, 409, 413),
                _IDEMPOTENCY_KEY,
                body="BulkCancel",
            )
        },
    }


def _event_paths() -> dict[str, Any]:
    return {
        "/v1/runs/{runId}/events": {
            "get": _build_endpoint(
                "streamEvents",
                "Stream the events of a run.",
                (200, _EVENT_STREAM),
                (400, *_RUN_ERRORS),
                _RUN_ID_PARAMETER,
                _query_parameter("streamMode", {"type": "string", "enum": list(STREAM_MODES)}),
                _query_parameter("bufferMs", {"type": "integer", "minimum": 0, "maximum": 5000}),
                {"name": "Last-Event-ID", "in": "header", "schema": TEXT},
            )
        },
        "/v1/runs/{runId}/events/poll": {
            "get": _build_endpoint(
                "pollEvents",
                "Events after a sequence number.",
                (200, "Polled"),
                (400, *_RUN_ERRORS),
                _RUN_ID_PARAMETER,
                _query_parameter("lastSequence", {"type": "integer", "minimum": -1, "maximum": 2**53}),
                _query_parameter("timeout", {"type": "integer", "minimum": 1, "maximum": 60, "default": 30}),
            )
        },
    }


def _inventory_paths() -> dict[str, Any]:
    agent_id = {"name": "agentId", "in": "path", "required": True, "schema": NONEMPTY}
    workflow_id = {**agent_id, "name": "workflowId"}
    return {
        "/v1/agents": {"get": _build_endpoint("listAgents", "The agents of this host.", (200, "Agents"), (401, 403))},
        "/v1/agents/{agentId}": {
            "get": _build_endpoint("getAgent", "One agent.", (200, "Agent"), _RUN_ERRORS, agent_id)
        },
        "/v1/workflows/{workflowId}": {
            "get": _build_endpoint("getWorkflow", "A workflow of this host.", (200, "Any"), _RUN_ERRORS, workflow_id)
        },
    }

"""The documents that describe a host: its capabilities at `/.well-known/openwop`, and OpenAPI 3.1."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from msgspec import Struct

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
_RUN_ID = {**TEXT, "minLength": 1, "maxLength": 128}
_IDEMPOTENCY_KEY = {"name": "Idempotency-Key", "in": "header", "schema": {**TEXT, "minLength": 1, "maxLength": 255}}
_LAST_EVENT_ID = {"name": "Last-Event-ID", "in": "header", "schema": TEXT}


def _query_parameter(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": schema}


def _integer(minimum: int, maximum: int, **more: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum, **more}


class ApiOperation(Struct, frozen=True):
    """An endpoint of the host: its route and its part of the OpenAPI document. `response` and `body` are names of `SCHEMAS`."""

    method: str
    path: str
    name: str
    summary: str
    status: int
    response: str
    errors: tuple[int, ...]
    parameters: tuple[dict[str, Any], ...] = ()
    """Parameters that are not in the path."""
    body: str | None = None
    is_public: bool = False
    """Does it need no token?"""

    def describe(self) -> dict[str, Any]:
        """The operation of the OpenAPI document."""
        is_text = self.response in _TEXT_TYPES
        content = {_TEXT_TYPES[self.response]: {"schema": TEXT}} if is_text else _json_content(self.response)
        responses = {str(self.status): {"description": _DESCRIPTIONS[self.status], "content": content}}
        for code in self.errors:
            error = {} if code == 304 else {"content": _json_content("Error")}
            responses[str(code)] = {"description": _DESCRIPTIONS[code], **error}
        in_path = [
            {"name": name, "in": "path", "required": True, "schema": _RUN_ID if name == "runId" else NONEMPTY}
            for name in re.findall(r"{(\w+)}", self.path)
        ]
        operation: dict[str, Any] = {"operationId": self.name, "summary": self.summary, "responses": responses}
        if parameters := [*in_path, *self.parameters]:
            operation["parameters"] = parameters
        if self.body is not None:
            operation["requestBody"] = {"required": self.body != "Cancel", "content": _json_content(self.body)}
        return operation | ({"security": []} if self.is_public else {})


def _json_content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": _schema_ref(schema)}}


_RUN, _ADMIN = "/v1/runs/{runId}", "/v1/admin"
_RUN_ERRORS = (401, 403, 404)
_ADMIN_FILTERS = (
    *(_query_parameter(name, TEXT) for name in ("tenant", "status", "kind", "agentId", "before")),
    _query_parameter("limit", _integer(1, 1000, default=100)),
)
# One line for each endpoint. The first that matches a request is called, so `:diff` is before the run itself.
# fmt: off
ENDPOINTS = (
    ApiOperation("GET", "/.well-known/openwop", "discover", "Capabilities of this host.", 200, "Any", (304,), is_public=True),
    ApiOperation("GET", "/v1/openapi.json", "openapi", "This document.", 200, "Any", (), is_public=True),
    ApiOperation("GET", "/healthz", "health", "Whether the process answers.", 200, "Any", (), is_public=True),
    ApiOperation("GET", "/readyz", "readiness", "Whether the host takes new runs, or why not.", 200, "Any", (503,), is_public=True),
    ApiOperation("GET", "/metrics", "metrics", "Metrics as Prometheus text.", 200, _PLAIN_TEXT, (401, 403)),
    ApiOperation("GET", f"{_ADMIN}/runs", "adminListRuns", "Runs of all tenants.", 200, "Any", (400, 401, 403), _ADMIN_FILTERS),
    ApiOperation("POST", f"{_ADMIN}/runs:cancel", "adminCancelRuns", "Cancel the unfinished runs of a tenant, kind or agent, or by id.",
             200, "BulkCancelled", (400, 401, 403, 413), body="AdminCancel"),
    ApiOperation("DELETE", f"{_ADMIN}/runs/{{runId}}", "adminDeleteRun", "Delete a finished run.", 200, "Any", (*_RUN_ERRORS, 409)),
    ApiOperation("DELETE", f"{_ADMIN}/tenants/{{tenant}}/runs", "adminDeleteTenant", "Delete all runs of a tenant.", 200, "Any", (401, 403, 409)),
    ApiOperation("POST", "/v1/runs", "createRun", "Start an eval, a workflow, or a single invocation of an agent.",
             201, "Created", (400, 401, 403, 409, 413, 429, 501), (_IDEMPOTENCY_KEY,), "CreateRun"),
    ApiOperation("POST", "/v1/runs:bulk-cancel", "cancelRuns", "Cancel several runs.", 200, "BulkCancelled", (400, 401, 403, 409, 413),
             (_IDEMPOTENCY_KEY,), "BulkCancel"),
    ApiOperation("GET", f"{_RUN}:diff", "diffRun", "Compare two runs.", 200, "RunDiff", (400, *_RUN_ERRORS),
             (_query_parameter("against", NONEMPTY, required=True),)),
    ApiOperation("GET", _RUN, "getRun", "Snapshot of a run.", 200, "RunSnapshot", (304, *_RUN_ERRORS)),
    ApiOperation("GET", f"{_RUN}/eval-summary", "getEvalSummary", "Summary of an eval.", 200, "EvalSummary", (*_RUN_ERRORS, 409)),
    ApiOperation("GET", f"{_RUN}/annotations", "listAnnotations", "Annotations of a run.", 200, "Annotations", _RUN_ERRORS),
    ApiOperation("POST", f"{_RUN}/annotations", "annotateRun", "Annotate a run.", 201, "Annotation", (400, *_RUN_ERRORS, 409, 413),
             (_IDEMPOTENCY_KEY,), "AnnotationCreate"),
    ApiOperation("POST", f"{_RUN}/cancel", "cancelRun", "Cancel a run.", 200, "Cancelled", (400, *_RUN_ERRORS, 409, 413),
             (_IDEMPOTENCY_KEY,), "Cancel"),
    ApiOperation("GET", f"{_RUN}/events", "streamEvents", "Stream the events of a run.", 200, _EVENT_STREAM, (400, *_RUN_ERRORS),
             (_query_parameter("streamMode", {"type": "string", "enum": list(STREAM_MODES)}), _query_parameter("bufferMs", _integer(0, 5000)), _LAST_EVENT_ID)),
    ApiOperation("GET", f"{_RUN}/events/poll", "pollEvents", "Events after a sequence number.", 200, "Polled", (400, *_RUN_ERRORS),
             (_query_parameter("lastSequence", _integer(-1, 2**53)), _query_parameter("timeout", _integer(1, 60, default=30)))),
    ApiOperation("GET", "/v1/agents", "listAgents", "The agents of this host.", 200, "Agents", (401, 403)),
    ApiOperation("GET", "/v1/agents/{agentId}", "getAgent", "One agent.", 200, "Agent", _RUN_ERRORS),
    ApiOperation("GET", "/v1/workflows/{workflowId}", "getWorkflow", "A workflow of this host.", 200, "Any", _RUN_ERRORS),
)
# fmt: on
"""The endpoints of a host. `server` has the function of each, by its name."""


def build_openapi(public_url: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = endpoint.describe()
    return {
        "openapi": "3.1.0",
        "info": {"title": "Viva as an OpenWOP host", "version": viva.__version__},
        "servers": [{"url": public_url}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }

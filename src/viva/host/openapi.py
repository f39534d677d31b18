"""What this host answers to, as an OpenAPI 3.1 document: made from the schemas that it checks requests with."""

from typing import TYPE_CHECKING, Any

import viva
from viva.host import schemas as bodies
from viva.host.log import STREAM_MODES

if TYPE_CHECKING:
    from viva.host.host import ServeOptions

_TEXT = {"type": "string"}
_TIME = {"type": "string", "format": "date-time"}
_OPEN = {"type": "object", "additionalProperties": True}


def _object(required: list[str], properties: dict[str, Any], *, closed: bool = True) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": not closed}


_EVENT = _object(
    ["eventId", "runId", "type", "payload", "timestamp", "sequence"],
    {
        "eventId": _TEXT,
        "runId": _TEXT,
        "type": _TEXT,
        "payload": _OPEN,
        "timestamp": _TIME,
        "sequence": {"type": "integer", "minimum": 0},
        "nodeId": _TEXT,
        "causationId": _TEXT,
    },
    closed=False,
)
_AGENT = _object(
    ["agentId", "persona", "label", "modelClass", "packName", "packVersion", "toolAllowlist", "hasHandoffSchemas"],
    {
        **dict.fromkeys(("agentId", "persona", "label", "description", "modelClass", "packName", "packVersion"), _TEXT),
        "toolAllowlist": {"type": "array", "items": _TEXT},
        "hasHandoffSchemas": {"type": "boolean"},
    },
)
_SUMMARY = _object(
    ["suiteId", "suiteVersion", "aggregateScore", "passed", "taskCount", "passedCount", "tasks"],
    {
        "suiteId": _TEXT,
        "suiteVersion": _TEXT,
        "evaluatedModelClass": _TEXT,
        "aggregateScore": {"type": "number", "minimum": 0, "maximum": 1},
        "passed": {"type": "boolean"},
        "taskCount": {"type": "integer", "minimum": 0},
        "passedCount": {"type": "integer", "minimum": 0},
        "totalCostUsd": {"type": "number", "minimum": 0},
        "tasks": {"type": "array", "items": _OPEN},
        "regression": _OPEN,
    },
)
_STATUSES = [
    "pending", "running", "paused", "waiting-approval", "waiting-input", "waiting-external", "completed", "failed",
    "cancelling", "cancelled",
]  # fmt: skip
SCHEMAS: dict[str, Any] = {
    "Error": _object(
        ["error", "message"],
        {"error": {**_TEXT, "minLength": 1}, "message": {**_TEXT, "minLength": 1}, "details": _OPEN},
    ),
    "CreateRun": bodies.CREATE_RUN,
    "Created": _object(
        ["runId", "status", "eventsUrl"],
        {
            "runId": _TEXT,
            "status": {"enum": ["pending", "running"]},
            "eventsUrl": {"type": "string", "format": "uri"},
            "statusUrl": {"type": "string", "format": "uri"},
        },
    ),
    "RunSnapshot": _object(
        ["runId", "workflowId", "status"],
        {"runId": _TEXT, "workflowId": _TEXT, "status": {"enum": _STATUSES}, "startedAt": _TIME, "completedAt": _TIME},
        closed=False,
    ),
    "RunEvent": _EVENT,
    "Polled": _object(
        ["events", "isComplete"],
        {
            "events": {"type": "array", "items": {"$ref": "#/components/schemas/RunEvent"}},
            "isComplete": {"type": "boolean"},
        },
    ),
    "Cancel": bodies.CANCEL,
    "Cancelled": _object(["runId", "status"], {"runId": _TEXT, "status": {"enum": ["cancelled", "cancelling"]}}),
    "EvalSummary": _SUMMARY,
    "AnnotationCreate": bodies.ANNOTATION,
    "Annotation": _object(
        ["annotationId", "target", "signal", "actor", "createdAt"],
        {
            "annotationId": _TEXT,
            "target": _OPEN,
            "signal": _OPEN,
            "actor": _OPEN,
            "note": _TEXT,
            "createdAt": _TIME,
        },
    ),
    "Annotations": _object(
        ["annotations"], {"annotations": {"type": "array", "items": {"$ref": "#/components/schemas/Annotation"}}}
    ),
    "RunDiff": _object(
        ["a", "b", "eventDiffs", "stateDiff"],
        {
            "a": _TEXT,
            "b": _TEXT,
            "divergedAtSeq": {"type": ["integer", "null"], "minimum": 0},
            "eventDiffs": {"type": "array", "items": _OPEN},
            "stateDiff": _OPEN,
            "truncated": {"type": "boolean"},
        },
    ),
    "Agent": _AGENT,
    "Agents": _object(
        ["agents", "total"],
        {
            "agents": {"type": "array", "items": {"$ref": "#/components/schemas/Agent"}},
            "total": {"type": "integer", "minimum": 0},
        },
    ),
    "Any": _OPEN,
}
_WORDS = {
    200: "What was asked for.",
    201: "It is made.",
    304: "It is as you have it.",
    400: "The request cannot be meant like that.",
    401: "No valid key.",
    403: "This key may not do that, or that is another tenant's.",
    404: "There is no such thing for this key.",
    405: "The endpoint does not have that method.",
    409: "It conflicts with what is already there.",
    413: "The body is too long.",
    429: "Too many runs are waiting.",
    500: "The host broke.",
    501: "The host does not provide that.",
}
_RUN_ID = {"name": "runId", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1, "maxLength": 128}}
_KEY = {"name": "Idempotency-Key", "in": "header", "schema": {**_TEXT, "minLength": 1, "maxLength": 255}}


def _query(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": schema}


def _endpoint(
    name: str,
    summary: str,
    answer: tuple[int, str],
    refusals: tuple[int, ...],
    *parameters: dict[str, Any],
    body: str | None = None,
    media: str = "application/json",
    public: bool = False,
) -> dict[str, Any]:
    status, schema = answer
    shown = {"schema": {"type": "string"} if media == "text/event-stream" else _ref(schema)}
    responses: dict[str, Any] = {str(status): {"description": _WORDS[status], "content": {media: shown}}}
    for code in refusals:
        content = {} if code == 304 else {"content": {"application/json": {"schema": _ref("Error")}}}
        responses[str(code)] = {"description": _WORDS[code], **content}
    made: dict[str, Any] = {"operationId": name, "summary": summary, "responses": responses}
    if parameters:
        made["parameters"] = list(parameters)
    if body is not None:
        needed = body != "Cancel"
        made["requestBody"] = {"required": needed, "content": {"application/json": {"schema": _ref(body)}}}
    return {**made, "security": []} if public else made


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def build_openapi(options: "ServeOptions") -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Viva as an OpenWOP host", "version": viva.__version__},
        "servers": [{"url": options.public_url}],
        "security": [{"bearer": []}],
        "paths": {**_public_paths(), **_run_paths(), **_watching_paths(), **_listing_paths()},
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


_GONE = (401, 403, 404)


def _public_paths() -> dict[str, Any]:
    return {
        "/.well-known/openwop": {
            "get": _endpoint("discover", "What this host can do.", (200, "Any"), (304,), public=True)
        },
        "/v1/openapi.json": {"get": _endpoint("openapi", "This document.", (200, "Any"), (), public=True)},
    }


def _run_paths() -> dict[str, Any]:
    return {
        "/v1/runs": {
            "post": _endpoint(
                "createRun",
                "Start an eval, a workflow, or a single invocation of an agent.",
                (201, "Created"),
                (400, 401, 403, 409, 413, 429, 501),
                _KEY,
                body="CreateRun",
            )
        },
        "/v1/runs/{runId}": {
            "get": _endpoint("getRun", "How a run stands.", (200, "RunSnapshot"), (304, *_GONE), _RUN_ID)
        },
        "/v1/runs/{runId}/cancel": {
            "post": _endpoint(
                "cancelRun", "Stop a run.", (200, "Cancelled"), (400, *_GONE, 409, 413), _RUN_ID, _KEY, body="Cancel"
            )
        },
        "/v1/runs/{runId}/eval-summary": {
            "get": _endpoint("getEvalSummary", "What an eval came to.", (200, "EvalSummary"), (*_GONE, 409), _RUN_ID)
        },
        "/v1/runs/{runId}:diff": {
            "get": _endpoint(
                "diffRun",
                "Where two runs differ.",
                (200, "RunDiff"),
                (400, *_GONE),
                _RUN_ID,
                _query("against", {**_TEXT, "minLength": 1}, required=True),
            )
        },
        "/v1/runs/{runId}/annotations": {
            "get": _endpoint("listAnnotations", "What people said of a run.", (200, "Annotations"), _GONE, _RUN_ID),
            "post": _endpoint(
                "annotateRun",
                "Say what you think of a run.",
                (201, "Annotation"),
                (400, *_GONE, 409, 413),
                _RUN_ID,
                _KEY,
                body="AnnotationCreate",
            ),
        },
    }


def _watching_paths() -> dict[str, Any]:
    number = {"type": "integer"}
    return {
        "/v1/runs/{runId}/events": {
            "get": _endpoint(
                "streamEvents",
                "The events of a run as they come.",
                (200, "Any"),
                (400, *_GONE),
                _RUN_ID,
                _query("streamMode", {"type": "string", "enum": list(STREAM_MODES)}),
                _query("bufferMs", {**number, "minimum": 0, "maximum": 5000}),
                {"name": "Last-Event-ID", "in": "header", "schema": _TEXT},
                media="text/event-stream",
            )
        },
        "/v1/runs/{runId}/events/poll": {
            "get": _endpoint(
                "pollEvents",
                "The events after one that is known.",
                (200, "Polled"),
                (400, *_GONE),
                _RUN_ID,
                _query("lastSequence", {**number, "minimum": -1, "maximum": 2**53}),
                _query("timeout", {**number, "minimum": 1, "maximum": 60, "default": 30}),
            )
        },
    }


def _listing_paths() -> dict[str, Any]:
    agent_id = {"name": "agentId", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}
    workflow_id = {**agent_id, "name": "workflowId"}
    return {
        "/v1/agents": {"get": _endpoint("listAgents", "The agents of this host.", (200, "Agents"), (401, 403))},
        "/v1/agents/{agentId}": {"get": _endpoint("getAgent", "One of them.", (200, "Agent"), _GONE, agent_id)},
        "/v1/workflows/{workflowId}": {
            "get": _endpoint("getWorkflow", "A workflow of this host.", (200, "Any"), _GONE, workflow_id)
        },
    }

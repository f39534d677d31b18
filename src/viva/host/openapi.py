"""JSON Schemas of the API: the validation of request bodies, and the OpenAPI 3.1 document."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema_rs

import viva
from viva.host.errors import validation_error
from viva.host.events import STREAM_MODES
from viva.model import codec

MAX_DEPTH = 100
"""Limits the recursion of code that walks through a body."""
_TEXT = {"type": "string"}
_NONEMPTY = {"type": "string", "minLength": 1}
_URL = {"type": "string", "format": "uri"}
_TIME = {"type": "string", "format": "date-time"}
_BOOLEAN = {"type": "boolean"}
_COUNT = {"type": "integer", "minimum": 0}
_POSITIVE = {"type": "integer", "minimum": 1}
_OPEN = {"type": "object", "additionalProperties": True}


def _object(
    optional: Mapping[str, Any] | None = None, *, closed: bool = True, **required: Mapping[str, Any]
) -> dict[str, Any]:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": [*required], "properties": properties, "additionalProperties": not closed}


def _array(items: Mapping[str, Any], **limits: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _if_kind(kind: str) -> dict[str, Any]:
    return {"if": {"properties": {"kind": {"const": kind}}}, "then": {"required": [kind]}}


_CONFIGURABLE = _object(
    {
        "model": _NONEMPTY,
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "maxTokens": _POSITIVE,
        "promptOverrides": {"type": "object", "additionalProperties": _TEXT},
        "mockProvider": _object({"config": {"type": "object"}}, id={**_NONEMPTY, "maxLength": 128}),
        "evalModes": _array(
            {"enum": ["golden", "rubric", "adversarial", "regression", "live-shadow"]}, minItems=1, uniqueItems=True
        ),
        "baselineRunId": _NONEMPTY,
        "allowAgentMismatch": _BOOLEAN,
    },
    closed=False,  # unknown keys are refused with their name: see `configurable`
)
CREATE_RUN = {
    **_object(
        {
            "workflowId": _NONEMPTY,
            "inputs": {"type": "object"},
            "residency": {"type": "object"},
            "tenantId": _TEXT,
            "scopeId": _TEXT,
            "callbackUrl": _URL,
            "mode": {"type": "string", "enum": ["eval"]},
            "evalSuiteRef": _NONEMPTY,
            "agentId": _NONEMPTY,
            "configurable": _CONFIGURABLE,
            "tags": _array({**_NONEMPTY, "maxLength": 256}, maxItems=100),
            "metadata": {"type": "object"},
        }
    ),
    "if": {"properties": {"mode": {"const": "eval"}}, "required": ["mode"]},
    "then": {"required": ["evalSuiteRef", "agentId"]},
    "else": {"required": ["workflowId"]},
}
CANCEL = _object({"reason": {"type": "string", "maxLength": 1000}})
BULK_CANCEL = _object(
    {"reason": {"type": "string", "maxLength": 1000}}, runIds=_array({**_NONEMPTY, "maxLength": 256}, minItems=1)
)
_SIGNAL = {
    **_object(
        {"rating": {"type": "integer", "minimum": 1, "maximum": 5}, "label": _TEXT, "correction": _TEXT},
        kind={"type": "string", "enum": ["rating", "correction", "label", "flag"]},
    ),
    "allOf": [_if_kind("rating"), _if_kind("label"), _if_kind("correction")],
}
ANNOTATION = _object({"target": _object({"eventId": _TEXT, "nodeId": _TEXT}), "note": _TEXT}, signal=_SIGNAL)
_MESSAGE = _object({"data": {}}, role={"enum": ["system", "user", "assistant"]}, content=_TEXT)
INVOCATION = {
    **_object({"input": {"description": "The task: a text or any value."}, "messages": _array(_MESSAGE, minItems=1)}),
    "oneOf": [{"required": ["input"]}, {"required": ["messages"]}],
}
"""The inputs of the workflow `viva.agent`: one task, or messages of which the last is the user's."""
_BODIES: Mapping[str, dict[str, Any]] = {
    "CREATE_RUN": CREATE_RUN,
    "CANCEL": CANCEL,
    "BULK_CANCEL": BULK_CANCEL,
    "ANNOTATION": ANNOTATION,
    "INVOCATION": INVOCATION,
}


@cache
def _validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(_BODIES[name], validate_formats=True)


def decode_body(name: str, raw: bytes) -> dict[str, Any]:
    return validate_body(name, parse_json(raw))


def parse_json(raw: bytes) -> Any:
    try:
        value = codec.decode(raw, max_depth=MAX_DEPTH) if raw else {}
        if b"{" in raw:
            json.loads(raw, object_pairs_hook=_reject_duplicate_keys)
        return value
    except codec.TooDeepError:
        raise validation_error(f"The body nests deeper than {MAX_DEPTH} levels") from None
    except codec.DecodeError:
        raise validation_error("The body is not valid JSON") from None


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> None:
    """A key that stands twice means two things to two readers: a proxy may check one value and the host use the other."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise validation_error("The body has the same key twice in one object")


def validate_body(name: str, value: Any, field: str | None = None) -> Any:
    """Returns a valid value. The error names the place and kind of a problem, never the value."""
    error = next(iter(_validator(name).iter_errors(value)), None)
    if error is None:
        return value
    place = ".".join([*([field] if field else []), *map(str, error.instance_path)])
    detail: dict[str, Any] = error.kind.as_dict()
    missing = detail.get("property") if error.kind.name == "required" else None
    problem = f"is missing {missing}" if missing else f"is invalid ({error.kind.name})"
    raise validation_error(f"{place or 'The body'} {problem}", place or (str(missing) if missing else None))


_STATUSES = [
    "pending", "running", "paused", "waiting-approval", "waiting-input", "waiting-external", "completed", "failed",
    "cancelling", "cancelled",
]  # fmt: skip
SCHEMAS: dict[str, Any] = {
    "Error": _object({"details": _OPEN}, error=_NONEMPTY, message=_NONEMPTY),
    "CreateRun": CREATE_RUN,
    "Created": _object({"statusUrl": _URL}, runId=_TEXT, status={"enum": ["pending", "running"]}, eventsUrl=_URL),
    "RunSnapshot": _object(
        {"startedAt": _TIME, "completedAt": _TIME},
        closed=False,
        runId=_TEXT,
        workflowId=_TEXT,
        status={"enum": _STATUSES},
    ),
    "RunEvent": _object(
        {"nodeId": _TEXT, "causationId": _TEXT},
        closed=False,
        eventId=_TEXT,
        runId=_TEXT,
        type=_TEXT,
        payload=_OPEN,
        timestamp=_TIME,
        sequence=_COUNT,
    ),
    "Polled": _object(events=_array(_ref("RunEvent")), isComplete=_BOOLEAN),
    "Cancel": CANCEL,
    "BulkCancel": BULK_CANCEL,
    "BulkCancelled": _object(
        results=_array(
            _object(
                {"status": {"enum": ["cancelled", "cancelling"]}, "error": _object(code=_TEXT, message=_TEXT)},
                runId=_TEXT,
                ok=_BOOLEAN,
            )
        )
    ),
    "Cancelled": _object(runId=_TEXT, status={"enum": ["cancelled", "cancelling"]}),
    "EvalSummary": _object(
        {"evaluatedModelClass": _TEXT, "totalCostUsd": {"type": "number", "minimum": 0}, "regression": _OPEN},
        suiteId=_TEXT,
        suiteVersion=_TEXT,
        aggregateScore={"type": "number", "minimum": 0, "maximum": 1},
        passed=_BOOLEAN,
        taskCount=_COUNT,
        passedCount=_COUNT,
        tasks=_array(_OPEN),
    ),
    "AnnotationCreate": ANNOTATION,
    "Annotation": _object(
        {"note": _TEXT}, annotationId=_TEXT, target=_OPEN, signal=_OPEN, actor=_OPEN, createdAt=_TIME
    ),
    "Annotations": _object(annotations=_array(_ref("Annotation"))),
    "RunDiff": _object(
        {"divergedAtSeq": {"type": ["integer", "null"], "minimum": 0}, "truncated": _BOOLEAN},
        a=_TEXT,
        b=_TEXT,
        eventDiffs=_array(_OPEN),
        stateDiff=_OPEN,
    ),
    "Agent": _object(
        {"description": _TEXT},
        **dict.fromkeys(("agentId", "persona", "label", "modelClass", "packName", "packVersion"), _TEXT),
        toolAllowlist=_array(_TEXT),
        hasHandoffSchemas=_BOOLEAN,
    ),
    "Agents": _object(agents=_array(_ref("Agent")), total=_COUNT),
    "Any": _OPEN,
}
_EVENT_STREAM = "EventStream"
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
}
_RUN_ID = {"name": "runId", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1, "maxLength": 128}}
_KEY = {"name": "Idempotency-Key", "in": "header", "schema": {**_TEXT, "minLength": 1, "maxLength": 255}}


def _query(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": schema}


def _endpoint(
    name: str,
    summary: str,
    response: tuple[int, str],
    errors: tuple[int, ...],
    *parameters: dict[str, Any],
    body: str | None = None,
) -> dict[str, Any]:
    status, schema = response
    content = {"text/event-stream": {"schema": _TEXT}} if schema == _EVENT_STREAM else _json_content(schema)
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
    return {"application/json": {"schema": _ref(schema)}}


def build_openapi(public_url: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Viva as an OpenWOP host", "version": viva.__version__},
        "servers": [{"url": public_url}],
        "security": [{"bearer": []}],
        "paths": {**_public_paths(), **_run_paths(), **_cancel_paths(), **_event_paths(), **_inventory_paths()},
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


_RUN_ERRORS = (401, 403, 404)


def _public_paths() -> dict[str, Any]:
    return {
        "/.well-known/openwop": {
            "get": {**_endpoint("discover", "Capabilities of this host.", (200, "Any"), (304,)), "security": []}
        },
        "/v1/openapi.json": {"get": {**_endpoint("openapi", "This document.", (200, "Any"), ()), "security": []}},
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
            "get": _endpoint("getRun", "Snapshot of a run.", (200, "RunSnapshot"), (304, *_RUN_ERRORS), _RUN_ID)
        },
        "/v1/runs/{runId}/eval-summary": {
            "get": _endpoint(
                "getEvalSummary", "Summary of an eval.", (200, "EvalSummary"), (*_RUN_ERRORS, 409), _RUN_ID
            )
        },
        "/v1/runs/{runId}:diff": {
            "get": _endpoint(
                "diffRun",
                "Compare two runs.",
                (200, "RunDiff"),
                (400, *_RUN_ERRORS),
                _RUN_ID,
                _query("against", _NONEMPTY, required=True),
            )
        },
        "/v1/runs/{runId}/annotations": {
            "get": _endpoint("listAnnotations", "Annotations of a run.", (200, "Annotations"), _RUN_ERRORS, _RUN_ID),
            "post": _endpoint(
                "annotateRun",
                "Annotate a run.",
                (201, "Annotation"),
                (400, *_RUN_ERRORS, 409, 413),
                _RUN_ID,
                _KEY,
                body="AnnotationCreate",
            ),
        },
    }


def _cancel_paths() -> dict[str, Any]:
    return {
        "/v1/runs/{runId}/cancel": {
            "post": _endpoint(
                "cancelRun",
                "Cancel a run.",
                (200, "Cancelled"),
                (400, *_RUN_ERRORS, 409, 413),
                _RUN_ID,
                _KEY,
                body="Cancel",
            )
        },
        "/v1/runs:bulk-cancel": {
            "post": _endpoint(
                "cancelRuns",
                "Cancel several runs.",
                (200, "BulkCancelled"),
                (400, 401, 403, 409, 413),
                _KEY,
                body="BulkCancel",
            )
        },
    }


def _event_paths() -> dict[str, Any]:
    return {
        "/v1/runs/{runId}/events": {
            "get": _endpoint(
                "streamEvents",
                "Stream the events of a run.",
                (200, _EVENT_STREAM),
                (400, *_RUN_ERRORS),
                _RUN_ID,
                _query("streamMode", {"type": "string", "enum": list(STREAM_MODES)}),
                _query("bufferMs", {"type": "integer", "minimum": 0, "maximum": 5000}),
                {"name": "Last-Event-ID", "in": "header", "schema": _TEXT},
            )
        },
        "/v1/runs/{runId}/events/poll": {
            "get": _endpoint(
                "pollEvents",
                "Events after a sequence number.",
                (200, "Polled"),
                (400, *_RUN_ERRORS),
                _RUN_ID,
                _query("lastSequence", {"type": "integer", "minimum": -1, "maximum": 2**53}),
                _query("timeout", {"type": "integer", "minimum": 1, "maximum": 60, "default": 30}),
            )
        },
    }


def _inventory_paths() -> dict[str, Any]:
    agent_id = {"name": "agentId", "in": "path", "required": True, "schema": _NONEMPTY}
    workflow_id = {**agent_id, "name": "workflowId"}
    return {
        "/v1/agents": {"get": _endpoint("listAgents", "The agents of this host.", (200, "Agents"), (401, 403))},
        "/v1/agents/{agentId}": {"get": _endpoint("getAgent", "One agent.", (200, "Agent"), _RUN_ERRORS, agent_id)},
        "/v1/workflows/{workflowId}": {
            "get": _endpoint("getWorkflow", "A workflow of this host.", (200, "Any"), _RUN_ERRORS, workflow_id)
        },
    }

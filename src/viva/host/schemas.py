"""What may stand in a request, as JSON Schemas: the host checks with them, and its OpenAPI document shows them."""

from functools import cache
from typing import Any

from viva.host.errors import validation_error
from viva.model import codec

MAX_DEPTH = 100
"""Nobody means more, and whatever walks through a value must come out again."""
_TEXT = {"type": "string", "minLength": 1}
CONFIGURABLE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "recursionLimit": {"type": "integer", "minimum": 1},
        "model": _TEXT,
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "maxTokens": {"type": "integer", "minimum": 1},
        "promptOverrides": {"type": "object", "additionalProperties": {"type": "string"}},
        "mockProvider": {
            "type": "object",
            "properties": {"id": {"type": "string", "minLength": 1, "maxLength": 128}, "config": {"type": "object"}},
            "required": ["id"],
            "additionalProperties": False,
        },
        "evalModes": {
            "type": "array",
            "items": {"enum": ["golden", "rubric", "adversarial", "regression", "live-shadow"]},
            "minItems": 1,
            "uniqueItems": True,
        },
        "baselineRunId": _TEXT,
        "allowAgentMismatch": {"type": "boolean"},
    },
}
CREATE_RUN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "workflowId": _TEXT,
        "inputs": {"type": "object"},
        "residency": {"type": "object"},
        "tenantId": {"type": "string"},
        "scopeId": {"type": "string"},
        "callbackUrl": {"type": "string", "format": "uri"},
        "mode": {"type": "string", "enum": ["eval"]},
        "evalSuiteRef": _TEXT,
        "agentId": _TEXT,
        "configurable": CONFIGURABLE,
        "tags": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 256}, "maxItems": 100},
        "metadata": {"type": "object"},
    },
    "additionalProperties": False,
    "if": {"properties": {"mode": {"const": "eval"}}, "required": ["mode"]},
    "then": {"required": ["evalSuiteRef", "agentId"]},
    "else": {"required": ["workflowId"]},
}
CANCEL: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string", "maxLength": 1000}},
    "additionalProperties": False,
}


def _needs(kind: str) -> dict[str, Any]:
    return {"if": {"properties": {"kind": {"const": kind}}}, "then": {"required": [kind]}}


ANNOTATION: dict[str, Any] = {
    "type": "object",
    "required": ["signal"],
    "properties": {
        "target": {
            "type": "object",
            "properties": {"eventId": {"type": "string"}, "nodeId": {"type": "string"}},
            "additionalProperties": False,
        },
        "signal": {
            "type": "object",
            "required": ["kind"],
            "properties": {
                "kind": {"type": "string", "enum": ["rating", "correction", "label", "flag"]},
                "rating": {"type": "integer", "minimum": 1, "maximum": 5},
                "label": {"type": "string"},
                "correction": {"type": "string"},
            },
            "additionalProperties": False,
            "allOf": [_needs("rating"), _needs("label"), _needs("correction")],
        },
        "note": {"type": "string"},
    },
    "additionalProperties": False,
}
INVOCATION: dict[str, Any] = {
    "type": "object",
    "properties": {
        "input": {"description": "The task: a text, or any value."},
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "role": {"enum": ["system", "user", "assistant"]},
                    "content": {"type": "string"},
                    "data": {},
                },
                "required": ["role", "content"],
                "additionalProperties": False,
            },
        },
    },
    "oneOf": [{"required": ["input"]}, {"required": ["messages"]}],
    "additionalProperties": False,
}
"""The inputs of the workflow `viva.agent`: one task, or a conversation whose last message is the user's."""


@cache
def _validator(name: str) -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(globals()[name], validate_formats=True)


def decode_body(name: str, raw: bytes) -> dict[str, Any]:
    """The body, if it is what it should be."""
    return validate_body(name, parse_json(raw))


def parse_json(raw: bytes) -> Any:
    try:
        return codec.decode(raw, max_depth=MAX_DEPTH) if raw else {}
    except codec.TooDeepError:
        raise validation_error(f"the body nests deeper than {MAX_DEPTH} levels") from None
    except codec.DecodeError:
        raise validation_error("the body is no JSON") from None


def validate_body(name: str, value: Any, field: str | None = None) -> Any:
    """A value, if it is what it should be. What is wrong is said by its place and kind, never by its value."""
    wrong = next(iter(_validator(name).iter_errors(value)), None)
    if wrong is not None:
        steps = [step if isinstance(step, str) else str(step) for step in wrong.instance_path]
        place = ".".join([*([field] if field else []), *steps])
        detail: dict[str, Any] = wrong.kind.as_dict()
        missing = detail.get("property") if wrong.kind.name == "required" else None
        what = f"misses {missing}" if missing else f"does not fit ({wrong.kind.name})"
        raise validation_error(f"{place or 'the body'} {what}", place or (str(missing) if missing else None))
    return value

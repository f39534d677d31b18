"""Requests that change something: the JSON Schemas of their bodies, and idempotency keys, with which a repeated request is
executed once.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

import jsonschema_rs
from msgspec import Struct

from viva.concurrency.threads import run_in_thread
from viva.host.errors import ApiError, validation_error
from viva.host.store import Store, StoredResponse
from viva.host.tokens import Principal
from viva.model import codec

_SMALL_BODY_BYTES = 64 * 1024
MAX_DEPTH = 100
"""How deep a body may nest: code that walks through it is recursive."""
TEXT = {"type": "string"}
LONG_TEXT = {"type": "string", "maxLength": 10_000}
NONEMPTY = {"type": "string", "minLength": 1}
URL = {"type": "string", "format": "uri"}
BOOLEAN = {"type": "boolean"}
POSITIVE = {"type": "integer", "minimum": 1}
ANY_OBJECT = {"type": "object", "additionalProperties": True}


def object_schema(
    optional: Mapping[str, Any] | None = None, *, closed: bool = True, **required: Mapping[str, Any]
) -> dict[str, Any]:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": [*required], "properties": properties, "additionalProperties": not closed}


def array_schema(items: Mapping[str, Any], **limits: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def _require_field_of_kind(kind: str) -> dict[str, Any]:
    return {"if": {"properties": {"kind": {"const": kind}}}, "then": {"required": [kind]}}


_CONFIGURABLE = object_schema(
    {
        "model": NONEMPTY,
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "maxTokens": POSITIVE,
        "promptOverrides": {"type": "object", "additionalProperties": TEXT},
        "mockProvider": object_schema({"config": {"type": "object"}}, id={**NONEMPTY, "maxLength": 128}),
        "evalModes": array_schema(
            {"enum": ["golden", "rubric", "adversarial", "regression", "live-shadow"]}, minItems=1, uniqueItems=True
        ),
        "baselineRunId": NONEMPTY,
        "allowAgentMismatch": BOOLEAN,
    },
    closed=False,  # unknown keys are refused with their name: see `configurable`
)
CREATE_RUN = {
    **object_schema(
        {
            "workflowId": NONEMPTY,
            "inputs": {"type": "object"},
            "residency": {"type": "object"},
            "tenantId": TEXT,
            "scopeId": TEXT,
            "callbackUrl": URL,
            "mode": {"type": "string", "enum": ["eval"]},
            "evalSuiteRef": NONEMPTY,
            "agentId": NONEMPTY,
            "configurable": _CONFIGURABLE,
            "tags": array_schema({**NONEMPTY, "maxLength": 256}, maxItems=100),
            "metadata": {"type": "object"},
        }
    ),
    "if": {"properties": {"mode": {"const": "eval"}}, "required": ["mode"]},
    "then": {"required": ["evalSuiteRef", "agentId"]},
    "else": {"required": ["workflowId"]},
}
CANCEL = object_schema({"reason": {"type": "string", "maxLength": 1000}})
BULK_CANCEL = object_schema(
    {"reason": {"type": "string", "maxLength": 1000}}, runIds=array_schema({**NONEMPTY, "maxLength": 256}, minItems=1)
)
ADMIN_CANCEL = {
    **object_schema(
        {
            "runIds": array_schema({**NONEMPTY, "maxLength": 256}, minItems=1, maxItems=1000),
            "tenant": NONEMPTY,
            "kind": {"enum": ["eval", "workflow", "invocation"]},
            "agentId": NONEMPTY,
        }
    ),
    "minProperties": 1,
}
_SIGNAL = {
    **object_schema(
        {"rating": {"type": "integer", "minimum": 1, "maximum": 5}, "label": LONG_TEXT, "correction": LONG_TEXT},
        kind={"type": "string", "enum": ["rating", "correction", "label", "flag"]},
    ),
    "allOf": [_require_field_of_kind("rating"), _require_field_of_kind("label"), _require_field_of_kind("correction")],
}
ANNOTATION = object_schema(
    {"target": object_schema({"eventId": TEXT, "nodeId": TEXT}), "note": LONG_TEXT}, signal=_SIGNAL
)
_MESSAGE = object_schema({"data": {}}, role={"enum": ["system", "user", "assistant"]}, content=TEXT)
INVOCATION = {
    **object_schema(
        {"input": {"description": "The task: a text or any value."}, "messages": array_schema(_MESSAGE, minItems=1)}
    ),
    "oneOf": [{"required": ["input"]}, {"required": ["messages"]}],
}
"""The inputs of the workflow `viva.agent`: one task, or messages of which the last is the user's."""
_SCHEMAS: Mapping[str, dict[str, Any]] = {
    "CREATE_RUN": CREATE_RUN,
    "CANCEL": CANCEL,
    "BULK_CANCEL": BULK_CANCEL,
    "ADMIN_CANCEL": ADMIN_CANCEL,
    "ANNOTATION": ANNOTATION,
    "INVOCATION": INVOCATION,
}


@cache
def _compile_validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(_SCHEMAS[name], validate_formats=True)


def decode_body(name: str, raw: bytes) -> dict[str, Any]:
    return validate_body(name, parse_json(raw))


async def parse_large_json(raw: bytes) -> Any:
    """Like `parse_json`, but a large body is parsed in a thread, so that other requests get a response meanwhile."""
    return parse_json(raw) if len(raw) <= _SMALL_BODY_BYTES else await run_in_thread(parse_json, raw)


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
    """Raises for a repeated key: a proxy may check one of its values while the host uses the other."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise validation_error("The body has the same key twice in one object")


def validate_body(name: str, value: Any, field: str | None = None) -> Any:
    """Returns the value if it matches the schema. The ApiError has the place and kind of the problem, never the value."""
    error = next(iter(_compile_validator(name).iter_errors(value)), None)
    if error is None:
        return value
    place = ".".join([*([field] if field else []), *map(str, error.instance_path)])
    detail: dict[str, Any] = error.kind.as_dict()
    missing = detail.get("property") if error.kind.name == "required" else None
    problem = f"is missing {missing}" if missing else f"is invalid ({error.kind.name})"
    raise validation_error(f"{place or 'The body'} {problem}", place or (str(missing) if missing else None))


KEY_HEADER = "idempotency-key"
REPLAY_HEADER = "openwop-Idempotent-Replay"
MAX_KEY_LENGTH = 255
ACK_TIMEOUT_S = 30
"""How long a request waits for an earlier one with the same key; OpenWOP requires at least 5 seconds."""
_RETRY_AFTER_S = 1


def _do_nothing() -> None:
    return None


class Mutation(Struct, frozen=True):
    """A validated change: the response, `write` for the transaction that stores the response, and `start` for afterwards."""

    status: int
    body: bytes
    write: Callable[[], None] = _do_nothing
    start: Callable[[], None] = _do_nothing


class _ExecutedElsewhere(Exception):  # noqa: N818 -- it undoes a transaction; nothing is wrong
    """Another host has executed the request with the same key."""


class IdempotencyCache:
    """Executes requests with the same idempotency key once. Only digests of keys are stored."""

    def __init__(self, store: Store, ack_timeout_s: float = ACK_TIMEOUT_S) -> None:
        self._store = store
        self._ack_timeout_s = ack_timeout_s
        self._locks: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()

    async def run_once(
        self,
        principal: Principal,
        operation: str,
        key: str | None,
        body: bytes,
        validate: Callable[[], Awaitable[Mutation]],
    ) -> tuple[int, bytes, dict[str, str]]:
        """Executes a request that changes something. Returns its status, body and headers, or those of an earlier one with the same key.

        A concurrent request with the same key waits for the first one, up to the time limit. An ApiError of `validate` is not stored: a
        corrected request may use the same key.
        """
        if key is None:
            mutation = await validate()
            with self._store.transaction(is_durable=True):
                mutation.write()
            mutation.start()
            return mutation.status, mutation.body, {}
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise validation_error(f"Idempotency-Key must have 1 to {MAX_KEY_LENGTH} characters", "Idempotency-Key")
        place = (principal.tenant, operation, sha256(key.encode()).hexdigest())
        request = sha256(body).hexdigest()
        async with _acquire(self._locks.setdefault(place, asyncio.Lock()), self._ack_timeout_s):
            stored = self._store.find_response(*place)
            if stored is None:
                mutation = await validate()
                stored = self._execute(place, request, mutation)
                if stored is None:
                    return mutation.status, mutation.body, {REPLAY_HEADER: "false"}
            if stored.request != request:
                raise ApiError(409, "idempotency_key_mismatch", "This Idempotency-Key was used for another request")
            return stored.status, stored.body, {REPLAY_HEADER: "true"}

    def _execute(self, place: tuple[str, str, str], request: str, mutation: Mutation) -> StoredResponse | None:
        """Executes a mutation and returns None. If another host was faster, returns the response of that host instead."""
        try:
            with self._store.transaction(is_durable=True):
                if not self._store.save_response(*place, StoredResponse(request, mutation.status, mutation.body)):
                    raise _ExecutedElsewhere
                mutation.write()
        except _ExecutedElsewhere:
            return self._store.find_response(*place)
        mutation.start()
        return None


@asynccontextmanager
async def _acquire(lock: asyncio.Lock, timeout_s: float) -> AsyncGenerator[None]:
    try:
        await asyncio.wait_for(lock.acquire(), timeout_s)
    except TimeoutError:
        message = "A request with this Idempotency-Key is still in progress"
        headers = {"Retry-After": str(_RETRY_AFTER_S)}
        raise ApiError(409, "idempotency_in_flight", message, {"retryAfter": _RETRY_AFTER_S}, headers) from None
    try:
        yield
    finally:
        lock.release()

"""The capabilities document of the host at `/.well-known/openwop`."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import viva
from viva.formats.openwop.modes import MODES
from viva.host.events import EVENT_LOG_VERSION
from viva.host.idempotency import ACK_TIMEOUT_S
from viva.model import codec

MAX_BODY_BYTES = 1024 * 1024
MAX_TASKS = 10_000

_AGENT_SETTINGS: dict[str, Any] = {
    "model": {"type": "string"},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "maxTokens": {"type": "integer", "minimum": 1},
    "promptOverrides": {"type": "object", "properties": {"system": {"type": "string"}}, "additionalProperties": False},
}
"""What agents take whose model Viva calls itself; others refuse it."""


def build_capabilities(*, has_suites: bool, has_judge: bool, fixtures: Iterable[str]) -> dict[str, Any]:
    """Without suites there is no `evalSuite`, without a judge no mode `rubric`. `fixtures` are workflows for tests."""
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
    return f'"{sha256(codec.canonical_bytes(document)).hexdigest()[:32]}"'


def compute_negotiation_etag(document: Mapping[str, Any]) -> str:
    """Changes when a client has to negotiate again: not for another version of the same behaviour."""
    return compute_etag({key: value for key, value in document.items() if key != "implementation"})

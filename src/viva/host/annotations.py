"""What people think of a run: notes beside it that never become part of its events, and never change its scores."""

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from viva.host.auth import Principal
from viva.host.errors import validation_error
from viva.host.log import RunLog, utc_timestamp

_SECRETS = re.compile(
    r"\b(?:sk|pk|rk|hk|ghp|gho|xox[abp]|viva)[-_][A-Za-z0-9_-]{8,}|\bAKIA[0-9A-Z]{12,}"
    r"|\beyJ[\w-]+\.[\w-]+\.[\w-]+|(?i:\bbearer\s+)[\w.~+/-]{8,}=*"
    r"|(?i:\b(?:api[_-]?key|secret|password|token)\b\s*[:=]\s*)\S+"
)
"""What keys and tokens look like. Somebody may paste one into a note."""
REDACTED = "[redacted]"


def build_annotation(
    body: Mapping[str, Any], run: str, log: RunLog, principal: Principal, redact: Callable[[str], str]
) -> dict[str, Any]:
    """The annotation that a valid request makes, without secrets."""
    target = body.get("target", {})
    events = {each.event.event_id for each in log.events}
    nodes = {each.event.node_id for each in log.events}
    if "eventId" in target and target["eventId"] not in events:
        raise validation_error("target.eventId names no event of this run", "target.eventId")
    if "nodeId" in target and target["nodeId"] not in nodes:
        raise validation_error("target.nodeId names no node of this run", "target.nodeId")

    def clean(text: str) -> str:
        return redact(_SECRETS.sub(REDACTED, text))

    signal = {key: clean(value) if isinstance(value, str) else value for key, value in body["signal"].items()}
    made = {
        "annotationId": f"ann-{secrets.token_hex(12)}",
        "target": {"runId": run, **target},
        "signal": {**signal, "kind": body["signal"]["kind"]},
        "actor": {"principalRef": principal.name},
        "createdAt": utc_timestamp(),
    }
    return {**made, "note": clean(body["note"])} if "note" in body else made

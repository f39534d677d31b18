"""Two runs side by side: a pure function of their logs.

Identifiers, times and how the request came in are left out of the comparison. How long an agent took is a fact of the
run like any other, so two runs of one suite differ at least there.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from viva.host.log import LoggedEvent, RunEvent, RunLog
from viva.host.store import Run
from viva.model import codec

_TRANSPORT = frozenset({"transport", "owner"})


def diff_logs(a: Run, b: Run, log_a: RunLog, log_b: RunLog) -> dict[str, Any]:
    """Where the logs part, what differs from there on, and how the states differ."""
    truncated = not (a.is_finished and b.is_finished)
    length = min(len(log_a.events), len(log_b.events)) if truncated else None
    diffs = _event_diffs(log_a.events[:length], log_b.events[:length])
    found: dict[str, Any] = {
        "a": a.id,
        "b": b.id,
        "divergedAtSeq": diffs[0]["seq"] if diffs else None,
        "eventDiffs": diffs,
        "stateDiff": {"status": {"a": a.status, "b": b.status}} if a.status != b.status else {},
    }
    return {**found, "truncated": True} if truncated else found


def _event_diffs(a: Sequence[LoggedEvent], b: Sequence[LoggedEvent]) -> list[dict[str, Any]]:
    diffs: list[dict[str, Any]] = []
    for sequence, (one, other) in enumerate(zip_longest(a, b)):
        if one is None:
            diffs.append({"seq": sequence, "op": "added", "bEvent": codec.decode_kept(other.encoded)})
        elif other is None:
            diffs.append({"seq": sequence, "op": "removed", "aEvent": codec.decode_kept(one.encoded)})
        elif _said(one.event) != _said(other.event):
            both = {"aEvent": codec.decode_kept(one.encoded), "bEvent": codec.decode_kept(other.encoded)}
            diffs.append({"seq": sequence, "op": "changed", **both})
    return diffs


def _said(event: RunEvent) -> bytes:
    payload = {key: value for key, value in event.payload.items() if key not in _TRANSPORT}
    return codec.canonical_bytes([event.type, event.node_id, payload])

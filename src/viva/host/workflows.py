"""The workflows of a host. Most have nodes that do nothing, or wait: enough to see that runs, keys and events keep their
rules without any agent. What `viva.agent` does stands in `invocations`.
"""

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from viva.host.errors import validation_error
from viva.host.events import node_completed, node_started
from viva.host.log import RunLog

NOOP, DELAY, AGENT_WORKFLOW = "core.noop", "core.delay", "viva.agent"
MAX_DELAY_MS = 60_000
_USUAL_DELAY_MS = 1000


def _workflow(name: str, title: str, nodes: tuple[str, ...], *variables: dict[str, Any], kind: str = NOOP) -> Any:
    return {
        "id": name,
        "name": title,
        "version": "1.0",
        "nodes": [
            {"id": node, "typeId": kind, "name": node, "position": {"x": 0, "y": 0}, "config": {}, "inputs": {}}
            for node in nodes
        ],
        "edges": [
            {"id": f"{a}-{b}", "source": a, "target": b, "sourceNodeId": a, "targetNodeId": b}
            for a, b in pairwise(nodes)
        ],
        "triggers": [{"id": "manual", "type": "manual", "enabled": True}],
        "variables": list(variables),
        "metadata": {"tags": ["viva"] if kind == AGENT_WORKFLOW else ["conformance"]},
        "settings": {"timeout": 10000 if kind == NOOP else 300_000},
    }


def _by_id(*workflows: dict[str, Any]) -> Mapping[str, dict[str, Any]]:
    return {each["id"]: each for each in workflows}


_NONCE = {"name": "nonce", "type": "string", "description": "Tells one request from another.", "required": True}
_FOR_MS = {"name": "delayMs", "type": "number", "description": "How long to wait, at most a minute.", "required": False}
_ASKED = (
    {"name": "input", "type": "object", "description": "The task: a text, or any value.", "required": False},
    {"name": "messages", "type": "array", "description": "Or a talk, the user last.", "required": False},
)
_FIXTURES = _by_id(
    _workflow("conformance-noop", "Nothing, once", ("noop",)),
    _workflow("conformance-idempotent", "Nothing, with a nonce", ("noop",), _NONCE),
)
ADVERTISED_WORKFLOWS = tuple(_FIXTURES)
WORKFLOWS = {
    **_FIXTURES,
    AGENT_WORKFLOW: _workflow(AGENT_WORKFLOW, "Ask an agent once", ("agent",), *_ASKED, kind=AGENT_WORKFLOW),
}
CONFORMANCE_WORKFLOWS = _by_id(
    _workflow("conformance-agent-reasoning", "Nothing, once", ("reasoner",)),
    _workflow("conformance-dispatch-loop", "Nothing, three times", ("supervisor", "dispatch", "worker")),
    _workflow("conformance-delay", "Wait", ("delay",), _FOR_MS, kind=DELAY),
    _workflow("conformance-cancellable", "Wait, or be cancelled", ("delay",), _FOR_MS, kind=DELAY),
)
"""Workflows that comparisons, streams and cancelling are tried on by name. They are known with the conformance seams only.

They are not advertised: two do nothing here where others reason, and whoever advertises the waiting ones also says that
runs can be paused and cancelled in bulk, which they cannot.
"""


def validate_inputs(workflow: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    missing = [each["name"] for each in workflow["variables"] if each["required"] and each["name"] not in inputs]
    if missing:
        raise validation_error(f"the workflow needs {', '.join(missing)}", "inputs", missing=missing)
    delay = inputs.get("delayMs", 0) if _FOR_MS in workflow["variables"] else 0
    if type(delay) not in (int, float) or not 0 <= delay <= MAX_DELAY_MS:
        raise validation_error(f"delayMs is from 0 to {MAX_DELAY_MS}", "inputs.delayMs")


def select_inputs(workflow: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """As much of the inputs as its nodes go by: nothing else is worth keeping."""
    return {"delayMs": inputs["delayMs"]} if _FOR_MS in workflow["variables"] and "delayMs" in inputs else {}


async def run_workflow(workflow: Mapping[str, Any], asked: Mapping[str, Any], log: RunLog) -> None:
    """All that happens in it, as far as it did not happen before the host went down."""
    begun, done = ({event.node_id for event in log.events_of_type(f"node.{kind}")} for kind in ("started", "completed"))
    for node in workflow["nodes"]:
        name, kind = str(node["id"]), str(node["typeId"])
        if name in done:
            continue
        if kind == DELAY:
            if name not in begun:
                log.append([node_started(name, kind)])
            await asyncio.sleep(asked.get("delayMs", _USUAL_DELAY_MS) / 1e3)
            log.append([node_completed(name)])
        else:
            log.append([node_started(name, kind), node_completed(name)])

"""The workflows of a host. Except for `viva.agent`, their nodes do nothing or wait: clients use them to test the API."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from viva.host.errors import validation_error
from viva.host.events import RunLog, node_completed, node_started, run_completed
from viva.host.runs import RunEnding

NOOP, DELAY, AGENT_WORKFLOW = "core.noop", "core.delay", "viva.agent"
MAX_DELAY_MS = 60_000
_DEFAULT_DELAY_MS = 1000


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
    return {workflow["id"]: workflow for workflow in workflows}


def _variable(name: str, kind: str, description: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "type": kind, "description": description, "required": required}


_DELAY_MS = _variable("delayMs", "number", "Delay in milliseconds, at most a minute.")
_ADVERTISED = _by_id(
    _workflow("conformance-noop", "No operation", ("noop",)),
    _workflow(
        "conformance-idempotent",
        "No operation, with a nonce",
        ("noop",),
        _variable("nonce", "string", "Distinguishes requests.", required=True),
    ),
)
WORKFLOWS = {
    **_ADVERTISED,
    AGENT_WORKFLOW: _workflow(
        AGENT_WORKFLOW,
        "Call an agent once",
        ("agent",),
        _variable("input", "object", "The task: a text or any value."),
        _variable("messages", "array", "Or a conversation; the last message is the user's."),
        kind=AGENT_WORKFLOW,
    ),
}
CONFORMANCE_WORKFLOWS = _by_id(
    _workflow("conformance-agent-reasoning", "No operation", ("reasoner",)),
    _workflow("conformance-dispatch-loop", "No operation, three times", ("supervisor", "dispatch", "worker")),
    _workflow("conformance-delay", "Wait", ("delay",), _DELAY_MS, kind=DELAY),
    _workflow("conformance-cancellable", "Wait, or be cancelled", ("delay",), _DELAY_MS, kind=DELAY),
)
"""Available with conformance routes only."""
_UNADVERTISED = frozenset({"conformance-agent-reasoning", "conformance-dispatch-loop"})
"""They do nothing where other hosts reason and dispatch."""


def list_fixtures(is_conformance: bool) -> list[str]:
    """The workflows for tests that this host really executes."""
    return [*_ADVERTISED, *(name for name in CONFORMANCE_WORKFLOWS if is_conformance and name not in _UNADVERTISED)]


def validate_inputs(workflow: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    required = [variable["name"] for variable in workflow["variables"] if variable["required"]]
    if missing := [name for name in required if name not in inputs]:
        raise validation_error(f"Missing inputs of the workflow: {', '.join(missing)}", "inputs", missing=missing)
    delay = inputs.get("delayMs", 0) if _DELAY_MS in workflow["variables"] else 0
    if type(delay) not in (int, float) or not 0 <= delay <= MAX_DELAY_MS:
        raise validation_error(f"delayMs must be a number from 0 to {MAX_DELAY_MS}", "inputs.delayMs")


def select_inputs(workflow: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that the nodes use; others are not stored."""
    return {"delayMs": inputs["delayMs"]} if _DELAY_MS in workflow["variables"] and "delayMs" in inputs else {}


async def run_workflow(workflow: Mapping[str, Any], inputs: Mapping[str, Any], log: RunLog) -> RunEnding:
    """Executes the nodes that were not completed before a restart of the host."""
    started, completed = (
        {event.node_id for event in log.events_of_type(f"node.{kind}")} for kind in ("started", "completed")
    )
    for node in workflow["nodes"]:
        name, kind = str(node["id"]), str(node["typeId"])
        if name in completed:
            continue
        if kind == DELAY:
            if name not in started:
                log.append([node_started(name, kind)])
            await asyncio.sleep(inputs.get("delayMs", _DEFAULT_DELAY_MS) / 1e3)
            log.append([node_completed(name)])
        else:
            log.append([node_started(name, kind), node_completed(name)])
    return RunEnding("completed", (run_completed({}),))

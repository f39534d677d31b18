"""Workflows of `core.noop` nodes: enough to see that runs, keys and events keep their rules without any agent."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from viva.host.events import node_completed, node_started
from viva.host.log import Draft
from viva.host.refusals import invalid

NOOP = "core.noop"


def _workflow(name: str, title: str, nodes: tuple[str, ...], variables: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": name,
        "name": title,
        "version": "1.0",
        "nodes": [
            {"id": node, "typeId": NOOP, "name": node, "position": {"x": 0, "y": 0}, "config": {}, "inputs": {}}
            for node in nodes
        ],
        "edges": [
            {"id": f"{a}-{b}", "source": a, "target": b, "sourceNodeId": a, "targetNodeId": b}
            for a, b in pairwise(nodes)
        ],
        "triggers": [{"id": "manual", "type": "manual", "enabled": True}],
        "variables": variables,
        "metadata": {"tags": ["conformance"]},
        "settings": {"timeout": 10000},
    }


_NONCE = {"name": "nonce", "type": "string", "description": "Tells one request from another.", "required": True}
FIXTURES = ("conformance-noop", "conformance-idempotent")
WORKFLOWS: Mapping[str, dict[str, Any]] = {
    "conformance-noop": _workflow("conformance-noop", "Nothing, once", ("noop",), []),
    "conformance-idempotent": _workflow("conformance-idempotent", "Nothing, with a nonce", ("noop",), [_NONCE]),
}
STAND_INS: Mapping[str, dict[str, Any]] = {
    "conformance-agent-reasoning": _workflow("conformance-agent-reasoning", "Nothing, once", ("reasoner",), []),
    "conformance-dispatch-loop": _workflow(
        "conformance-dispatch-loop", "Nothing, three times", ("supervisor", "dispatch", "worker"), []
    ),
}
"""Two workflows that the comparison of runs is tried on by name, whatever a host advertises. Here they do nothing,
once and three times, so they are known with the conformance seams only, and are not advertised.
"""


def check_inputs(workflow: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    missing = [each["name"] for each in workflow["variables"] if each["required"] and each["name"] not in inputs]
    if missing:
        raise invalid(f"the workflow needs {', '.join(missing)}", "inputs", missing=missing)


def events_of(workflow: Mapping[str, Any]) -> list[Draft]:
    """All that happens in it."""
    return [
        event for node in workflow["nodes"] for event in (node_started(node["id"], NOOP), node_completed(node["id"]))
    ]

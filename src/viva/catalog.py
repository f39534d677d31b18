"""Finds a component by its name, and imports it only then.

    kind        what a name stands for
    check       an assertion's `type`
    agent       an agent's `type`, or the prefix of a reference (`python:…`)
    user        who speaks
    reporter    a report's file extension

Plugins come by dotted path (`module:Name`), by `plugins = [...]` in viva.toml, or by the entry-point group `viva`.
"""

import importlib
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar

from viva.errors import BadInput

Kind = Literal["check", "agent", "user", "reporter"]
C = TypeVar("C", bound=type)

_text, _json, _tools = "viva.checks.text", "viva.checks.json", "viva.checks.tools"
_limits, _combine = "viva.checks.limits", "viva.checks.combine"

BUILT_IN: dict[Kind, dict[str, str]] = {
    "check": {
        "equals": f"{_json}:Equals",
        "contains": f"{_text}:Contains",
        "not_contains": f"{_text}:NotContains",
        "regex": f"{_text}:Regex",
        "json_path": f"{_json}:JsonPath",
        "type": f"{_json}:TypeIs",
        "json_schema": f"{_json}:JsonSchema",
        "tool_called": f"{_tools}:ToolCalled",
        "tool_not_called": f"{_tools}:ToolNotCalled",
        "tool_sequence": f"{_tools}:ToolSequence",
        "tool_result": f"{_tools}:ToolResult",
        "snapshot": "viva.checks.snapshot:Snapshot",
        "max_latency": f"{_limits}:MaxLatency",
        "max_cost": f"{_limits}:MaxCost",
        "max_tokens": f"{_limits}:MaxTokens",
        "max_turns": f"{_limits}:MaxTurns",
        "script": "viva.checks.script:Script",
        "all": f"{_combine}:All",
        "any": f"{_combine}:AnyOf",
        "not": f"{_combine}:Not",
    },
    "agent": {
        "python": "viva.agents.python:PythonAgent",
        "chat": "viva.agents.chat:ChatAgent",
        "http": "viva.agents.http:HttpAgent",
        "scripted": "viva.agents.scripted:ScriptedAgent",
    },
    "user": {
        "script": "viva.users.script:Script",
    },
    "reporter": {
        ".jsonl": "viva.reporters.jsonl:JsonlReport",
        ".json": "viva.reporters.json:JsonReport",
        ".xml": "viva.reporters.junit:JunitReport",
        ".md": "viva.reporters.markdown:MarkdownReport",
    },
}

_registered: dict[tuple[Kind, str], type] = {}


def register(kind: Kind, name: str) -> Callable[[C], C]:
    """A decorator for plugins: `@register("check", "polite")`."""

    def keep(component: C) -> C:
        _registered[kind, name] = component
        return component

    return keep


def names(kind: Kind) -> list[str]:
    """All names of a kind, built-in ones first."""
    return [*BUILT_IN[kind], *(name for k, name in _registered if k == kind and name not in BUILT_IN[kind])]


def find(kind: Kind, name: str) -> type[Any] | None:
    """The component of that name, or None. A dotted path that does not import is an error that names it."""
    if (known := _registered.get((kind, name))) is not None:
        return known
    path = BUILT_IN[kind].get(name) or (name if ":" in name else None)
    if path is None:
        return None
    component = _import(path)
    _registered[kind, name] = component
    return component


def load_plugins(paths: Iterable[str] = ()) -> None:
    """Imports what the config and the installed packages offer, so that their decorators register."""
    for entry in entry_points(group="viva"):
        try:
            entry.load()
        except Exception as broken:  # a plugin is other people's code: name it, whatever it raised
            raise BadInput.saying(f"plugin {entry.name!r} ({entry.value}) does not import: {broken!r}") from broken
    for path in paths:
        _import(path)


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            found = getattr(found, part)
    except Exception as broken:  # a plugin is other people's code: name it, whatever it raised
        raise BadInput.saying(f"{path!r} does not import: {type(broken).__name__}: {broken}") from broken
    return found

"""Finds a component by its name, and imports it only then.

    kind        what a name stands for
    check       an assertion's `type`
    agent       an agent's `type`, or the prefix of a reference (`python:…`)
    reporter    a report's file extension

Plugins come by dotted path (`module:Name`), by `plugins = [...]` in viva.toml, or by the entry-point group `viva`.
Scripts, which belong to a suite, come by reference (`scripts:checks.amount`); see `find_script`.
"""

import importlib
import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from viva.errors import BadInput
from viva.model.tracebacks import error_text

ComponentKind = Literal["check", "agent", "reporter"]
C = TypeVar("C", bound=type)

_text, _json, _tools = "viva.checks.text", "viva.checks.json", "viva.checks.tools"
_limits, _combine = "viva.checks.limits", "viva.checks.combine"

BUILT_IN: dict[ComponentKind, dict[str, str]] = {
    "check": {
        "equals": f"{_json}:Equals",
        "contains": f"{_text}:Contains",
        "not_contains": f"{_text}:NotContains",
        "flow_contains": f"{_text}:FlowContains",
        "regex": f"{_text}:Regex",
        "json_path": f"{_json}:JsonPath",
        "type": f"{_json}:TypeIs",
        "json_schema": f"{_json}:JsonSchema",
        "tool_called": f"{_tools}:ToolCalled",
        "tool_calls_contain": f"{_tools}:ToolCallsContain",
        "tool_not_called": f"{_tools}:ToolNotCalled",
        "tool_sequence": f"{_tools}:ToolSequence",
        "tool_result": f"{_tools}:ToolResult",
        "file_exists": "viva.checks.files:FileExists",
        "file_contains": "viva.checks.files:FileContains",
        "snapshot": "viva.checks.snapshot:Snapshot",
        "max_latency": f"{_limits}:MaxLatency",
        "max_cost": f"{_limits}:MaxCost",
        "max_tokens": f"{_limits}:MaxTokens",
        "max_turns": f"{_limits}:MaxTurns",
        "golden": "viva.checks.golden:Golden",
        "safety": "viva.checks.safety:Safety",
        "script": "viva.checks.script:ScriptCheck",
        "agent": "viva.checks.judge:Judge",
        "rubric": "viva.checks.judge:Rubric",
        "all": f"{_combine}:All",
        "any": f"{_combine}:AnyOf",
        "not": f"{_combine}:Not",
    },
    "agent": {
        "python": "viva.agents.python:PythonConfig",
        "chat": "viva.agents.models:ModelConfig",
        "http": "viva.agents.http:HttpAgent",
        "scripted": "viva.agents.scripted:ScriptedConfig",
        "rules": "viva.agents.rules:RulesAgent",
        "prompt": "viva.agents.prompt:PromptConfig",
        "anthropic": "viva.agents.models:ModelConfig",
        "gemini_api": "viva.agents.models:ModelConfig",
        "openwop": "viva.agents.openwop:OpenwopConfig",
        "gemini": "viva.agents.cli.gemini:GeminiConfig",
        "claude": "viva.agents.cli.claude:ClaudeConfig",
        "codex": "viva.agents.cli.codex:CodexConfig",
        "qwen": "viva.agents.cli.qwen:QwenConfig",
        "opencode": "viva.agents.cli.opencode:OpencodeConfig",
        "command": "viva.agents.cli.command:CommandConfig",
        "acp": "viva.agents.acp:AcpConfig",
    },
    "reporter": {
        ".jsonl": "viva.reporters.json:JsonlReport",
        ".json": "viva.reporters.json:JsonReport",
        ".xml": "viva.reporters.junit:JunitReport",
        ".html": "viva.reporters.html:HtmlReport",
        ".md": "viva.reporters.markdown:MarkdownReport",
    },
}

AGENT_KIND_BY_FIELD = {"prompt": "prompt", "url": "http", "replies": "scripted", "file": "scripted", "connector": "chat"}
"""The kind of an agent without `type` and `use`, by the first of these fields that it has."""

_registered: dict[tuple[ComponentKind, str], type] = {}
_folders: list[str] = []
"""Where modules of plugins are looked for before all else: beside the config."""


def register(kind: ComponentKind, name: str) -> Callable[[C], C]:
    """A decorator for plugins: `@register("check", "polite")`."""

    def keep(component: C) -> C:
        _registered[kind, name] = component
        return component

    return keep


def list_components(kind: ComponentKind) -> list[str]:
    """All names of a kind, built-in ones first."""
    return [*BUILT_IN[kind], *(name for k, name in _registered if k == kind and name not in BUILT_IN[kind])]


def find_component(kind: ComponentKind, name: str) -> type[Any] | None:
    """The component of that name, or None. A dotted path that does not import is an error that names it."""
    if (known := _registered.get((kind, name))) is not None:
        return known
    path = BUILT_IN[kind].get(name) or (name if ":" in name else None)
    if path is None:
        return None
    component = _import(path)
    _registered[kind, name] = component
    return component


def load_plugins(paths: Iterable[str] = (), folder: str | Path | None = None) -> None:
    """Imports what the config and the installed packages offer, so that their decorators register.

    `folder` is the config's: modules of plugins are found there, then among what is installed.
    """
    _folders[:] = [os.path.abspath(folder)] if folder is not None else []  # noqa: PTH100 -- as sys.path spells it
    _load_installed()
    for path in paths:
        _import(path)


@cache
def _load_installed() -> None:
    """Once in a process: to look through all that is installed takes a while, and it does not change."""
    for entry in entry_points(group="viva"):
        try:
            entry.load()
        except Exception as broken:  # a plugin is other people's code: name it, whatever it raised
            raise BadInput.of(f"plugin {entry.name!r} ({entry.value}) does not import: {broken!r}") from broken


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        ours = module.startswith("viva.")
        with nullcontext() if ours else _as_seen_from(tuple(_folders), module):
            found: Any = importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            found = getattr(found, part)
    except Exception as broken:  # a plugin is other people's code: name it, whatever it raised
        raise BadInput.of(f"{path!r} does not import: {error_text(broken)}") from broken
    return found


def find_script(reference: str, roots: Sequence[str]) -> tuple[ModuleType, Callable[..., Any] | None]:
    """The module behind `scripts:a.b-c` or `a.b:c` and, unless the whole names a module, the function in it.

    It is looked for in the folders `roots`, in order, then among what is installed. ValueError says what is not there.
    """
    return _find_script(reference, tuple(os.path.abspath(root) for root in roots))  # noqa: PTH100 -- as sys.path spells it


@cache
def _find_script(reference: str, roots: tuple[str, ...]) -> tuple[ModuleType, Callable[..., Any] | None]:
    if reference.startswith("agents:"):
        raise ValueError(f"{reference!r} is an agent where a script is meant: write scripts:module.function")
    name, colon, attribute = reference.removeprefix("scripts:").replace("-", "_").partition(":")
    if not all(part.isidentifier() for part in name.split(".")) or (colon and not attribute.isidentifier()):
        raise ValueError(f"{reference!r} names no script: write scripts:module.function or module:function")
    with _as_seen_from(roots, name):
        module = _script_module(reference, name)
        if module is not None and not colon:
            return module, None
        if module is None and not colon and "." in name:
            name, _, attribute = name.rpartition(".")
            module = _script_module(reference, name)
    function = getattr(module, attribute, None)
    if module is not None and callable(function):
        return module, function
    if (file := getattr(module, "__file__", None)) is None:
        what = f"no {name.replace('.', '/')}.py" + (f" with a function {attribute}" if attribute else "")
        raise ValueError(f"{reference!r}: there is {what} in {', '.join(roots) or 'the installed packages'}")
    raise ValueError(f"{reference!r}: {file} has no function {attribute!r}{suggest_functions(module, attribute)}")


def suggest_functions(module: object, name: str) -> str:
    """What a function that is not there may have been meant to be, as the end of a sentence."""
    offered = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    near = get_close_matches(name, offered, 3) or sorted(offered)[:5]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _script_module(reference: str, name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as broken:  # a script is other people's code: name it, whatever it raised
        if isinstance(broken, ModuleNotFoundError) and f"{name}.".startswith(f"{broken.name}."):
            return None  # it is this module that is missing, not one that it needs
        raise ValueError(f"{reference!r} does not import: {error_text(broken)}") from broken


_scripts: dict[str, dict[str, ModuleType]] = {}  # folder -> the modules that came from it, by name


@contextmanager
def _as_seen_from(roots: tuple[str, ...], name: str) -> Generator[None]:
    """Imports as scripts in these folders mean them: two suites may each have a `helpers.py` of their own.

    Modules of other folders are out of sight meanwhile, and so is a module of another origin that `name` would find
    instead. Afterwards `sys.path` is as before, and of a name that two folders use neither module stays in
    `sys.modules`: a late import fails then, rather than finds the wrong one.
    """
    outside = dict(sys.modules)
    for folder, modules in _scripts.items():
        for known, module in modules.items():
            if folder not in roots and sys.modules.get(known) is module:
                del sys.modules[known]
    for folder in reversed(roots):
        sys.modules.update(_scripts.get(folder, {}))
    top = name.partition(".")[0]
    if top in sys.modules and _home(top) not in roots and PathFinder.find_spec(top, list(roots)) is not None:
        for other in [other for other in sys.modules if other == top or other.startswith(f"{top}.")]:
            del sys.modules[other]
    sys.path[:0] = roots
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for folder in roots:
            if folder in sys.path:  # else the script has taken it away itself
                sys.path.remove(folder)
        for known, module in list(sys.modules.items()):
            if outside.get(known) is not module and (home := _home(known)) in roots:
                _scripts.setdefault(home, {})[known] = module
        sys.modules.update(outside)
        for known in {known for folder in roots for known in _scripts.get(folder, ())}:
            namesakes = [modules[known] for modules in _scripts.values() if known in modules]
            if len(namesakes) > 1 and any(sys.modules.get(known) is module for module in namesakes):
                del sys.modules[known]


def _home(name: str) -> str:
    """The folder from which a loaded module is found by its name; empty if it came from no folder."""
    about: dict[str, Any] = getattr(sys.modules[name], "__dict__", {})  # getattr would wake modules that load lazily
    if (file := about.get("__file__")) is not None:
        place = Path(file).parent if Path(file).stem == "__init__" else Path(file)
    else:
        place = next(map(Path, about.get("__path__", ())), None)
    parents = place.parents if place is not None else ()
    depth = name.count(".")
    return str(parents[depth]) if depth < len(parents) else ""

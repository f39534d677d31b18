"""Finds components by name and imports them when they are needed.

    kind        name
    check       an assertion's `type`
    agent       an agent's `type`, or the prefix of a reference (`python:…`)
    reporter    a report's file extension

A plugin is found by `module:Name`, by `plugins = [...]` in viva.toml, or by the entry-point group `viva`.
Scripts belong to a suite and are found by reference (`scripts:checks.amount`): see `find_script`.
"""

import importlib
import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from viva.errors import BadInput
from viva.model.tracebacks import format_error
from viva.text.similar_names import find_similar_names

ComponentKind = Literal["check", "agent", "reporter"]
C = TypeVar("C", bound=type)

BUILT_IN: dict[ComponentKind, dict[str, str]] = {
    "check": {
        "equals": "viva.checks.json:Equals",
        "contains": "viva.checks.text:Contains",
        "not_contains": "viva.checks.text:NotContains",
        "flow_contains": "viva.checks.text:FlowContains",
        "regex": "viva.checks.text:Regex",
        "json_path": "viva.checks.json:JsonPath",
        "type": "viva.checks.json:TypeIs",
        "json_schema": "viva.checks.json:JsonSchema",
        "tool_called": "viva.checks.tools:ToolCalled",
        "tool_calls_contain": "viva.checks.tools:ToolCallsContain",
        "tool_not_called": "viva.checks.tools:ToolNotCalled",
        "tool_sequence": "viva.checks.tools:ToolSequence",
        "path_contains": "viva.checks.node_path:PathContains",
        "tool_result": "viva.checks.tools:ToolResult",
        "file_exists": "viva.checks.files:FileExists",
        "file_contains": "viva.checks.files:FileContains",
        "snapshot": "viva.checks.snapshot:Snapshot",
        "max_latency": "viva.checks.limits:MaxLatency",
        "max_first_token": "viva.checks.limits:MaxFirstToken",
        "max_cost": "viva.checks.limits:MaxCost",
        "max_tokens": "viva.checks.limits:MaxTokens",
        "max_turns": "viva.checks.limits:MaxTurns",
        "golden": "viva.checks.golden:Golden",
        "safety": "viva.checks.safety:Safety",
        "script": "viva.checks.script:ScriptCheck",
        "judge": "viva.checks.judge:Judge",
        "rubric": "viva.checks.judge:Rubric",
        "all": "viva.checks.combine:All",
        "any": "viva.checks.combine:AnyOf",
        "not": "viva.checks.combine:Not",
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
        "agui": "viva.agents.agui:AguiConfig",
        "a2a": "viva.agents.a2a:A2aConfig",
        "gemini": "viva.agents.cli.gemini:GeminiConfig",
        "claude": "viva.agents.cli.claude:ClaudeConfig",
        "codex": "viva.agents.cli.codex:CodexConfig",
        "qwen": "viva.agents.cli.qwen:QwenConfig",
        "opencode": "viva.agents.cli.opencode:OpencodeConfig",
        "command": "viva.agents.cli.command:CommandConfig",
        "acp": "viva.agents.acp:AcpConfig",
        "langgraph": "viva.agents.frameworks.langgraph:LangGraphConfig",
        "langchain": "viva.agents.frameworks.langchain:LangChainConfig",
        "openai_agents": "viva.agents.frameworks.openai_agents:OpenAIAgentsConfig",
        "pydantic_ai": "viva.agents.frameworks.pydantic_ai:PydanticAIConfig",
        "adk": "viva.agents.frameworks.adk:AdkConfig",
        "strands": "viva.agents.frameworks.strands:StrandsConfig",
        "llama_index": "viva.agents.frameworks.llama_index:LlamaIndexConfig",
        "autogen": "viva.agents.frameworks.autogen:AutoGenConfig",
        "smolagents": "viva.agents.frameworks.smolagents:SmolagentsConfig",
        "crewai": "viva.agents.frameworks.crewai:CrewAIConfig",
    },
    "reporter": {
        ".jsonl": "viva.reporters.json:JsonlReport",
        ".json": "viva.reporters.json:JsonReport",
        ".xml": "viva.reporters.junit:JunitReport",
        ".html": "viva.reporters.html:HtmlReport",
        ".md": "viva.reporters.markdown:MarkdownReport",
    },
}

CLI_AGENTS = tuple(
    name for name, path in BUILT_IN["agent"].items() if path.startswith("viva.agents.cli.") and name != "command"
)
"""The coding CLIs that Viva knows."""
_EXTENSIONS = [extension.replace(".xml", ".xml (JUnit)") for extension in BUILT_IN["reporter"]]
REPORT_FORMATS = f"{', '.join(_EXTENSIONS[:-1])} or {_EXTENSIONS[-1]}"
"""The extensions of the built-in reports, as help texts name them."""
AGENT_KIND_BY_FIELD = {
    "prompt": "prompt",
    "url": "http",
    "replies": "scripted",
    "file": "scripted",
    "connector": "chat",
}
"""The kind of an agent without `type` and `use`, by the first of these fields that it has."""
AGENT_KIND_BY_TYPE = {
    "langgraph:Pregel": "langgraph",
    "langgraph:StateGraph": "langgraph",
    "langchain_core:Runnable": "langchain",
    "agents.agent:Agent": "openai_agents",
    "pydantic_ai:AbstractAgent": "pydantic_ai",
    "pydantic_ai:Agent": "pydantic_ai",
    "google.adk:BaseAgent": "adk",
    "google.adk:App": "adk",
    "google.adk:Runner": "adk",
    "google.adk:Workflow": "adk",
    "strands:Agent": "strands",
    "strands:MultiAgentBase": "strands",
    "llama_index:BaseWorkflowAgent": "llama_index",
    "llama_index:AgentWorkflow": "llama_index",
    "workflows:Workflow": "llama_index",
    "autogen_agentchat:BaseChatAgent": "autogen",
    "autogen_agentchat:BaseGroupChat": "autogen",
    "smolagents:MultiStepAgent": "smolagents",
    "crewai:Agent": "crewai",
    "crewai:Crew": "crewai",
    "crewai:Flow": "crewai",
}
"""The kind of an object of a framework, by the package and name of its class or of a base class. Also lists classes that the adapter refuses with advice."""
ALIASES: dict[ComponentKind, dict[str, str]] = {"check": {"agent": "judge"}, "agent": {}, "reporter": {}}
"""Other names of built-in components."""

_registered_components: dict[tuple[ComponentKind, str], type] = {}
_module_in_import: ContextVar[str | None] = ContextVar("in_import", default=None)
"""The module of the user that is being imported."""
_plugin_folders: list[str] = []
"""The config's folder, where modules of plugins are looked for first."""


def register(kind: ComponentKind, name: str) -> Callable[[C], C]:
    """A decorator for plugins: `@register("check", "polite")`. The name must be free.

    The kinds are `check` (the `type` of an assertion), `agent` (the `type` of an agent) and `reporter` (a file extension).
    """
    if kind not in BUILT_IN:
        near = find_similar_names(str(kind), BUILT_IN, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadInput.of(f"register: kind {kind!r} is not one of {', '.join(BUILT_IN)}{hint}")
    if not isinstance(name, str) or not name:
        raise BadInput.of(f"register: name {name!r} is not a text; write @register({kind!r}, 'name')")
    if kind == "reporter" and not name.startswith("."):
        raise BadInput.of(f"register: name {name!r} is not a file extension; write '.{name}'")
    if name in BUILT_IN[kind] or name in ALIASES[kind]:
        raise BadInput.of(f"register: name {name!r} is a built-in {kind}; choose another name")

    def decorate(component: C) -> C:
        if not isinstance(component, type):
            raise BadInput.of(
                f"register: {component!r} is not a class; write @register({kind!r}, {name!r}) above a class"
            )
        _registered_components[kind, name] = component
        return component

    return decorate


def list_components(kind: ComponentKind) -> list[str]:
    """All names of a kind, built-in ones first."""
    built_in = [*BUILT_IN[kind], *ALIASES[kind]]
    return [*built_in, *(name for k, name in _registered_components if k == kind and name not in built_in)]


def find_component(kind: ComponentKind, name: str) -> type[Any] | None:
    """The component of that name, or None. Raises BadInput for a `module:Name` that does not import."""
    if (component := _registered_components.get((kind, name))) is not None:
        return component
    path = BUILT_IN[kind].get(ALIASES[kind].get(name, name)) or (name if ":" in name else None)
    if path is None:
        return None
    component = _registered_components[kind, name] = _import_component(path)
    return component


def load_plugins(paths: Iterable[str], folder: str | Path | None) -> None:
    """Imports the plugins of the config and of installed packages, so that their decorators register components.

    Modules are looked for in `folder`, which is the config's, then among installed packages.
    """
    _plugin_folders[:] = [os.path.abspath(folder)] if folder is not None else []  # noqa: PTH100 -- as sys.path spells it
    _load_installed_plugins()
    for path in paths:
        _import_component(path)


@cache
def _load_installed_plugins() -> None:
    """Load the plugins of installed packages. Done once per process, because the search is slow."""
    if not _may_have_plugins():
        return
    from importlib.metadata import entry_points  # slow to import

    for entry in entry_points(group="viva"):
        try:
            entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may raise anything, also SystemExit: name the plugin
            raise BadInput.of(f"plugin {entry.name!r} ({entry.value}) does not import: {error!r}") from error


def _may_have_plugins() -> bool:
    """Does an installed package have an entry point of the group `viva`? Searching the files is ten times as fast as `entry_points`.

    Packages in an archive cannot be looked at: they may.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 -- paths cost more than the search
        except NotADirectoryError:
            return True
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:  # noqa: PTH118, PTH123 -- there may be hundreds
                        if b"[viva]" in file.read():
                            return True
                except OSError:
                    continue
    return False


def _import_component(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        with nullcontext() if module.startswith("viva.") else import_from_folders(tuple(_plugin_folders), module):
            target: Any = importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            target = getattr(target, part)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything, also SystemExit: name the plugin
        raise BadInput.of(f"{path!r} does not import: {format_error(error)}") from error
    return target


def find_script(reference: str, roots: Sequence[str]) -> tuple[ModuleType, Callable[..., Any] | None]:
    """The module of a reference `scripts:a.b-c` or `a.b:c` and, unless it names only a module, the function in it.

    It is looked for in the folders `roots`, in order, then among installed packages. ValueError says what is missing.
    """
    return _find_script(reference, tuple(dict.fromkeys(os.path.abspath(root) for root in roots)))  # noqa: PTH100 -- as sys.path spells it


@cache
def _find_script(reference: str, roots: tuple[str, ...]) -> tuple[ModuleType, Callable[..., Any] | None]:
    if reference.startswith("agents:"):
        raise ValueError(f"{reference!r} is an agent, but a script is needed: write scripts:module.function")
    name, colon, attribute = reference.removeprefix("scripts:").replace("-", "_").partition(":")
    if not all(part.isidentifier() for part in name.split(".")) or (colon and not attribute.isidentifier()):
        raise ValueError(f"{reference!r} does not name a script: write scripts:module.function or module:function")
    with import_from_folders(roots, name):
        module = _import_script(reference, name)
        if module is not None and not colon:
            return module, None
        if module is None and not colon and "." in name:
            name, _, attribute = name.rpartition(".")
            module = _import_script(reference, name)
    function = getattr(module, attribute, None)
    if module is not None and callable(function):
        return module, function
    if (file := getattr(module, "__file__", None)) is None:
        missing = f"{name.replace('.', '/')}.py" + (f" with a function {attribute}" if attribute else "")
        raise ValueError(f"{reference!r}: there is no {missing} in {', '.join(roots) or 'the installed packages'}")
    raise ValueError(f"{reference!r}: {file} has no function {attribute!r}{suggest_functions(module, attribute)}")


def suggest_functions(module: object, name: str) -> str:
    """Functions of a module that may be meant instead of a missing one, as the end of a sentence."""
    functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    if similar := find_similar_names(name, functions):
        return f"; did you mean {' or '.join(similar)}?"
    return f"; it has {', '.join(sorted(functions)[:5])}" if functions else ""


def _import_script(reference: str, name: str) -> ModuleType | None:
    top, _, rest = name.partition(".")
    if (program := find_running_program(top)) is not None:
        return None if rest else program  # a program has no modules in it
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a script may raise anything, also SystemExit: name the script
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            return None  # this module is missing, not one that it imports
        raise ValueError(f"{reference!r} does not import: {format_error(error)}") from error


def find_loaded_module(file: str) -> ModuleType | None:
    """The module that was loaded from a file, under any name, also as `__main__`; None if there is none."""
    name, target = os.path.basename(file), os.path.realpath(file)  # noqa: PTH119 -- as sys.modules spells it
    for module in tuple(sys.modules.values()):
        loaded: Any = getattr(module, "__dict__", {}).get("__file__")  # getattr would load a lazy module
        if isinstance(loaded, str) and loaded.endswith(name) and os.path.realpath(loaded) == target:
            return module
    return None


def is_module_name_taken(name: str) -> bool:
    """Is there a loaded, standard library or script module of that name?"""
    is_known = any(name in modules for modules in _modules_by_folder.values())
    return is_known or name in sys.modules or name in sys.stdlib_module_names


def find_module_in_import() -> str | None:
    """The name of the user's module that Viva is importing now, if this code runs during the import."""
    return _module_in_import.get()


@contextmanager
def mark_import(name: str) -> Generator[None]:
    """Inside the block, `find_module_in_import` returns this name."""
    token = _module_in_import.set(name)
    try:
        yield
    finally:
        _module_in_import.reset(token)


def find_running_program(name: str) -> ModuleType | None:
    """The running program (`__main__`) if a module of that name is its file: importing it again would run it twice."""
    program = sys.modules.get("__main__")
    if program is not None and getattr(program.__spec__, "name", None) == name:
        return program  # started by `python -m`
    file: str | None = getattr(program, "__file__", None)
    if program is None or file is None or Path(file).stem != name:
        return None
    spec = PathFinder.find_spec(name)
    is_same = spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)
    return program if is_same else None


_modules_by_folder: dict[str, dict[str, ModuleType]] = {}  # folder -> the modules imported from it, by name


@contextmanager
def import_from_folders(roots: tuple[str, ...], name: str) -> Generator[None]:
    """Imports inside find the modules of these folders first: two suites may each have a `helpers.py`.

    Meanwhile `sys.modules` has no module of another folder, and none from elsewhere that has the name of a module in these
    folders. Afterwards `sys.path` is as before. Of a name that two folders use, neither module stays in `sys.modules`: a
    later import then fails instead of finding the wrong one.
    """
    before = dict(sys.modules)
    for folder, modules in _modules_by_folder.items():
        for known, module in modules.items():
            if folder not in roots and sys.modules.get(known) is module:
                del sys.modules[known]
    for folder in reversed(roots):
        sys.modules.update(_modules_by_folder.get(folder, {}))
    top = name.partition(".")[0]
    if (
        top in sys.modules
        and _find_import_root(top) not in roots
        and PathFinder.find_spec(top, list(roots)) is not None
    ):
        for other in [other for other in sys.modules if other == top or other.startswith(f"{top}.")]:
            del sys.modules[other]
    sys.path[:0] = roots
    importlib.invalidate_caches()
    try:
        with mark_import(name):
            yield
    finally:
        for folder in roots:
            if folder in sys.path:  # the script may have removed it
                sys.path.remove(folder)
        for known, module in list(sys.modules.items()):
            if before.get(known) is not module and (root := _find_import_root(known)) in roots:
                _modules_by_folder.setdefault(root, {})[known] = module
        sys.modules.update(before)
        for known in {known for folder in roots for known in _modules_by_folder.get(folder, ())}:
            namesakes = [modules[known] for modules in _modules_by_folder.values() if known in modules]
            if len(namesakes) > 1 and any(sys.modules.get(known) is module for module in namesakes):
                del sys.modules[known]


def _find_import_root(name: str) -> str:
    """The folder from which a loaded module was imported by its name; empty if there is none."""
    members: dict[str, Any] = getattr(sys.modules[name], "__dict__", {})  # getattr would load a lazy module
    if (file := members.get("__file__")) is not None:
        path = Path(file).parent if Path(file).stem == "__init__" else Path(file)
    else:
        path = next(map(Path, members.get("__path__", ())), None)
    parents = path.parents if path is not None else ()
    depth = name.count(".")
    return str(parents[depth]) if depth < len(parents) else ""


def forget_modules(root: str) -> None:
    """Unload the modules of a folder, so that the next run in this process loads its files again."""
    spellings = (os.path.abspath(root) + os.sep, os.path.realpath(root) + os.sep)  # noqa: PTH100 -- as sys.path spells it

    def is_inside(path: Any) -> bool:
        return isinstance(path, str) and path.startswith(spellings)

    for folder in [folder for folder in _modules_by_folder if is_inside(folder + os.sep)]:
        del _modules_by_folder[folder]
    for modules in (sys.modules, *_modules_by_folder.values()):
        for name, module in tuple(modules.items()):
            if is_inside(getattr(module, "__dict__", {}).get("__file__")):
                del modules[name]
    sys.path[:] = [path for path in sys.path if not is_inside(path + os.sep)]
    _find_script.cache_clear()
    importlib.invalidate_caches()

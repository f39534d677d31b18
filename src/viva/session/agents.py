"""Finds agents by name: in `viva.toml`, by a reference such as `python:…` or `http://…`, or as Python objects.

What a kind of agent needs and how it is built is in its own file: see `agents.agent_config`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from viva import catalog
from viva.agents.agent_config import (
    AgentConfig,
    decode_entry,
    entry_schema,
    find_kind,
    find_reference_kind,
    list_nameable_kinds,
)
from viva.agents.frameworks.recognition import explain_no_agent, find_framework
from viva.agents.json_replies import JsonReplyAgent
from viva.agents.plugin_agent import PluginAgent, is_plugin_agent
from viva.agents.python import PythonAgent
from viva.config import Settings
from viva.errors import BadInput, Problem, Role, Undetermined, with_article
from viva.model.case import Feature
from viva.model.connector import Connector, find_connector, select_answer_settings
from viva.protocols import Agent, AgentSession, SessionContext
from viva.record.player import FILES_KEY
from viva.schemas.validation import SchemaViolation, find_schema_violations, find_violations
from viva.session.connectors import ConnectorLookup
from viva.session.source_files import digest_source_files
from viva.text import credentials

_BUILT_IN_HELPERS: dict[Role, str] = {
    "simulator": "simulator",
    "judge": "validator",
    "generator": "generator",
    "reporter": "reporter",
}
_AGENT_EXAMPLES = ", for example python:./agent.py:agent, http://localhost:8000/chat or gemini; `viva init` makes a project with a config"


WrapAgent = Callable[[Agent, str, Any], Agent]
"""Wraps an agent in a cassette, given its name and definition."""


class ConfiguredAgent(Struct, frozen=True, kw_only=True):
    """An agent with the common fields of its config entry."""

    name: str
    agent: Agent
    kind: str
    description: str = ""
    tools: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}
    parallel: int | None = None
    is_adaptive: bool = False
    """Is the number of parallel conversations adapted to the limits of its provider?"""
    needs_workspace: bool = False
    """Does the agent need a folder to work in, whatever the case says?"""
    auto_approves: bool | None = None
    """Does the agent run its tools without asking for approval? None for an agent that is not a process with tools."""
    follows_links: bool = True
    """Can the agent work with symbolic links in its workspace?"""
    agent_id: str | None = None
    model_class: str | None = None
    connector: Connector | None = None
    """How the model is reached, for an agent whose model Viva calls itself."""


class NoAgent:
    """Stands for the agent under test in a run that has none. Opening a session raises Undetermined."""

    provides: frozenset[Feature] = frozenset()

    def open(self, context: SessionContext) -> AbstractAsyncContextManager[AgentSession]:
        raise Undetermined("no agent is under test: pass one with -n, or call an agent by its name")


class AgentFactory:
    """Builds agents by name, reference or object. Each agent is built once, when it is first needed."""

    def __init__(
        self,
        settings: Settings,
        connector: str | None = None,
        wrap: WrapAgent | None = None,
        *,
        is_replaying: bool = False,
        functions: Mapping[str, Any] | None = None,
        agent_fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings
        self._agent_fields = agent_fields or {}
        """Fields that replace fields in the config entry of the agent under test."""
        self._functions = {} if functions is None else functions  # a conversation adds to its own
        """Functions and agent objects that Python code passes, by the text that stands for them in cases."""
        # A replay, and commands that only inspect a project, call nothing.
        self._connectors = ConnectorLookup(settings, needs_keys=not is_replaying and settings.unset_variables is None)
        self._connector = self._connectors.get_connector(connector, "-c") if connector else None
        self._wrap = wrap
        self._built: dict[str, ConfiguredAgent] = {}
        self._names_under_test: tuple[str, ...] = ()
        self.definitions: dict[str, Any] = {}
        """The definition of each agent built so far: its config entry, the texts of its files and digests of its code, without secrets."""

    def find_agents_under_test(
        self, agents: Sequence[Any], target: str | None, *, is_required: bool, folder: Path
    ) -> tuple[ConfiguredAgent, ...]:
        """The agents that `-n` names; without `-n`, the default agent. Raises BadInput if two of them have the same name."""
        configured = [
            self.find_agent_under_test(agent, target, is_required=is_required, folder=folder)
            for agent in agents or (None,)
        ]
        counts = Counter(agent.name for agent in configured)
        if doubled := [name for name, count in counts.items() if count > 1]:
            what = f"{', '.join(map(repr, doubled))}: two agents have this name"
            raise BadInput.of(f"-n {what}; each agent needs its own, in viva.toml or as {{'NAME': agent}} in Python")
        self._names_under_test = tuple(counts)
        return tuple(configured)

    def list_tested_prompts(self) -> list[str]:
        """The system prompts of the agents under test. Empty before these are found."""
        definitions = [self.definitions.get(name, {}) for name in self._names_under_test]
        return [prompt for definition in definitions for prompt in extract_prompts(definition)]

    def find_agent_under_test(
        self, agent: Any, target: str | None = None, *, is_required: bool = True, folder: Path | None = None
    ) -> ConfiguredAgent:
        """The agent of `-n`, else of `[defaults] agent`, else the `target` of the suite, else the only agent of the config.

        Files that `-n` names are relative to `folder`.
        """
        if agent is not None and not isinstance(agent, str):
            return self._configure_object(agent)
        if agent and agent not in self._settings.agents and find_reference_kind(agent) is not None:
            if credentials.MASK in agent:
                raise BadInput.of(f"-n {agent}: {credentials.MASK} stands for a secret; write the secret itself")
            return self._build_once(
                f"-n {agent}", lambda _: self._build_from_entry(agent, {"use": agent}, self._connector, folder)
            )
        name = agent or self._settings.defaults.agent or target
        if name is None:
            known = list(self._settings.agents)
            if len(known) != 1 and not is_required:
                return ConfiguredAgent(name="", agent=NoAgent(), kind="none")
            if len(known) != 1:
                raise BadInput.of(
                    "no agent given. Give -n NAME"
                    + (f"; {self._settings.file} has {', '.join(known)}" if known else _AGENT_EXAMPLES)
                )
            name = known[0]
        return self.find_agent(name, is_under_test=True)

    def _configure_object(self, value: Any, name: str | None = None) -> ConfiguredAgent:
        configured = _wrap_object(value, self._settings.provider_packages)
        name = name or configured.name
        definition = {"given": name} | self._digest_agent_code(configured.agent)
        return structs.replace(configured, name=name, agent=self._wrap_agent(configured.agent, name, definition))

    def find_helper(self, name: str, role: Role = "agent") -> ConfiguredAgent:
        """The agent that acts as a helper. The name of a connector or model means the built-in helper of that role with that model.

        A judge that is named by its model need not quote evidence, unlike `viva.validator`.
        """
        bare = name.removeprefix("agents:")
        is_agent = role == "agent" or bare in self._settings.agents or bare in self._functions
        fields = None if is_agent else self._connectors.build_agent_fields(bare)
        if fields is not None:
            entry = {"type": "prompt", "prompt": f"viva.{_BUILT_IN_HELPERS[role]}", "must_quote": False, **fields}
            return self._build_once(f"{bare} ({role})", lambda name: self._build_from_entry(name, entry, None))
        return self.find_agent(name)

    def find_agent(self, name: str, *, is_under_test: bool = False) -> ConfiguredAgent:
        """An agent by its name, with or without `agents:`, or by a reference."""
        if name.startswith("scripts:"):
            raise BadInput.of(f"{name!r} is a script, not an agent")
        name = name.removeprefix("agents:")
        if is_under_test and (self._connector is not None or self._agent_fields):
            self._built.pop(name, None)  # it may have been built as a helper, with its own connector and fields
            return self._build_once(name, lambda name: self._build_by_name(name, self._connector, self._agent_fields))
        return self._build_once(name, lambda name: self._build_by_name(name, None))

    def _build_once(self, name: str, build: Callable[[str], ConfiguredAgent]) -> ConfiguredAgent:
        if name not in self._built:
            self._built[name] = build(name)
        return self._built[name]

    def find_agent_problems(self, name: str) -> tuple[Problem, ...]:
        """The problems that prevent building the agent of that name."""
        try:
            self.find_agent(name)
        except BadInput as error:
            return error.problems
        return ()

    def find_connector_problems(self, name: str) -> tuple[Problem, ...]:
        """The problems that prevent using the connector or model of that name."""
        try:
            self._connectors.get_connector(name, "")
        except BadInput as error:
            return error.problems
        return ()

    def _wrap_agent(self, agent: Agent, name: str, definition: Any) -> Agent:
        self.definitions[name] = definition
        return agent if self._wrap is None else self._wrap(agent, name, definition)

    def _build_definition(self, entry: Mapping[str, Any], config: AgentConfig, agent: Agent) -> dict[str, Any]:
        """The definition of an agent: its entry, the texts of its files, its connector and digests of its code, without secrets."""
        definition = credentials.mask_config_table(entry)
        for field in config.file_fields:
            path = str(entry.get(field, ""))
            if path and not path.startswith("viva."):
                definition[f"{field} text"] = (self._settings.folder / path).read_text(encoding="utf-8-sig")
        name = str(entry.get("connector", ""))
        connectors = self._settings.connectors
        connector = getattr(agent, "connector", None) or connectors.get(name) or find_connector(name, connectors)
        if isinstance(connector, Connector):
            definition |= credentials.mask_config_table(select_answer_settings(connector)) | {
                "connector": connector.name
            }
        return definition | self._digest_agent_code(agent)

    def _digest_agent_code(self, agent: Agent) -> dict[str, Any]:
        files = digest_source_files(getattr(agent, "user_code", ()), self._settings.folder)
        return {FILES_KEY: files} if files else {}

    def is_passed_object(self, name: str) -> bool:
        """Does the name stand for a function or agent object that Python code passes?"""
        return name in self._functions

    def list_agent_names(self) -> list[str]:
        return list(self._settings.agents)

    def _build_by_name(
        self, name: str, connector: Connector | None, fields: Mapping[str, Any] | None = None
    ) -> ConfiguredAgent:
        if name in self._functions:
            return self._configure_object(self._functions[name], name)
        entry: Mapping[str, Any] | None = self._settings.agents.get(name)
        judge = self._settings.defaults.judge
        if entry is None and name == "viva.validator" and judge and judge in self._settings.agents:
            return self.find_agent(judge)
        entry = self._create_entry(name) if entry is None else entry
        return self._build_from_entry(name, replace_fields(entry, fields) if fields else entry, connector)

    def _create_entry(self, name: str) -> Mapping[str, Any]:
        """The config entry for an agent that the config does not contain. Raises BadInput for an unknown name."""
        if name == "viva.rules":
            return {"type": "rules"}
        if name.startswith("viva.") and name.removeprefix("viva.") in _BUILT_IN_HELPERS.values():
            return {"type": "prompt", "prompt": name}
        if find_reference_kind(name) is not None:
            return {"use": name}
        if name in catalog.list_components("agent") and getattr(find_kind(name), "is_nameable", False):
            return {"type": name}
        if (fields := self._connectors.build_agent_fields(name)) is not None:
            return {"type": "chat", **fields}
        raise self._settings.create_unknown_agent_error(name, list_nameable_kinds())

    def _build_from_entry(
        self, name: str, entry: Mapping[str, Any], connector: Connector | None, folder: Path | None = None
    ) -> ConfiguredAgent:
        self._settings.redactor.add_secrets(credentials.find_config_credentials(entry))
        name = credentials.mask_agent_reference(name)
        setup = ProjectAgentSetup(
            name, (folder or self._settings.folder).resolve(), self._settings, self._connectors, connector
        )
        kind, fields = self._resolve_kind(setup, entry)
        try:
            needs_check = "type" not in entry or kind not in catalog.BUILT_IN["agent"]
            config, agent = decode_entry(self._find_kind(setup, kind, fields if needs_check else None), fields)
            agent = config.build(setup) if agent is None else agent
        except (TypeError, ValueError) as error:
            raise setup.error(str(error)) from error
        definition = self._build_definition(entry, config, agent)
        if is_plugin_agent(agent):
            agent = PluginAgent(agent, self._settings.provider_packages)
        if config.uses_mcp_stub:
            from viva.agents.mcp_stub import StubbedAgent  # few agents need it

            agent = StubbedAgent(agent)
        return ConfiguredAgent(
            name=name,
            agent=self._wrap_agent(JsonReplyAgent(agent) if config.reply_format == "json" else agent, name, definition),
            kind=kind,
            description=config.description,
            tools=config.list_tools(),
            options=config.build_options(setup),
            agent_id=config.agent_id or None,
            model_class=config.model_class or None,
            parallel=config.parallel or config.default_parallel,
            is_adaptive=config.is_adaptive,
            needs_workspace=config.needs_workspace,
            auto_approves=getattr(agent, "auto_approves", None),
            follows_links=getattr(agent, "follows_links", True),
            connector=getattr(agent, "connector", None) if config.calls_model else None,
        )

    def _resolve_kind(self, setup: "ProjectAgentSetup", entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The kind of the agent, from `type`, `use` or a field that only one kind has, and its entry with the fields of the reference."""
        kind, use = entry.get("type"), entry.get("use")
        if use is not None:
            reference_kind, fields = find_reference_kind(use) or ("python", {})
            kind = kind or reference_kind
            entry = {**entry, **(fields if kind == reference_kind else {})}
        elif kind is None:
            kind = next((kind for field, kind in catalog.AGENT_KIND_BY_FIELD.items() if field in entry), None)
        if kind is None:
            raise setup.error("has neither `use` nor `type`")
        return str(kind), {**entry, "type": str(kind)}

    def _find_kind(self, setup: "ProjectAgentSetup", name: str, entry: Mapping[str, Any] | None) -> type[Any]:
        """The config class of an agent kind. Raises BadInput if there is none, or if the entry does not fit its schema.

        An entry that names a built-in kind was checked when the config was loaded.
        """
        kind = find_kind(name)
        if kind is None:
            known = ", ".join(catalog.list_components("agent"))
            message = f"unknown type of agent {name!r}; there are {known}"
            raise self._settings.problem(message, "agents", setup.name, "type")
        if entry is None:
            return kind
        if name not in catalog.BUILT_IN["agent"]:
            schema = entry_schema(kind)
            violations = find_schema_violations(schema, entry) if schema is not None else []
        else:
            violations = find_violations("config", {"agents": {setup.name: entry}})
            violations = [structs.replace(each, path=each.path[2:]) for each in violations]
        if violations:
            raise BadInput(*(setup.describe_violation(name, each) for each in violations))
        return kind


def extract_prompts(definition: Mapping[str, Any]) -> list[str]:
    """The system prompts in the definition of an agent."""
    texts = [definition.get(key) for key in ("system", "system_file text", "prompt text")]
    return [text for text in texts if isinstance(text, str) and text]


def replace_fields(entry: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of an agent with some fields replaced. A new `system` also removes `system_file`."""
    left_out = {"system_file"} if "system" in fields else set[str]()
    return {name: value for name, value in entry.items() if name not in left_out} | dict(fields)


class ProjectAgentSetup(Struct, frozen=True):
    """The AgentSetup of a project: gives settings, connectors and files to an agent that is built from its config entry."""

    name: str
    folder: Path
    settings: Settings
    connectors: ConnectorLookup
    connector: Connector | None = None

    @property
    def environ(self) -> Mapping[str, str]:
        return self.settings.environ

    @property
    def provider_packages(self) -> frozenset[str]:
        return self.settings.provider_packages

    @property
    def default_judge(self) -> str | None:
        return self.settings.defaults.judge

    def get_connector(self, name: str | None) -> Connector:
        return self.connectors.get_agent_connector(self.name, name)

    def expand(self, text: str, *field: str) -> str:
        return self.settings.expand_variables(text, "agents", self.name, *field)

    def add_secrets(self, values: Iterable[str]) -> None:
        self.settings.redactor.add_secrets(values)

    def path_of(self, path: str) -> str:
        return str(self.settings.folder / path)

    def read_text(self, path: str) -> str:
        try:
            return (self.settings.folder / path).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise self.error(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise self.error(f"{path} is not UTF-8") from error

    def read_documents(self, path: Path) -> list[Any]:
        from viva.formats.documents import open_documents

        problems: list[Problem] = []
        values = [document.value for document in open_documents(path, str(path)).read_valid(problems)]
        if problems:
            raise BadInput(*problems)
        return values

    def error(self, message: str, *field: str) -> BadInput:
        separator = "" if message.startswith(("is missing ", "has ")) else ":"
        return self._create_error(f"agent {self.name!r}{separator} {message}", *field)

    def describe_violation(self, kind: str, violation: SchemaViolation) -> Problem:
        path = [*map(str, violation.path), *([violation.unknown_key] if violation.unknown_key else [])]
        where = ".".join(path) + ": " if path and not violation.unknown_key else ""
        message = f"agent {self.name!r} ({kind}): {where}{violation.message}"
        return self._create_error(message, *path).problems[0]

    def _create_error(self, message: str, *field: str) -> BadInput:
        """An error with its place in the config; without a place if the agent is a reference such as `http://...`."""
        if self.name not in self.settings.agents:
            return BadInput.of(message)
        return self.settings.problem(message, "agents", self.name, *field)


def _wrap_object(value: Any, provider_packages: frozenset[str]) -> ConfiguredAgent:
    """The ConfiguredAgent for an object that Python code passes: an Agent, a framework's object, a function, or one with `reply`."""
    if hasattr(value, "open") and hasattr(value, "provides"):
        agent = PluginAgent(value, provider_packages) if is_plugin_agent(value) else value
        return ConfiguredAgent(name=type(value).__name__, agent=agent, kind="object")
    if (framework := find_framework(value)) is not None:
        name = str(getattr(value, "name", None) or type(value).__name__)
        agent = framework.wrap_object(value, provider_packages)
        return ConfiguredAgent(name=name, agent=agent, kind="python")
    if callable(value) or callable(getattr(value, "reply", None)):
        name = getattr(value, "__qualname__", type(value).__name__)
        agent = PythonAgent(value, provider_packages=provider_packages)
        return ConfiguredAgent(name=name, agent=agent, kind="python")
    raise BadInput.of(
        f"{with_article(type(value).__name__)} is not an agent: pass a name, a callable, an object with `reply`, or an Agent; "
        f"it is {explain_no_agent(value)}"
    )

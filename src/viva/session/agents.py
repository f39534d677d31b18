"""Agents by name: from `viva.toml`, from a reference such as `python:…` or `http://…`, or an object given by Python code."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, structs

from viva import catalog
from viva.agents.json_replies import JsonReplyAgent
from viva.agents.models import MODEL_KINDS, build_model_agent
from viva.agents.python import PythonAgent
from viva.agents.tools import Tool
from viva.config import Settings
from viva.errors import BadInput, Problem, Role, Undetermined
from viva.llm.target import find_url_problem
from viva.model.case import Feature
from viva.model.connector import Connector, answer_settings, find_connector
from viva.protocols import Agent, AgentSession, SessionContext
from viva.record.player import FILES_KEY
from viva.schemas.validation import find_violations
from viva.session import terminal_agents
from viva.session.connectors import ConnectorLookup
from viva.session.source_files import digest_files
from viva.text import credentials
from viva.text.duration import parse_duration
from viva.text.grammar import with_article
from viva.text.template import fill_variables, variables_in

_PROMPTS: dict[Role, str] = {
    "simulator": "simulator",
    "judge": "validator",
    "generator": "generator",
    "reporter": "reporter",
}
_TELLING = {"prompt": "prompt", "url": "http", "replies": "scripted", "file": "scripted", "connector": "chat"}
"""What kind an agent is that says neither `type` nor `use`, by a field that only that kind has."""
_HOW_TO_NAME_ONE = ", for example -n python:./agent.py:agent, -n http://localhost:8000/chat or -n gemini; `viva init` makes a project with a config"
REFERENCE_PREFIXES = ("python:", "http://", "https://", "scripted:", "acp:", "openwop:")


WrapAgent = Callable[[Agent, str, Any], Agent]
"""Puts something around an agent, given its name and what it is made of: a cassette."""


class ConfiguredAgent(Struct, kw_only=True):
    """An agent with what the config says of it."""

    name: str
    agent: Agent
    kind: str
    description: str = ""
    tools: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}
    parallel: int | None = None
    auto_approves: bool | None = None
    """Does it, being a command, run every tool without asking? None: it is no such."""
    follows_links: bool = True
    """Can it work with links in its workspace?"""
    agent_id: str | None = None
    model_class: str | None = None


class NoAgent:
    """Stands where no agent is under test."""

    provides: frozenset[Feature] = frozenset()

    def open(self, context: SessionContext) -> AbstractAsyncContextManager[AgentSession]:
        raise Undetermined("no agent is under test: give one with -n, or call an agent by its name")


class AgentFactory:
    """Builds each agent once, when it is first asked for."""

    def __init__(
        self,
        settings: Settings,
        connector: str | None = None,
        wrap: WrapAgent | None = None,
        *,
        is_replaying: bool = False,
    ) -> None:
        self._settings = settings
        # In a replay, or where one only looks at a project, nothing is called.
        self._connectors = ConnectorLookup(settings, needs_keys=not is_replaying and settings.unset_variables is None)
        self._connector = self._connectors.get_connector(connector, "-c") if connector else None
        self._wrap = wrap
        self._built: dict[str, ConfiguredAgent] = {}
        self.definitions: dict[str, Any] = {}
        """What each agent built so far is made of, texts of its files included; no secrets."""

    def find_agent_under_test(
        self, agent: Any, target: str | None = None, *, is_required: bool = True, folder: Path | None = None
    ) -> ConfiguredAgent:
        """`-n`, else `[defaults] agent`, else the suite's own target, else the only agent there is.

        `folder` is where files are looked for that `-n` itself names; those of the config stand beside it.
        """
        if agent is not None and not isinstance(agent, str):
            given = _given(agent, self._settings.provider_packages)
            given.agent = self._wrapped(given.agent, given.name, {"given": given.name} | self._code_of(given.agent))
            return given
        if agent and agent.startswith(REFERENCE_PREFIXES) and agent not in self._settings.agents:
            if credentials.MASK in agent:
                raise BadInput.of(f"-n {agent}: {credentials.MASK} stands for a secret; write the secret itself")
            return self._once(f"-n {agent}", lambda _: self._from(agent, {"use": agent}, self._connector, folder))
        name = agent or self._settings.defaults.agent or target
        if name is None:
            known = list(self._settings.agents)
            if len(known) != 1 and not is_required:
                return ConfiguredAgent(name="", agent=NoAgent(), kind="none")
            if len(known) != 1:
                raise BadInput.of(
                    "which agent? Give -n NAME"
                    + (f"; {self._settings.file} knows {', '.join(known)}" if known else _HOW_TO_NAME_ONE)
                )
            name = known[0]
        return self.find_agent(name, is_under_test=True)

    def find_helper(self, name: str, role: Role = "agent") -> ConfiguredAgent:
        """A helper's agent. The name of a connector or model stands for the built-in helper of that role, spoken to that way.

        Whoever names a model as judge has chosen it: its quotes are looked up, but none are demanded as of `viva.validator`.
        """
        bare = name.removeprefix("agents:")
        through = (
            None if role == "agent" or bare in self._settings.agents else self._connectors.build_agent_fields(bare)
        )
        if through is not None:
            prompt = {"type": "prompt", "prompt": f"viva.{_PROMPTS[role]}", "must_quote": False, **through}
            return self._once(f"{bare} ({role})", lambda name: self._from(name, prompt, None))
        return self.find_agent(name)

    def find_agent(self, name: str, *, is_under_test: bool = False) -> ConfiguredAgent:
        """An agent by its name, with or without `agents:`, or by a reference."""
        if name.startswith("scripts:"):
            raise BadInput.of(f"{name!r} is a script; an agent has to stand here")
        name = name.removeprefix("agents:")
        if is_under_test and self._connector is not None:
            self._built.pop(name, None)  # built before as somebody's helper, on its own connector
        return self._once(name, lambda name: self._build(name, self._connector if is_under_test else None))

    def _once(self, name: str, build: Callable[[str], ConfiguredAgent]) -> ConfiguredAgent:
        if name not in self._built:
            self._built[name] = build(name)
        return self._built[name]

    def find_agent_problems(self, name: str) -> tuple[Problem, ...]:
        """Why there can be no helper of that name; nothing, if there can."""
        try:
            self.find_agent(name)
        except BadInput as wrong:
            return wrong.problems
        return ()

    def find_connector_problems(self, name: str) -> tuple[Problem, ...]:
        """Why no model can be reached by this name; nothing, if one can."""
        try:
            self._connectors.get_connector(name, "")
        except BadInput as wrong:
            return wrong.problems
        return ()

    def _wrapped(self, agent: Agent, name: str, definition: Any) -> Agent:
        self.definitions[name] = definition
        return agent if self._wrap is None else self._wrap(agent, name, definition)

    def _definition(self, name: str, written: Mapping[str, Any], agent: Agent) -> dict[str, Any]:
        """What was written, with the texts of the files that it names, the model that it speaks to, and its code."""
        definition = credentials.mask_table(written)
        for key in ("system_file", "prompt", "file"):
            path = str(written.get(key, ""))
            if path and not path.startswith("viva."):
                definition[f"{key} text"] = self._text(name, path)
        wanted = str(written.get("connector", ""))
        connectors = self._settings.connectors
        connector = getattr(agent, "connector", None) or connectors.get(wanted) or find_connector(wanted, connectors)
        if isinstance(connector, Connector):
            definition |= credentials.mask_table(answer_settings(connector)) | {"connector": connector.name}
        return definition | self._code_of(agent)

    def _code_of(self, agent: Agent) -> dict[str, Any]:
        files = digest_files(_targets(agent), self._settings.folder)
        return {FILES_KEY: files} if files else {}

    def list_names(self) -> list[str]:
        return list(self._settings.agents)

    def _build(self, name: str, connector: Connector | None) -> ConfiguredAgent:
        written: Mapping[str, Any] | None = self._settings.agents.get(name)
        judge = self._settings.defaults.judge
        if written is None and name == "viva.validator" and judge and judge in self._settings.agents:
            return self.find_agent(judge)
        if written is None:
            if name == "viva.rules":
                written = {"type": "rules"}
            elif name.startswith("viva.") and name.removeprefix("viva.") in _PROMPTS.values():
                written = {"type": "prompt", "prompt": name}
            elif name.startswith(REFERENCE_PREFIXES):
                written = {"use": name}
            elif name in terminal_agents.CLI_NAMES:
                written = {"type": name}
            elif (through := self._connectors.build_agent_fields(name)) is not None:
                written = {"type": "chat", **through}
            else:
                raise self._settings.unknown_agent_error(name, terminal_agents.CLI_NAMES)
        return self._from(name, written, connector)

    def _from(
        self, name: str, written: Mapping[str, Any], connector: Connector | None, folder: Path | None = None
    ) -> ConfiguredAgent:
        self._settings.redactor.add_secrets(credentials.find_in_table(written))
        name = credentials.mask_reference(name)
        kind, fields = self._kind(name, written)
        options = dict(written.get("options", {}))
        if kind == "python" and "connector" in written:  # it speaks to a model by itself, and has to know through what
            options.setdefault("connector", connector.name if connector else written["connector"])
        agent = self._make(name, kind, fields, connector, (folder or self._settings.folder).resolve())
        definition = self._definition(name, written, agent)
        speaking = JsonReplyAgent(agent) if written.get("reply_format") == "json" else agent
        return ConfiguredAgent(
            name=name,
            agent=self._wrapped(speaking, name, definition),
            kind=kind,
            description=written.get("description", ""),
            tools=tuple(tool if isinstance(tool, str) else tool["name"] for tool in written.get("tools", ())),
            options=options,
            agent_id=written.get("agent_id"),
            model_class=written.get("model_class"),
            parallel=written.get(
                "parallel", terminal_agents.DEFAULT_PARALLEL if kind in terminal_agents.TERMINAL_KINDS else None
            ),
            auto_approves=getattr(agent, "is_unasked", None),
            follows_links=getattr(agent, "follows_links", True),
        )

    def _kind(self, name: str, written: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The agent's kind, by `type` or by what `use` refers to, and its other fields."""
        fields = {
            key: value
            for key, value in written.items()
            if key not in ("type", "description", "options", "parallel", "agent_id", "model_class", "reply_format")
        }
        use = fields.pop("use", None)
        kind = written.get("type")
        if use is not None:
            if use.startswith(("http://", "https://")):
                kind, fields["url"] = kind or "http", use
            elif use.startswith("acp:"):
                kind, fields["command"] = "acp", use.removeprefix("acp:")
            elif use.startswith("openwop:"):
                kind, fields["use"] = "openwop", use
            elif use.startswith("scripted:"):
                kind, fields["file"] = "scripted", use.removeprefix("scripted:")
            else:
                kind, fields["use"] = kind or "python", use.removeprefix("python:")
        elif kind is None:
            kind = next((kind for key, kind in _TELLING.items() if key in fields), None)
        if kind is None:
            raise self._settings.problem(f"agent {name!r} has neither `use` nor `type`", "agents", name)
        if "type" not in written:
            self._check_fields(name, {**written, "type": kind})
        return str(kind), fields

    def _check_fields(self, name: str, written: Mapping[str, Any]) -> None:
        """Now that its kind is known: has it fields that belong to another kind?"""
        for complaint in find_violations("config", {"agents": {name: written}}):
            place = (*map(str, complaint.path), *([complaint.unknown_key] if complaint.unknown_key else []))
            raise self._settings.problem(f"agent {name!r} ({written['type']}): {complaint.message}", *place)

    def _make(self, name: str, kind: str, fields: dict[str, Any], connector: Connector | None, folder: Path) -> Agent:
        from_files = {"python": self._python, "scripted": self._scripted}
        if kind in from_files:
            return from_files[kind](name, fields, folder)
        if kind in terminal_agents.TERMINAL_KINDS:
            return terminal_agents.build_terminal_agent(self._settings, name, kind, fields, folder)
        if kind == "openwop":
            from viva.session.remote import build_remote_agent

            return build_remote_agent(self._settings, name, fields)
        makers = {"http": self._http, "prompt": self._prompt}
        maker = self._model if kind in MODEL_KINDS else makers.get(kind)
        if maker is not None:
            return maker(name, fields, connector)
        found = catalog.find_component("agent", kind)
        if found is None:
            raise self._settings.problem(
                f"unknown type of agent {kind!r}; there are {', '.join(catalog.list_components('agent'))}",
                "agents",
                name,
                "type",
            )
        try:
            return found(**fields)
        except (TypeError, ValueError) as wrong:  # a plugin's own fields: the schema does not know them
            raise self._settings.problem(f"agent {name!r} ({kind}): {wrong}", "agents", name) from wrong

    def _python(self, name: str, fields: dict[str, Any], folder: Path) -> Agent:
        if "use" not in fields:
            raise self._settings.problem(f"agent {name!r} misses `use`", "agents", name)
        return PythonAgent.load(
            fields["use"],
            str(folder),
            takes_fixtures=fields.get("takes_fixtures", False),
            provider_packages=self._settings.provider_packages,
        )

    def _scripted(self, name: str, fields: dict[str, Any], folder: Path) -> Agent:
        from viva.agents.scripted import ScriptedAgent
        from viva.formats.documents import open_documents

        replies: list[Any] = list(fields.get("replies", ()))
        if "file" in fields:
            path = folder / fields["file"]
            if not path.is_file():
                raise self._settings.problem(f"agent {name!r}: there is no file {path}", "agents", name, "file")
            problems: list[Problem] = []
            replies += [document.value for document in open_documents(path, str(path)).read_valid(problems)]
            if problems:
                raise BadInput(*problems)
        try:
            return ScriptedAgent(tuple(replies), fields.get("repeat", False))
        except ValueError as wrong:
            raise self._settings.problem(f"agent {name!r}: {wrong}", "agents", name) from wrong

    def _http(self, name: str, fields: dict[str, Any], _connector: Connector | None) -> Agent:
        from viva.agents.http import HttpAgent

        if "url" not in fields:
            raise self._settings.problem(f"agent {name!r} misses `url`", "agents", name)
        headers = {
            k: self._settings.expand_variables(v, "agents", name, "headers")
            for k, v in fields.pop("headers", {}).items()
        }
        url = self._settings.expand_variables(str(fields.pop("url")), "agents", name, "url")
        if wrong := find_url_problem(fill_variables(url, dict.fromkeys(variables_in(url), "x"))):
            raise self._settings.problem(f"agent {name!r}: `url` {wrong}", "agents", name, "url")
        self._settings.redactor.add_secrets((*credentials.find_in_headers(headers), *credentials.find_in_text(url)))
        for theirs in ("tools", "connector"):  # what is behind the endpoint is its own affair
            fields.pop(theirs, None)
        try:
            if "timeout" in fields:
                fields["timeout_s"] = parse_duration(fields.pop("timeout"))
            return HttpAgent(url=url, headers=headers, **fields)
        except ValueError as wrong:
            raise self._settings.problem(f"agent {name!r}: {wrong}", "agents", name) from wrong

    def _model(self, name: str, fields: dict[str, Any], override: Connector | None) -> Agent:
        """A model with a system prompt and tools. Which API it speaks follows from the connector's provider."""
        connector = self._connector_for(name, fields, override)
        if "system_file" in fields:
            fields["system"] = self._text(name, fields.pop("system_file"))
        tools = tuple(self._tool(name, tool, Tool) for tool in fields.pop("tools", ()))
        return build_model_agent(connector, tools=tools, **fields)

    def _prompt(self, name: str, fields: dict[str, Any], override: Connector | None) -> Agent:
        """A prompt file with `{{variables}}`, or a built-in one, on a connector."""
        from viva.agents.prompt import PromptAgent, UnknownVariable, load_built_in_prompt

        if "prompt" not in fields:
            raise self._settings.problem(f"agent {name!r} misses `prompt`", "agents", name)
        prompt = str(fields.pop("prompt"))
        connector = self._connector_for(name, fields, override, self._settings.defaults.judge)
        fields.pop("tools", None)
        try:
            text, schema = (
                load_built_in_prompt(prompt) if prompt.startswith("viva.") else (self._text(name, prompt), None)
            )
            return PromptAgent(
                prompt=text,
                connector=connector,
                output=fields.pop("output", None) or schema,
                must_quote=fields.pop("must_quote", prompt == "viva.validator"),
                **fields,
            )
        except UnknownVariable as wrong:
            file = str(self._settings.folder / prompt)
            raise BadInput.of(f"{wrong.message} (agent {name!r})", file, wrong.line) from wrong
        except ValueError as wrong:
            raise self._settings.problem(f"agent {name!r}: {prompt}: {wrong}", "agents", name, "prompt") from wrong

    def _connector_for(
        self, name: str, fields: dict[str, Any], override: Connector | None, default: str | None = None
    ) -> Connector:
        """The agent's connector, with what the agent says otherwise."""
        wanted = fields.pop("connector", None) or default
        connector = override or self._connectors.get_for_agent(name, wanted)
        own = {key: fields.pop(key) for key in ("model", "temperature", "seed", "max_tokens") if key in fields}
        try:
            return structs.replace(connector, **own) if own else connector
        except ValueError as wrong:
            raise self._settings.problem(f"agent {name!r}: {wrong}", "agents", name, *own) from wrong

    def _tool(self, name: str, written: Any, tool: Any) -> Any:
        if isinstance(written, str):
            return tool(name=written)
        fields = dict(cast("Mapping[str, Any]", written))
        use = fields.pop("use", None)
        if use is not None:
            fields["run"] = PythonAgent.load(use.removeprefix("python:"), str(self._settings.folder)).target
        return tool(**fields)

    def _text(self, name: str, path: str) -> str:
        try:
            return (self._settings.folder / path).read_text(encoding="utf-8-sig")
        except OSError as wrong:
            raise self._settings.problem(f"agent {name!r}: {path}: {wrong.strerror}", "agents", name) from wrong
        except UnicodeDecodeError as wrong:
            raise self._settings.problem(f"agent {name!r}: {path} is not UTF-8", "agents", name) from wrong


def _targets(agent: Agent) -> list[Any]:
    """The Python code of the user's own that an agent is made of: itself, or the tools of a model."""
    if isinstance(agent, PythonAgent):
        return [agent.target]
    return [tool.run for tool in getattr(agent, "tools", ()) if isinstance(tool, Tool) and tool.run is not None]


def _given(value: Any, provider_packages: frozenset[str]) -> ConfiguredAgent:
    """An agent that Python code handed over."""
    if hasattr(value, "open") and hasattr(value, "provides"):
        return ConfiguredAgent(name=type(value).__name__, agent=value, kind="given")
    if callable(value) or callable(getattr(value, "reply", None)):
        name = getattr(value, "__qualname__", type(value).__name__)
        return ConfiguredAgent(
            name=name, agent=PythonAgent(value, name, provider_packages=provider_packages), kind="python"
        )
    raise BadInput.of(
        f"{with_article(type(value).__name__)} is no agent: give a name, a callable, an object with `reply`, or an Agent"
    )

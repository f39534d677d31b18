"""The agents and eval suites of a host, and what each tenant may see and use of them.

A request is carried out as a whole or refused. A key of `configurable` that neither the run nor the agent can take is an
error, since a caller would believe that it had an effect.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from viva.agents.agent_config import find_kind
from viva.checks.base_check import LocalCheck
from viva.checks.golden import ReturnSchema
from viva.concurrency.threads import run_in_thread
from viva.config import Settings
from viva.errors import BadInput
from viva.formats.documents import parse_json_document
from viva.formats.openwop.modes import EvalOptions
from viva.formats.openwop.packs import Pack, is_pack, open_pack, require_signature
from viva.formats.openwop.suite import EvalSuite, ManifestInfo, parse_suite
from viva.host.errors import ApiError, not_found, validation_error
from viva.host.events import to_plain_name
from viva.model.case import Assertion, Case, Suite
from viva.model.connector import Connector
from viva.model.turn import PASSED, Verdict
from viva.session.agents import AgentFactory, ConfiguredAgent
from viva.session.run_plan import LoadedInputs
from viva.state.trial_state import CheckContext
from viva.users.script import Script

DEFAULT_MODEL_CLASS = "general"
ANY_TOOL = "*"
RETURN_SCHEMA = "return_schema"
"""The type of the assertion on the return schema, which a pack adds to its suite."""
_KINDS_WITH_DECLARED_TOOLS = ("chat", "prompt")


class HostedAgent(Struct, frozen=True, kw_only=True):
    """An agent of the host. `name` is its name in the config; it may use only `tools`."""

    agent_id: str
    name: str
    persona: str
    description: str = ""
    model_class: str = DEFAULT_MODEL_CLASS
    tools: tuple[str, ...] = ()
    pack: str = "local.viva"
    pack_version: str = "0.0.0"
    manifest: ManifestInfo = ManifestInfo()
    instance: Any = None
    """The agent object, for an agent that is not in the config."""
    tenants: frozenset[str] | None = None
    """The tenants that may see and use the agent. None: all."""

    def to_json(self) -> dict[str, Any]:
        """The description for clients, without prompt, schemas and connector."""
        description = {
            "agentId": self.agent_id,
            "persona": self.persona,
            "label": self.persona,
            "modelClass": self.model_class,
            "packName": self.pack,
            "packVersion": self.pack_version,
            "toolAllowlist": list(self.tools),
            "hasHandoffSchemas": bool(self.manifest.task_schema or self.manifest.return_schema),
        }
        return {**description, "description": self.description} if self.description else description

    def is_tool_allowed(self, tool: str) -> bool:
        """May the agent use a tool? An entry `openwop:core.search` allows `core.search` too."""
        return any(name in (ANY_TOOL, tool) or name.endswith(f":{tool}") for name in self.tools)


class AgentRegistry:
    """The agents of a host by id."""

    def __init__(self, agents: Iterable[HostedAgent]) -> None:
        builtin_first = sorted(agents, key=lambda agent: (agent.instance is None, agent.agent_id))
        self._agents = {agent.agent_id: agent for agent in builtin_first}

    def get(self, agent_id: str) -> HostedAgent | None:
        return self._agents.get(agent_id)

    def find(self, agent_id: str, tenant: str) -> HostedAgent | None:
        """The agent with this id, if the tenant may use it; else None."""
        agent = self._agents.get(agent_id)
        return agent if agent is not None and (agent.tenants is None or tenant in agent.tenants) else None

    def describe_agent(self, agent_id: str, tenant: str) -> dict[str, Any]:
        agent = self.find(agent_id, tenant)
        if agent is None:
            raise not_found("agent")
        return agent.to_json()

    def describe_agents(self, tenant: str) -> dict[str, Any]:
        agents = [agent.to_json() for agent in self._agents.values() if self.find(agent.agent_id, tenant)]
        return {"agents": agents, "total": len(agents)}

    def __iter__(self) -> Iterator[HostedAgent]:
        return iter(self._agents.values())


def derive_agent_id(name: str) -> str:
    """Returns the id of an agent that has no `agent_id` in the config. `Support Bot` becomes `local.viva.support-bot`."""
    parts = [re.sub(r"[^a-z0-9_-]+", "-", part.lower()).strip("-_") for part in name.split(".")]
    named = [part if part[:1].isalpha() else f"a{part}" for part in parts if part]
    return ".".join(("local", "viva", *(named or ["agent"])))[:256]


def load_agents(settings: Settings, packs: Iterable[Pack]) -> list[HostedAgent]:
    """Loads the agents of the config. The manifest of a pack overrides the config of an agent with the same id."""
    packed = {agent.agent_id: (pack, at) for pack in packs for at, agent in enumerate(pack.manifest.agents)}
    audiences = find_tenants_of_agents(settings)
    agents: dict[str, HostedAgent] = {}
    for name, entry in settings.agents.items():
        agent_id = str(entry.get("agent_id") or derive_agent_id(name))
        if agent_id in agents:
            raise settings.problem(
                f"agents {agents[agent_id].name!r} and {name!r} have the same id {agent_id!r}; give one an `agent_id`",
                "agents",
                name,
            )
        agents[agent_id] = HostedAgent(
            agent_id=agent_id,
            name=name,
            persona=name,
            description=str(entry.get("description", "")),
            model_class=str(entry.get("model_class", DEFAULT_MODEL_CLASS)),
            tools=_list_tools(entry),
            tenants=audiences[name],
        )
        if agent_id in packed:
            agents[agent_id] = _apply_manifest(agents[agent_id], entry, *packed[agent_id])
    return [agent for agent in agents.values() if agent.tenants is None or agent.tenants]


def find_tenants_of_agents(settings: Settings) -> dict[str, frozenset[str] | None]:
    """Returns the tenants that may use each agent, by agent name. None means all. Raises BadInput for an unknown agent.

    Judges and simulators are helpers of the operator: a tenant can use them only if a list in the config names them.
    """
    openwop, defaults = settings.openwop, settings.defaults
    by_agent: dict[str, set[str]] = {name: set() for name in settings.agents}
    lists = [
        (("openwop", "tenants", name, "agents"), name, tenant.get("agents", ()))
        for name, tenant in openwop.tenants.items()
    ]
    for place, tenant, names in [*lists, (("openwop", "agents"), "", openwop.agents or ())]:
        for name in names:
            if name not in by_agent:
                raise settings.problem(f"there is no agent {name!r} in [agents]", *place)
            by_agent[name].add(tenant)
    named = (openwop.judge, openwop.safety_judge, defaults.judge, defaults.simulator, defaults.evaluator)
    helpers = {name.removeprefix("agents:") for name in named if name}
    for name, tenants in by_agent.items():
        if openwop.agents is None and not tenants and name not in helpers:
            tenants.add("")
    return {name: None if "" in tenants else frozenset(tenants) for name, tenants in by_agent.items()}


def _apply_manifest(agent: HostedAgent, entry: Mapping[str, Any], pack: Pack, at: int) -> HostedAgent:
    packed, manifest = pack.manifest.agents[at], pack.read_manifest_info(at)
    fields: Mapping[str, Any] = pack.document.value["agents"][at]
    return structs.replace(
        agent,
        persona=str(fields.get("persona", agent.persona)),
        description=str(fields.get("description", agent.description)),
        model_class=str(entry.get("model_class") or packed.model_class or DEFAULT_MODEL_CLASS),
        tools=agent.tools if manifest.allowed_tools is None else manifest.allowed_tools,
        pack=pack.manifest.name,
        pack_version=pack.manifest.version,
        manifest=manifest,
    )


def _list_tools(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the tools that a config entry declares. An agent of a kind that declares none may use any tool."""
    if "tools" in entry:
        return tuple(tool if isinstance(tool, str) else tool["name"] for tool in entry["tools"])
    kind = entry.get("type") or ("chat" if "connector" in entry and "use" not in entry else "")
    return () if kind in _KINDS_WITH_DECLARED_TOOLS else (ANY_TOOL,)


class AllowedToolsCheck(LocalCheck, frozen=True, kw_only=True):
    """Passes if the agent used only allowed tools. Failed tool calls are ignored."""

    agent: HostedAgent

    @property
    def label(self) -> str:
        return "only allowed tools"

    def check(self, context: CheckContext) -> Verdict:
        calls = [call.name for call in context.tool_calls if call.error is None]
        used = [name for name in calls if not self.agent.is_tool_allowed(name)]
        return Verdict("failed", f"used tools that are not allowed: {', '.join(used)}") if used else PASSED


def add_agent_checks(suite: Suite, agent: HostedAgent) -> Suite:
    """Adds the agent's allowed tools and return schema as gates to every task: a reply that violates them scores 0."""
    gates: list[Assertion] = []
    if ANY_TOOL not in agent.tools:
        gates.append(Assertion(AllowedToolsCheck(agent=agent), {"type": "tool_allowlist"}, weight=0.0, gate=True))
    if agent.manifest.return_schema is not None:
        schema = ReturnSchema(schema=agent.manifest.return_schema)
        gates.append(Assertion(schema, {"type": RETURN_SCHEMA}, weight=0.0, gate=True))
    if not gates:
        return suite

    def add_gates(assertions: tuple[Assertion, ...]) -> tuple[Assertion, ...]:
        """Adds the gates, except a return schema that is there already: the suite of a pack has one."""
        present = {assertion.definition.get("type") for assertion in assertions} & {RETURN_SCHEMA}
        return (*assertions, *(gate for gate in gates if gate.definition["type"] not in present))

    async def cases() -> AsyncIterator[Case]:
        async for case in suite.cases():
            messages = case.user.planned_messages
            gated = (structs.replace(message, assertions=add_gates(message.assertions)) for message in messages)
            yield structs.replace(case, user=Script(tuple(gated)))

    return structs.replace(suite, cases=cases)


EVAL_KEYS = ("evalModes", "baselineRunId", "allowAgentMismatch")
_FIELD_BY_KEY = {"model": "model", "temperature": "temperature", "maxTokens": "max_tokens"}
"""Which field of `[agents.NAME]` a key of `configurable` overrides for one run."""
PROMPTS_KEY, SYSTEM_PROMPT = "promptOverrides", "system"
AGENT_KEYS = (*_FIELD_BY_KEY, PROMPTS_KEY)


def reject_unknown_keys(configurable: Mapping[str, Any], known: Collection[str] = ()) -> None:
    for key in configurable:
        if key not in known:
            raise _configurable_error(key, "This run cannot take it")


def find_configured_agent(settings: Settings, agent: HostedAgent) -> ConfiguredAgent:
    try:
        return AgentFactory(settings).find_agent_under_test(agent.instance or agent.name)
    except BadInput:  # the problem may quote the config; its owner sees it with `viva agents`
        raise validation_error("This agent cannot be opened", "agentId") from None


def parse_agent_overrides(settings: Settings, agent: HostedAgent, configurable: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the agent's config entry that a request overrides. Raises an ApiError for a key that the agent cannot take."""
    overrides = {key: configurable[key] for key in AGENT_KEYS if key in configurable}
    if not overrides:
        return {}
    configured = find_configured_agent(settings, agent)
    fields = {_FIELD_BY_KEY[key]: value for key, value in overrides.items() if key != PROMPTS_KEY}
    for key in overrides:
        if configured.connector is None:
            raise _configurable_error(key, "Viva does not call the model of this agent, so it cannot change it")
    connector = configured.connector
    assert connector is not None
    _check_model_limits(connector, overrides)
    prompts: Mapping[str, str] = overrides.get(PROMPTS_KEY, {})
    has_system_prompt = SYSTEM_PROMPT in getattr(find_kind(configured.kind), "__struct_fields__", ())
    for name in prompts:
        if name != SYSTEM_PROMPT or not has_system_prompt:
            raise _configurable_error(f"{PROMPTS_KEY}.{name}", "This agent does not have this prompt")
    return {**fields, **({"system": prompts[SYSTEM_PROMPT]} if prompts else {})}


def _check_model_limits(connector: Connector, overrides: Mapping[str, Any]) -> None:
    """Raises an ApiError for a model that is not in `models` of the connector, or for more tokens than its `max_tokens`."""
    model = overrides.get("model", connector.model)
    if model != connector.model and not any(fnmatchcase(model, pattern) for pattern in connector.models):
        raise _configurable_error("model", "The connector of this agent does not offer that model")
    if connector.max_tokens is not None and overrides.get("maxTokens", 0) > connector.max_tokens:
        raise _configurable_error("maxTokens", f"The maximum of this agent is {connector.max_tokens}")


def _configurable_error(key: str, reason: str) -> ApiError:
    field = f"configurable.{to_plain_name(key)}"
    return validation_error(f"{field} is refused. {reason}", field)


class HostedSuite(Struct, frozen=True, kw_only=True):
    """A suite that the host serves. Clients name it by id and version, or by its path in the config or manifest (`ref`)."""

    path: Path
    ref: str
    tenant: str | None = None
    agent_id: str | None = None
    """For a suite of a pack: the agent that it belongs to."""
    trusted_keys: tuple[str, ...] = ()
    """One of these keys must have signed the pack. Without keys any pack is accepted."""

    def relative_path(self, folder: Path) -> str:
        """The path relative to the project folder, which may be elsewhere on other hosts."""
        return os.path.relpath(self.path, folder)

    def load(self) -> tuple[EvalSuite, ManifestInfo]:
        """Reads the suite from its file. Raises BadInput."""
        if self.agent_id is None:
            try:
                raw = self.path.read_bytes()
            except OSError as error:
                raise BadInput.of(f"cannot be read: {error.strerror}", str(self.path)) from error
            return parse_suite(parse_json_document(raw, str(self.path)))[0], ManifestInfo()
        pack = open_pack(self.path, str(self.path), self.trusted_keys)
        for at, agent in enumerate(pack.manifest.agents):
            if agent.agent_id == self.agent_id and agent.eval_suite_ref == self.ref:
                raw = pack.read(self.ref, ("agents", at, "evalSuiteRef"))
                suite = parse_suite(parse_json_document(raw, f"{self.path}/{self.ref}"))[0]
                return suite, pack.read_manifest_info(at)
        raise BadInput.of(f"no longer has the suite {self.ref}", str(self.path))


Stamp = tuple[Any, ...]
"""The state of a file or folder: another one if it has changed."""
PlanKey = tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[Stamp, Stamp]]
"""Suite path, agent id, prompts of the agent, modes, and the stamps of suite and config."""
MAX_CACHED_INPUTS = 32


def compute_stamp(path: Path) -> Stamp:
    """Returns the stamp of a file with its signature, or of a folder with all its files."""
    paths = [path, path.with_name(f"{path.name}.sig"), *(sorted(path.rglob("*")) if path.is_dir() else ())]
    states = [(place, place.stat()) for place in paths if place.exists()]
    return tuple((str(place), state.st_mtime_ns, state.st_size, state.st_ino) for place, state in states)


class LoadedInputsCache:
    """Loaded suites, shared by all runs with the same suite, agent and modes."""

    def __init__(self) -> None:
        self._loaded: dict[PlanKey, LoadedInputs] = {}

    def __len__(self) -> int:
        return len(self._loaded)

    def get(self, key: PlanKey) -> LoadedInputs | None:
        if (inputs := self._loaded.pop(key, None)) is not None:
            self._loaded[key] = inputs  # the last one used is the last one to go
        return inputs

    def add(self, key: PlanKey, inputs: LoadedInputs) -> None:
        self._loaded[key] = inputs
        while len(self._loaded) > MAX_CACHED_INPUTS:
            del self._loaded[next(iter(self._loaded))]


class SuiteRegistry:
    """The suites of a host. A suite whose file has changed is loaded again. Raises BadInput if a suite is invalid."""

    def __init__(self, suites: Iterable[HostedSuite]) -> None:
        self._loaded: dict[HostedSuite, tuple[Stamp, EvalSuite, ManifestInfo]] = {
            hosted: (compute_stamp(hosted.path), *hosted.load()) for hosted in suites
        }
        self._suites = [(hosted, f"{suite.suite_id}@{suite.version}") for hosted, (_, suite, _) in self._loaded.items()]
        self._loading = asyncio.Lock()

    async def find(self, ref: str, agent_id: str, tenant: str) -> tuple[HostedSuite, EvalSuite, ManifestInfo]:
        """Returns the suite with this ref. Unknown suites and those of other tenants raise the same ApiError."""
        for hosted, name in self._suites:
            if hosted.tenant not in (None, tenant):
                continue
            if ref == name or (ref == hosted.ref and hosted.agent_id in (None, agent_id)):
                return (hosted, *await self._load(hosted))
        raise _unknown_suite_error()

    async def _load(self, hosted: HostedSuite) -> tuple[EvalSuite, ManifestInfo]:
        async with self._loading:
            if not hosted.path.exists():
                raise _unknown_suite_error()
            stamp, suite, manifest = self._loaded[hosted]
            if compute_stamp(hosted.path) == stamp:
                return suite, manifest
            stamp = compute_stamp(hosted.path)
            try:
                suite, manifest = await run_in_thread(hosted.load)
            except BadInput:
                # The problem would quote the suite; its owner sees it with `viva check`.
                raise validation_error("The suite is no longer valid", "evalSuiteRef") from None
            self._loaded[hosted] = stamp, suite, manifest
            return suite, manifest

    def __bool__(self) -> bool:
        return bool(self._suites)


def _unknown_suite_error() -> ApiError:
    return validation_error("Unknown suite", "evalSuiteRef")


def load_hosted_suites(paths: Iterable[str], settings: Settings, tenant: str | None = None) -> list[HostedSuite]:
    """Loads suite files and packs. Raises BadInput for a file without the required signature."""
    suites: list[HostedSuite] = []
    openwop = settings.openwop
    options = EvalOptions(trusted_keys=openwop.trusted_keys, require_signature=openwop.require_signature)
    for ref in paths:
        path = settings.folder / ref
        if not path.exists():
            raise BadInput.of("suite or pack not found", str(path))
        if not is_pack(path):
            require_signature(path, str(path), options)
            suites.append(HostedSuite(path=path, ref=ref, tenant=tenant))
            continue
        pack = open_pack(path, str(path), openwop.trusted_keys)
        agents = [agent for agent in pack.manifest.agents if agent.eval_suite_ref is not None]
        if len(agents) > 1:  # a run loads its whole input and has one agent
            raise BadInput.of(f"has {len(agents)} suites; a host serves packs with one suite", str(path))
        suites += [
            HostedSuite(
                path=path,
                ref=str(agent.eval_suite_ref),
                tenant=tenant,
                agent_id=agent.agent_id,
                trusted_keys=openwop.trusted_keys,
            )
            for agent in agents
        ]
    return suites


def load_packs(paths: Iterable[str], settings: Settings) -> list[Pack]:
    folder, keys = settings.folder, settings.openwop.trusted_keys
    return [open_pack(folder / ref, ref, keys) for ref in paths if is_pack(folder / ref)]

"""The agents that a host has: those of viva.toml, each under the id that the protocol knows it by."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from viva.config import Settings
from viva.formats.openwop.packs import Pack
from viva.formats.openwop.suite import ManifestInfo
from viva.host.errors import not_found

DEFAULT_MODEL_CLASS = "general"
ANY_TOOL = "*"
_TELLS_ITS_TOOLS = ("chat", "prompt")


class HostedAgent(Struct, frozen=True, kw_only=True):
    """An agent as others see it. `name` is what the config calls it; `tools` is all that it may use."""

    agent_id: str
    name: str
    persona: str
    description: str = ""
    model_class: str = DEFAULT_MODEL_CLASS
    tools: tuple[str, ...] = ()
    pack: str = "local.viva"
    pack_version: str = "0.0.0"
    terms: ManifestInfo = ManifestInfo()
    instance: Any = None
    """The agent itself, where no config names it."""

    def to_json(self) -> dict[str, Any]:
        """The projection that everybody may see: no prompt, no schema, no connector."""
        shown: dict[str, Any] = {
            "agentId": self.agent_id,
            "persona": self.persona,
            "label": self.persona,
            "modelClass": self.model_class,
            "packName": self.pack,
            "packVersion": self.pack_version,
            "toolAllowlist": list(self.tools),
            "hasHandoffSchemas": bool(self.terms.task_schema or self.terms.return_schema),
        }
        return {**shown, "description": self.description} if self.description else shown

    def is_tool_allowed(self, tool: str) -> bool:
        """A tool goes by its bare name or with its scope: `openwop:core.search` is `core.search`."""
        return any(each in (ANY_TOOL, tool) or each.endswith(f":{tool}") for each in self.tools)


class AgentRegistry:
    """All of them, by id."""

    def __init__(self, agents: Iterable[HostedAgent]) -> None:
        ours_first = sorted(agents, key=lambda agent: (agent.instance is None, agent.agent_id))
        self._agents = {agent.agent_id: agent for agent in ours_first}

    def get(self, agent_id: str) -> HostedAgent | None:
        return self._agents.get(agent_id)

    def describe_agent(self, agent_id: str) -> dict[str, Any]:
        agent = self.get(agent_id)
        if agent is None:
            raise not_found("agent")
        return agent.to_json()

    def describe_agents(self) -> dict[str, Any]:
        return {"agents": [agent.to_json() for agent in self._agents.values()], "total": len(self._agents)}

    def __iter__(self) -> Iterator[HostedAgent]:
        return iter(self._agents.values())


def derive_agent_id(name: str) -> str:
    """An id for an agent whose config gives none: `Support Bot` is `local.viva.support-bot`."""
    parts = [re.sub(r"[^a-z0-9_-]+", "-", part.lower()).strip("-_") for part in name.split(".")]
    named = [part if part[:1].isalpha() else f"a{part}" for part in parts if part]
    return ".".join(("local", "viva", *(named or ["agent"])))[:256]


def load_agents(settings: Settings, packs: Iterable[Pack]) -> list[HostedAgent]:
    """The agents of the config; what a pack says of one by its id stands over what we make up."""
    packed = {agent.agent_id: (pack, at) for pack in packs for at, agent in enumerate(pack.manifest.agents)}
    found: dict[str, HostedAgent] = {}
    for name, written in settings.agents.items():
        agent_id = str(written.get("agent_id") or derive_agent_id(name))
        if agent_id in found:
            raise settings.problem(
                f"agents {found[agent_id].name!r} and {name!r} both go by {agent_id!r}; give one another `agent_id`",
                "agents",
                name,
            )
        found[agent_id] = HostedAgent(
            agent_id=agent_id,
            name=name,
            persona=name,
            description=str(written.get("description", "")),
            model_class=str(written.get("model_class", DEFAULT_MODEL_CLASS)),
            tools=_tools(written),
        )
        if agent_id in packed:
            found[agent_id] = _as_packed(found[agent_id], written, *packed[agent_id])
    return list(found.values())


def _as_packed(agent: HostedAgent, written: Mapping[str, Any], pack: Pack, at: int) -> HostedAgent:
    manifest, terms = pack.manifest.agents[at], pack.read_manifest_info(at)
    shown: Mapping[str, Any] = pack.document.value["agents"][at]
    return structs.replace(
        agent,
        persona=str(shown.get("persona", agent.persona)),
        description=str(shown.get("description", agent.description)),
        model_class=str(written.get("model_class") or manifest.model_class or DEFAULT_MODEL_CLASS),
        tools=agent.tools if terms.allowed_tools is None else terms.allowed_tools,
        pack=pack.manifest.name,
        pack_version=pack.manifest.version,
        terms=terms,
    )


def _tools(written: Mapping[str, Any]) -> tuple[str, ...]:
    """What the config lists; an agent that brings its tools itself may use what it has."""
    if "tools" in written:
        return tuple(tool if isinstance(tool, str) else tool["name"] for tool in written["tools"])
    kind = written.get("type") or ("chat" if "connector" in written and "use" not in written else "")
    return () if kind in _TELLS_ITS_TOOLS else (ANY_TOOL,)

"""What a kind of agent says about itself: its fields, its JSON Schema, how it is built, and what `viva agents` shows of it.

A kind is one class in one file, named in `catalog`. It is either a subclass of `AgentConfig`, whose fields are what users
write in `[agents.NAME]` and whose `build` makes the agent, or an agent itself: a struct whose fields are what users write.

An agent may have more than `provides` and `open`: `inspect(workspaces)` returns its AgentStatus for `viva agents`,
`user_code` lists the Python objects whose source files belong to it, `auto_approves` and `follows_links` describe CLIs.
"""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol
from urllib.parse import urlsplit

from msgspec import UNSET, Meta, Struct, UnsetType

from viva import catalog
from viva.errors import BadInput
from viva.model import codec
from viva.model.case import ModelClass
from viva.model.connector import Connector
from viva.protocols import Agent
from viva.schemas.struct_schema import Schema, build_struct_schema
from viva.text.credentials import mask_url_credentials

_CONNECT_S = 3.0

Duration = Annotated[
    str | float,
    Meta(extra_json_schema={"$comment": "a duration such as 30s, 2m30s or 500ms; a bare number is seconds"}),
]
StringMap = Annotated[Mapping[str, str], Meta(extra_json_schema={"additionalProperties": {"type": "string"}})]
NonEmpty = Annotated[str, Meta(min_length=1)]


class AgentStatus(Struct, frozen=True):
    """What `viva agents` shows of an agent. `missing` is why it cannot be used."""

    executable: str | None = None
    version: str | None = None
    missing: str | None = None


class AgentSetup(Protocol):
    """What a project gives to an agent that is built from its config entry."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> Path:
        """The folder in which Viva looks for files that a reference or command names."""
        ...

    @property
    def environ(self) -> Mapping[str, str]: ...

    @property
    def provider_packages(self) -> frozenset[str]:
        """Python packages whose errors come from a model provider."""
        ...

    @property
    def connector(self) -> Connector | None:
        """The connector that `-c` names. It replaces the agent's own."""
        ...

    def get_connector(self, name: str | None) -> Connector:
        """The connector of that name; without a name the only one of the project. BadInput if there is none."""
        ...

    @property
    def default_judge(self) -> str | None: ...

    def expand(self, text: str, *field: str) -> str:
        """Replaces `$NAME` by the environment's value, which is a secret from then on."""
        ...

    def add_secrets(self, values: Iterable[str]) -> None: ...

    def path_of(self, path: str) -> str:
        """The path of a file beside the config."""
        ...

    def read_text(self, path: str) -> str:
        """A text file beside the config."""
        ...

    def read_documents(self, path: Path) -> list[Any]:
        """The documents of a JSON, JSONL or YAML file."""
        ...

    def error(self, message: str, *field: str) -> BadInput:
        """A problem of this entry, with file and line."""
        ...


class AgentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of every `[agents.NAME]`. A field that is not given is UNSET."""

    type: str = ""
    """The kind of agent. It follows from `use` or from a field that only one kind has."""
    description: str = ""
    """For people and for generators of cases."""
    options: Mapping[str, Any] = {}
    """Options of every call; a case's own win by key."""
    parallel: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    """Maximum number of conversations in parallel."""
    agent_id: Annotated[str, Meta(min_length=3, max_length=256)] | UnsetType = UNSET
    """Its OpenWOP agent id."""
    model_class: ModelClass | UnsetType = UNSET
    """Its OpenWOP model class."""
    reply_format: Literal["text", "json"] = "text"
    """`json`: a JSON object in the agent's text, such as {"content": …, "awaiting_input": true}, is its reply."""

    default_parallel: ClassVar[int | None] = None
    is_adaptive: ClassVar[bool] = False
    """Does Viva adapt the number of parallel conversations to the provider's limits? Not for agents that run on this machine."""
    is_nameable: ClassVar[bool] = False
    """Can `-n` name this kind without a config entry?"""
    needs_workspace: ClassVar[bool] = False
    """Does it always work in a folder?"""
    calls_model: ClassVar[bool] = False
    """Does Viva call its model, through a connector of the config?"""
    file_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that name a text file whose content is part of the agent."""

    @property
    def uses_mcp_stub(self) -> bool:
        """Does this agent get the canned tools of a case from an MCP server? Kinds that support this have a field `mcp_stub`."""
        return bool(getattr(self, "mcp_stub", False))

    @classmethod
    def parse_reference(cls, reference: str) -> dict[str, Any] | None:
        """The fields that a reference such as `python:./agent.py:agent` stands for. It starts with the kind's name and a colon.

        A kind that has references also has a field `use`, for the reference itself. None for other kinds.
        """
        return None

    def build(self, setup: AgentSetup) -> Agent:
        """The agent. ValueError or BadInput says what is wrong with the entry."""
        raise NotImplementedError

    def build_options(self, setup: AgentSetup) -> dict[str, Any]:
        return dict(self.options)

    def list_tools(self) -> tuple[str, ...]:
        return ()

    def pick_set_fields(self, *names: str) -> dict[str, Any]:
        """The values of those fields that the entry has."""
        return {name: value for name in names if (value := getattr(self, name)) is not UNSET}


class ToolConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool of an agent."""

    name: str
    """The tool's name."""
    description: str = ""
    """What it does."""
    parameters: Mapping[str, Any] | UnsetType = UNSET
    """A JSON Schema."""
    use: str | UnsetType = UNSET
    """python:pkg.module:function that does it."""


class ConnectedConfig(AgentConfig, frozen=True, kw_only=True):
    """The fields of agents that may name their connector and their tools."""

    connector: str | UnsetType = UNSET
    """Which connector it uses, or a well-known model such as gpt-4o."""
    tools: tuple[str | ToolConfig, ...] = ()
    """Its tools: names, or for chat agents {name, description, parameters, use}."""

    def list_tools(self) -> tuple[str, ...]:
        return tuple(tool if isinstance(tool, str) else tool.name for tool in self.tools)


def find_kind(name: str) -> type[Any] | None:
    """The class behind a kind of agent: one of the catalog, or `module:Class`."""
    return catalog.find_component("agent", name)


def find_reference_kind(reference: str) -> tuple[str, dict[str, Any]] | None:
    """The kind that a reference such as `python:./agent.py:agent` names, with its fields; None if it names none."""
    scheme, _, rest = reference.partition(":")
    name = "http" if rest.startswith("//") and scheme == "https" else scheme
    if not rest or name not in catalog.list_components("agent"):
        return None
    kind: Any = find_kind(name)
    fields = kind.parse_reference(reference) if _is_config(kind) else None
    return None if fields is None else (name, fields)


def list_nameable_kinds() -> list[str]:
    """Kinds that `-n` can name without a config entry."""
    return [name for name in catalog.list_components("agent") if getattr(find_kind(name), "is_nameable", False)]


def entry_schema(kind: type[Any]) -> Schema | None:
    """The JSON Schema of an entry `[agents.NAME]` of this kind; None if the kind is not a struct."""
    if not issubclass(kind, Struct):
        return None
    own = build_struct_schema(kind)
    if _is_config(kind):
        return own
    properties = {**build_struct_schema(AgentConfig)["properties"], **own["properties"]}
    return {**own, "properties": properties}


def decode_entry(kind: type[Any], entry: Mapping[str, Any]) -> tuple[AgentConfig, Agent | None]:
    """The config of an entry and, if the kind is an agent itself, that agent. ValueError says what is wrong."""
    if _is_config(kind):
        return codec.convert(entry, kind), None
    common = {key: value for key, value in entry.items() if key in AgentConfig.__struct_fields__}
    names: tuple[str, ...] = getattr(kind, "__struct_fields__", ())
    own = {key: value for key, value in entry.items() if key in names or key not in common}
    agent: Any = codec.convert(own, kind) if issubclass(kind, Struct) else kind(**own)
    return codec.convert(common, AgentConfig), agent


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, AgentConfig)


def agents_schema(names: Iterable[str]) -> Schema:
    """The schema of `[agents.NAME]` for these kinds: which fields are known follows from `type`."""
    groups: dict[str, tuple[list[str], Schema]] = {}
    for name in names:
        if (kind := find_kind(name)) is not None and (schema := entry_schema(kind)) is not None:
            groups.setdefault(codec.compact_json(schema), ([], schema))[0].append(name)
    branches = [(_require_type(kinds), schema) for kinds, schema in groups.values()]
    inferable = [schema for kinds, schema in groups.values() if any(map(_is_inferable, kinds))]
    branches.append(({"not": {"required": ["type"]}}, _merge_kinds(inferable)))
    properties = {"type": build_struct_schema(AgentConfig)["properties"]["type"]}
    conditions = [{"if": condition, "then": schema} for condition, schema in branches]
    return {"type": "object", "properties": properties, "allOf": conditions, "$comment": "agent"}


def _is_inferable(name: str) -> bool:
    """Can an entry of this kind leave out `type`?"""
    kind = find_kind(name)
    parents = kind.__mro__[: kind.__mro__.index(AgentConfig)] if _is_config(kind) and kind is not None else ()
    has_reference = any("parse_reference" in vars(parent) for parent in parents)
    return has_reference or name in catalog.AGENT_KIND_BY_FIELD.values()


def _merge_kinds(schemas: Iterable[Schema]) -> Schema:
    """The schema of an entry without `type`: any field of any kind. The agent is checked again once its kind is known."""
    properties: dict[str, Schema] = {}
    for schema in schemas:
        for name, value in schema["properties"].items():
            known = properties.setdefault(name, value)
            if {**known, "description": ""} != {**value, "description": ""}:
                properties[name] = {"description": known["description"]}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _require_type(kinds: list[str]) -> Schema:
    value = {"const": kinds[0]} if len(kinds) == 1 else {"enum": kinds}
    return {"properties": {"type": value}, "required": ["type"]}


async def inspect_url(url: str) -> AgentStatus:
    """Whether a server listens at the address of an agent."""
    if not url:
        return AgentStatus()
    if "$" in url:
        return AgentStatus(missing=f"{mask_url_credentials(url)} has a variable that is not set")
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except TimeoutError:
        return AgentStatus(missing=f"{parts.hostname}:{port} does not answer")
    except OSError as error:
        return AgentStatus(missing=f"{parts.hostname}:{port}: {error.strerror or error}")
    writer.close()
    return AgentStatus()

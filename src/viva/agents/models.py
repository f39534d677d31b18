"""A bare model as an agent. The provider of its connector decides which API it speaks."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import UNSET, Meta, UnsetType, structs

from viva.agents.agent_config import AgentSetup, ConnectedConfig, ToolConfig
from viva.agents.python import import_target
from viva.agents.tools import Tool
from viva.errors import BadInput, Unreachable
from viva.model.connector import Connector, find_connector
from viva.protocols import Agent

if TYPE_CHECKING:
    from viva.agents.model_session import ModelAgent

_CLASSES = {
    "openai": "viva.agents.chat:ChatAgent",
    "openai responses": "viva.agents.responses:ResponsesAgent",
    "anthropic": "viva.agents.anthropic:AnthropicAgent",
    "gemini": "viva.agents.gemini_api:GeminiAgent",
}


class CompletionConfig(ConnectedConfig, frozen=True, kw_only=True):
    """The fields of agents whose model Viva calls itself."""

    calls_model: ClassVar[bool] = True
    is_adaptive: ClassVar[bool] = True

    model: str | UnsetType = UNSET
    """Another model than the connector's."""
    temperature: float | UnsetType = UNSET
    """The temperature of the model."""
    seed: int | UnsetType = UNSET
    """The seed of the model, where its provider takes one."""
    max_tokens: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    """Maximum number of tokens of one answer."""
    output: Mapping[str, Any] | UnsetType = UNSET
    """The JSON Schema of its answers."""

    def get_connector(self, setup: AgentSetup, default: str | None = None) -> Connector:
        """The agent's connector, with the agent's own model settings."""
        name = default if self.connector is UNSET else self.connector
        connector = setup.connector or setup.get_connector(name)
        changes = self.pick_set_fields("model", "temperature", "seed", "max_tokens")
        try:
            return structs.replace(connector, **changes) if changes else connector
        except ValueError as error:
            raise setup.error(str(error), *changes) from error


class ModelConfig(CompletionConfig, frozen=True, kw_only=True):
    """A model with a system prompt and tools."""

    file_fields = ("system_file",)

    system: str = ""
    """The system prompt."""
    system_file: str | UnsetType = UNSET
    """A file with the system prompt."""
    max_tool_rounds: Annotated[int, Meta(ge=1)] = 10
    """Maximum number of rounds of tool calls in one turn."""
    stream: bool = False
    """Ask for the reply as a stream."""
    body: Mapping[str, Any] = {}
    """More fields of the request."""

    def build(self, setup: AgentSetup) -> Agent:
        return build_model_agent(
            self.get_connector(setup),
            self.system if self.system_file is UNSET else setup.read_text(self.system_file),
            self.output or None,
            tools=tuple(_build_tool(tool, setup) for tool in self.tools),
            max_tool_rounds=self.max_tool_rounds,
            stream=self.stream,
            body=self.body,
        )


def _build_tool(tool: str | ToolConfig, setup: AgentSetup) -> Tool:
    if isinstance(tool, str):
        return Tool(tool)
    run = None if tool.use is UNSET else import_target(tool.use.removeprefix("python:"), str(setup.folder))
    built = Tool(tool.name, tool.description, run=run)
    return built if tool.parameters is UNSET else structs.replace(built, parameters=tool.parameters)


def build_model_agent(
    connector: Connector, system: str = "", output: Mapping[str, Any] | None = None, **fields: Any
) -> "ModelAgent":
    """The agent that calls the model of a connector. `output` is the JSON Schema of its answers."""
    return find_agent_class(connector)(connector=connector, system=system, output=output, **fields)


def find_agent_class(connector: Connector) -> "type[ModelAgent]":
    """The class of agents that speak the API of a connector's provider."""
    key = f"{connector.provider} {connector.api}".strip()
    if key not in _CLASSES:
        raise BadInput.of(f"connector {connector.name!r}: unknown provider {key!r}")
    module, _, name = _CLASSES[key].partition(":")
    return getattr(import_module(module), name)


def choose_connector(options: Mapping[str, Any], default: Connector, connectors: Mapping[str, Connector]) -> Connector:
    """The connector that `options` of a case name, else the agent's own; with the model that they name."""
    name, model = options.get("connector"), options.get("model")
    if name is None or name == default.name:
        connector = default
    else:
        connector = connectors.get(name) or find_connector(str(name), connectors)
    if connector is None:
        raise Unreachable(
            f"there is no connector {name!r}; known: {', '.join(connectors) or 'none'}", deterministic=True
        )
    if isinstance(model, str) and model != connector.model:
        return structs.replace(connector, model=model)
    return connector

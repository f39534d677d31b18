"""A bare model as an agent: the right one for its connector's provider, with or without a fixed shape of its answers."""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from viva import catalog
from viva.errors import BadInput, Unreachable
from viva.model.connector import Connector, find_connector
from viva.protocols import Agent

_PROVIDERS = {"openai": "chat", "anthropic": "anthropic", "gemini": "gemini_api"}
MODEL_KINDS = frozenset(_PROVIDERS.values())


def build_model_agent(
    connector: Connector, system: str = "", output: Mapping[str, Any] | None = None, **more: Any
) -> Agent:
    """`output` is a JSON Schema that every answer has to fit."""
    return find_model_class(connector)(connector=connector, system=system, output=output, **more)


def find_model_class(connector: Connector) -> Any:
    """The class of agents that speak the API of a connector's provider."""
    found = catalog.find_component("agent", _PROVIDERS.get(connector.provider, ""))
    if found is None:
        raise BadInput.of(f"connector {connector.name!r}: unknown provider {connector.provider!r}")
    return found


def choose_connector(options: Mapping[str, Any], default: Connector, connectors: Mapping[str, Connector]) -> Connector:
    """A case may ask for another connector than the agent's own, as `options.connector`, or for another model."""
    wanted, model = options.get("connector"), options.get("model")
    if wanted is None or wanted == default.name:
        connector = default
    else:
        connector = connectors.get(wanted) or find_connector(str(wanted), connectors)
    if connector is None:
        raise Unreachable(f"there is no connector {wanted!r}; known: {', '.join(connectors) or 'none'}")
    if isinstance(model, str) and model != connector.model:
        return structs.replace(connector, model=model)
    return connector

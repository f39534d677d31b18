"""A bare model as an agent: the right one for its connector's provider, with or without a fixed shape of its answers."""

from collections.abc import Mapping
from typing import Any

from viva import catalog
from viva.errors import BadInput
from viva.model.connector import Connector
from viva.protocols import Agent

_PROVIDERS = {"openai": "chat", "anthropic": "anthropic", "gemini": "gemini_api"}


def model_agent(connector: Connector, system: str = "", output: Mapping[str, Any] | None = None, **more: Any) -> Agent:
    """`output` is a JSON Schema that every answer has to fit."""
    found = catalog.find("agent", _PROVIDERS.get(connector.provider, ""))
    if found is None:
        raise BadInput.saying(f"connector {connector.name!r}: unknown provider {connector.provider!r}")
    return found(connector=connector, system=system, output=output, **more)

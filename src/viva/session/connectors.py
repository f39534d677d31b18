"""Finds connectors by their name in `viva.toml`, or by the name of a model that they reach."""

from viva.config import Settings
from viva.errors import BadInput
from viva.model.connector import Connector, find_connector, find_provider_of_model


class ConnectorLookup:
    """Finds connectors. With `needs_keys`, a well-known model whose key is not set raises BadInput."""

    def __init__(self, settings: Settings, *, needs_keys: bool) -> None:
        self._settings = settings
        self._needs_keys = needs_keys

    def find_connector(self, name: str) -> Connector | None:
        """The connector of that name, or the connector that reaches the model of that name; None if there is none. Raises BadInput if its key is missing."""
        if name in self._settings.connectors:
            return self._settings.connectors[name]
        connector = find_connector(name, self._settings.connectors)
        if connector is not None and self._needs_keys and connector.lacks_key and find_provider_of_model(name):
            message = f"model {name!r} needs a key: the environment variable {connector.key_source} is not set"
            if connector.is_built_in:
                raise BadInput.of(message)
            raise self._settings.problem(message, "connectors", connector.name)
        return connector

    def get_connector(self, name: str, used_by: str) -> Connector:
        """The connector of that name. Raises BadInput with similar names if there is none; `used_by` begins the message."""
        if (connector := self.find_connector(name)) is not None:
            return connector
        message = self._settings.explain_unknown_connector(name)
        raise BadInput.of(f"{used_by}: {message}" if used_by else message)

    def build_agent_fields(self, name: str) -> dict[str, str] | None:
        """The config fields of an agent on the connector or model of that name; None if there is none."""
        connector = self.find_connector(name)
        if connector is None:
            return None
        is_model = name not in self._settings.connectors
        return (
            {"connector": connector.name, "model": name}
            if is_model and not connector.is_built_in
            else {"connector": name}
        )

    def get_agent_connector(self, agent: str, name: str | None) -> Connector:
        """The connector with the `name` from the entry of an agent; without a name, the only connector of the config."""
        if name is not None:
            return self.get_connector(name, f"agent {agent!r}")
        known = list(self._settings.connectors.values())
        if not known:
            advice = "add one to viva.toml, as [connectors.NAME] with `provider` and `model`"
            role = "the built-in helper" if agent.startswith("viva.") else "agent"
            raise self._settings.problem(f"{role} {agent!r} needs a connector; {advice}", "agents", agent)
        if len(known) != 1:
            advice = f"set `connector` to one of {', '.join(self._settings.connectors)}"
            judge = " (for built-in helpers: `judge` in [defaults])" if agent.startswith("viva.") else ""
            raise self._settings.problem(f"agent {agent!r} has no connector; {advice}{judge}", "agents", agent)
        return known[0]

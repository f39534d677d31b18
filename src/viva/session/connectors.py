"""Connectors by name: those of `viva.toml`, and those by which a model is reached that somebody names."""

from viva.config import Settings
from viva.errors import BadInput
from viva.model.connector import Connector, find_connector, provider_of


class ConnectorLookup:
    """Finds connectors. With `needs_keys`, a well-known model without a key is a problem of the user's, found before the run."""

    def __init__(self, settings: Settings, *, needs_keys: bool) -> None:
        self._settings = settings
        self._needs_keys = needs_keys

    def find_connector(self, name: str) -> Connector | None:
        """The connector of that name, or the one that reaches the model of that name. BadInput if its key is missing."""
        if name in self._settings.connectors:
            return self._settings.connectors[name]
        connector = find_connector(name, self._settings.connectors)
        if connector is not None and self._needs_keys and connector.lacks_key and provider_of(name):
            what = f"model {name!r} needs a key: the environment variable {connector.key_source} is not set"
            if connector.is_default:
                raise BadInput.of(what)
            raise self._settings.problem(what, "connectors", connector.name)
        return connector

    def get_connector(self, name: str, used_by: str) -> Connector:
        """The same; BadInput, with the near names, if there is none. `who` wants it."""
        if (found := self.find_connector(name)) is not None:
            return found
        what = self._settings.explain_unknown_connector(name)
        raise BadInput.of(f"{used_by}: {what}" if used_by else what)

    def build_agent_fields(self, name: str) -> dict[str, str] | None:
        """How the config of an agent would name the connector that this name stands for; None if there is no such."""
        found = self.find_connector(name)
        if found is None:
            return None
        is_model = name not in self._settings.connectors
        return {"connector": found.name, "model": name} if is_model and not found.is_default else {"connector": name}

    def get_for_agent(self, agent: str, wanted: str | None) -> Connector:
        """The connector that an agent wants or, if it does not say, the only one that there is."""
        if wanted is not None:
            return self.get_connector(wanted, f"agent {agent!r}")
        known = list(self._settings.connectors.values())
        if not known:
            what = "add one to viva.toml, as [connectors.NAME] with `provider` and `model`"
            raise self._settings.problem(f"agent {agent!r} needs a connector; {what}", "agents", agent)
        if len(known) != 1:
            what = f"say which of {', '.join(self._settings.connectors)} it speaks through"
            judge = " (for built-in helpers: `judge` in [defaults])" if agent.startswith("viva.") else ""
            raise self._settings.problem(f"agent {agent!r} names no connector; {what}{judge}", "agents", agent)
        return known[0]

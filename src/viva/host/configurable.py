"""`configurable` of a request: what it may hold, and which of it reaches the agent.

A request is carried out as a whole or refused. A key that neither the run nor the agent can take is an error, since a
caller would believe that it had an effect.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from viva.agents.agent_config import find_kind
from viva.errors import BadInput
from viva.host.agents import HostedAgent
from viva.host.errors import ApiError, validation_error
from viva.host.events import to_plain_name
from viva.host.host import Host
from viva.model.connector import Connector
from viva.session.agents import AgentFactory, ConfiguredAgent

EVAL_KEYS = ("evalModes", "baselineRunId", "allowAgentMismatch")
_AGENT_FIELDS = {"model": "model", "temperature": "temperature", "maxTokens": "max_tokens"}
"""The field of `[agents.NAME]` that a key replaces for one run."""
PROMPTS_KEY, SYSTEM_PROMPT = "promptOverrides", "system"
AGENT_KEYS = (*_AGENT_FIELDS, PROMPTS_KEY)


def reject_unknown_keys(configurable: Mapping[str, Any], known: Collection[str] = ()) -> None:
    for key in configurable:
        if key not in known:
            raise _refuse(key, "This run cannot take it")


def find_configured_agent(host: Host, agent: HostedAgent) -> ConfiguredAgent:
    try:
        return AgentFactory(host.settings).find_agent_under_test(agent.instance or agent.name)
    except BadInput:  # the problem may quote the config; its owner sees it with `viva agents`
        raise validation_error("This agent cannot be opened", "agentId") from None


def read_agent_fields(host: Host, agent: HostedAgent, configurable: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the agent's config entry that the run replaces. Raises an ApiError for what the agent cannot take."""
    wanted = {key: configurable[key] for key in AGENT_KEYS if key in configurable}
    if not wanted:
        return {}
    configured = find_configured_agent(host, agent)
    fields = {_AGENT_FIELDS[key]: value for key, value in wanted.items() if key != PROMPTS_KEY}
    for key in wanted:
        if configured.connector is None:
            raise _refuse(key, "Viva does not call the model of this agent, so it cannot change it")
    connector = configured.connector
    assert connector is not None
    _check_model(connector, wanted)
    prompts: Mapping[str, str] = wanted.get(PROMPTS_KEY, {})
    has_system_prompt = SYSTEM_PROMPT in getattr(find_kind(configured.kind), "__struct_fields__", ())
    for name in prompts:
        if name != SYSTEM_PROMPT or not has_system_prompt:
            raise _refuse(f"{PROMPTS_KEY}.{name}", "This agent has no such prompt")
    return {**fields, **({"system": prompts[SYSTEM_PROMPT]} if prompts else {})}


def _check_model(connector: Connector, wanted: Mapping[str, Any]) -> None:
    """The operator lists the models that callers may choose, as `models` of the connector; `max_tokens` is a limit."""
    model = wanted.get("model", connector.model)
    if model != connector.model and not any(fnmatchcase(model, pattern) for pattern in connector.models):
        raise _refuse("model", "The connector of this agent does not offer that model")
    if connector.max_tokens is not None and wanted.get("maxTokens", 0) > connector.max_tokens:
        raise _refuse("maxTokens", f"The maximum of this agent is {connector.max_tokens}")


def _refuse(key: str, reason: str) -> ApiError:
    field = f"configurable.{to_plain_name(key)}"
    return validation_error(f"{field} is refused. {reason}", field)

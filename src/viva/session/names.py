"""Names of agents and connectors in flags and files: those that nobody has are found before anything runs."""

from collections.abc import Callable, Iterator
from typing import Any

from viva.agents.agent_config import find_kind
from viva.config import Settings
from viva.errors import BadInput, Problem, Role
from viva.model.connector import find_connector
from viva.session.agents import AgentFactory
from viva.session.options import RunOptions

FindProblems = Callable[[str], tuple[Problem, ...]]
FindConnectorProblems = Callable[[str, str | None], tuple[Problem, ...]]


def create_helper_check(agents: AgentFactory, settings: Settings, under_test: Any = None) -> FindProblems:
    """Says why there can be no agent of a name. One that only the config names, as the default simulator, is wrong there."""
    given = (
        under_test if isinstance(under_test, str) else getattr(under_test, "__qualname__", type(under_test).__name__)
    )
    default = (settings.defaults.simulator or "").removeprefix("agents:")

    def wrong_with(name: str) -> tuple[Problem, ...]:
        if under_test is not None and name == given:
            return ()
        wrong = agents.find_agent_problems(name)
        if name == default and any(not each.file for each in wrong):
            return settings.problem(f"simulator: {wrong[0].message}", "defaults", "simulator").problems
        return wrong

    return wrong_with


def create_connector_check(agents: AgentFactory, settings: Settings, options: RunOptions) -> FindConnectorProblems:
    """Says why `options.connector` of a case cannot be used: by the agent under test, or by a helper.

    An agent that is no model of ours gets its options as they are: what a connector is called there, only it knows.
    """
    asked = options.agent or settings.defaults.agent
    candidates = [asked] if asked is not None else list(settings.agents)

    def wrong_with(name: str, helper: str | None = None) -> tuple[Problem, ...]:
        if helper is None and options.connector is not None:
            return ()  # -c stands over what cases say
        who = candidates if helper is None else [helper]
        if not who or not all(_uses_connectors(each, settings) for each in who):
            return ()
        return agents.find_connector_problems(name)

    return wrong_with


def _uses_connectors(agent: Any, settings: Settings) -> bool:
    """Is it an agent that reaches a model through a connector of the config?"""
    if not isinstance(agent, str):
        return False
    name = agent.removeprefix("agents:")
    written = settings.agents.get(name)
    if written is None:
        named = name in settings.connectors or find_connector(name, settings.connectors) is not None
        return named or (name.startswith("viva.") and name != "viva.rules")
    kind = written.get("type")
    if kind is None:
        return "use" not in written and ("prompt" in written or "connector" in written)
    return getattr(find_kind(kind), "calls_model", False)


def find_flag_problems(options: RunOptions, agents: AgentFactory) -> Iterator[Problem]:
    """Flags that name an agent which there cannot be."""
    named: list[tuple[str, str | None, Role]] = [
        ("--simulator", options.simulator, "simulator"),
        ("-r", options.reporter, "reporter"),
    ]
    for flag, name, role in named:
        if name is None:
            continue
        try:
            agents.find_helper(name, role)
        except BadInput as wrong:
            for each in wrong.problems:
                yield each if each.file else Problem("", 0, "", f"{flag}: {each.message}")

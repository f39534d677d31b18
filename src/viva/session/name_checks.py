"""Checks names of agents, connectors and evaluators in flags and files before anything runs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from viva.agents.agent_config import find_kind, find_reference_kind
from viva.config import Settings
from viva.errors import BadInput, Problem, Role
from viva.model.connector import find_connector
from viva.session.agents import AgentFactory
from viva.session.options.run_options import AllRunOptions

FindProblems = Callable[[str], tuple[Problem, ...]]
FindConnectorProblems = Callable[[str, str | None], tuple[Problem, ...]]


def create_helper_check(agents: AgentFactory, settings: Settings, under_test: Sequence[Any] = ()) -> FindProblems:
    """A function that finds problems of an agent as a helper. Agents under test have none."""
    names_under_test = {
        agent if isinstance(agent, str) else getattr(agent, "__qualname__", type(agent).__name__)
        for agent in under_test
    }
    default_simulator = (settings.defaults.simulator or "").removeprefix("agents:")

    def find_problems(name: str) -> tuple[Problem, ...]:
        if name in names_under_test:
            return ()
        problems = agents.find_agent_problems(name)
        if name == default_simulator and any(not problem.file for problem in problems):
            return settings.problem(f"simulator: {problems[0].message}", "defaults", "simulator").problems
        return problems

    return find_problems


def create_connector_check(agents: AgentFactory, settings: Settings, options: AllRunOptions) -> FindConnectorProblems:
    """A function that finds problems of a connector that `options.connector` of a case names for an agent or a helper.

    An agent that uses no connector of the config receives the option unchecked.
    """
    agents_under_test = list(options.agents) or [settings.defaults.agent or ""]
    if agents_under_test == [""]:
        agents_under_test = list(settings.agents)

    def find_problems(name: str, helper: str | None = None) -> tuple[Problem, ...]:
        if helper is None and options.connector is not None:
            return ()  # -c overrides the cases
        users = agents_under_test if helper is None else [helper]
        if not users or not all(_uses_connector(user, settings) for user in users):
            return ()
        return agents.find_connector_problems(name)

    return find_problems


def _uses_connector(agent: Any, settings: Settings) -> bool:
    if not isinstance(agent, str):
        return False
    name = agent.removeprefix("agents:")
    entry = settings.agents.get(name)
    if entry is None:
        is_connector = name in settings.connectors or find_connector(name, settings.connectors) is not None
        return is_connector or (name.startswith("viva.") and name != "viva.rules")
    kind = entry.get("type")
    if kind is None:
        return "use" not in entry and ("prompt" in entry or "connector" in entry)
    return getattr(find_kind(kind), "calls_model", False)


def create_evaluator_check(agents: AgentFactory, settings: Settings, flag_value: str | None = None) -> FindProblems:
    """A function that finds problems of an evaluator: a connector, agent or model that grades playbooks and plays the user.

    `flag_value` is the name that --evaluator gives.
    """

    def add_place(name: str, problem: Problem) -> tuple[Problem, ...]:
        """The problem with the flag or config line that contains the name, unless it has a file already."""
        if problem.file:
            return (problem,)
        if name == flag_value:
            return (Problem("", 0, "", f"--evaluator: {problem.message}"),)
        if name == settings.defaults.evaluator:
            return settings.problem(f"evaluator: {problem.message}", "defaults", "evaluator").problems
        return (problem,)

    def find_problems(name: str) -> tuple[Problem, ...]:
        bare = name.removeprefix("agents:")
        is_agent = bare in settings.agents
        is_named = is_agent or bare in settings.connectors or bare.startswith("viva.")
        is_named = is_named or agents.is_passed_object(name) or find_reference_kind(bare) is not None
        if not is_named and find_connector(bare, settings.connectors) is None:
            return add_place(name, Problem("", 0, "", _explain_unknown_evaluator(bare)))
        connector = None if is_agent else settings.connectors.get(bare)
        if connector is not None and not connector.model:
            hint = (
                f"; or name a model that its `models` match, such as {connector.models[0]}" if connector.models else ""
            )
            return settings.problem(f"connector {bare!r} has no `model`; add one{hint}", "connectors", bare).problems
        try:
            for role in ("judge", "simulator"):
                agents.find_helper(bare, role)
        except BadInput as error:
            return tuple(placed for problem in error.problems for placed in add_place(name, problem))
        return ()

    return find_problems


def _explain_unknown_evaluator(name: str) -> str:
    family = name.partition("-")[0]
    return (
        f"no agent or connector is called {name!r}, and no connector reaches a model of that name; for a model, add "
        f'`models = ["{family}-*"]` to its connector in viva.toml, for example below [connectors.{family}]'
    )


def find_helper_flag_problems(options: AllRunOptions, agents: AgentFactory) -> Iterator[Problem]:
    """Problems of the flags --simulator and -r, which name helpers."""
    helpers: list[tuple[str, str | None, Role]] = [
        ("--simulator", options.simulator, "simulator"),
        ("-r", options.reporter, "reporter"),
    ]
    for flag, name, role in helpers:
        if name is None:
            continue
        try:
            agents.find_helper(name, role)
        except BadInput as error:
            for problem in error.problems:
                yield problem if problem.file else Problem("", 0, "", f"{flag}: {problem.message}")

"""Who grades playbooks and plays the user in them: a connector, an agent, or a model that some connector reaches."""

from collections.abc import Callable

from viva.agents.agent_config import find_reference_kind
from viva.config import Settings
from viva.errors import BadInput, Problem
from viva.model.connector import find_connector
from viva.session.agents import AgentFactory

FindProblems = Callable[[str], tuple[Problem, ...]]


def create_evaluator_check(agents: AgentFactory, settings: Settings, flag_value: str | None = None) -> FindProblems:
    """Says why nobody of a name can judge and play the user; nothing, if somebody can. `asked` is what --evaluator said."""

    def placed(name: str, problem: Problem) -> tuple[Problem, ...]:
        """The problem, with where the name stands, unless a file is named already or the name is a playbook's own."""
        if problem.file:
            return (problem,)
        if name == flag_value:
            return (Problem("", 0, "", f"--evaluator: {problem.message}"),)
        if name == settings.defaults.evaluator:
            return settings.problem(f"evaluator: {problem.message}", "defaults", "evaluator").problems
        return (problem,)

    def wrong_with(name: str) -> tuple[Problem, ...]:
        bare = name.removeprefix("agents:")
        named = bare in settings.agents or bare in settings.connectors or bare.startswith("viva.")
        named = named or find_reference_kind(bare) is not None
        if not named and find_connector(bare, settings.connectors) is None:
            return placed(name, Problem("", 0, "", _unreached(bare)))
        connector = None if bare in settings.agents else settings.connectors.get(bare)
        if connector is not None and not connector.model:
            what = f"connector {bare!r} says no `model`, so nobody knows which to ask"
            fits = f"; or name one that its `models` fit, such as {connector.models[0]}" if connector.models else ""
            return settings.problem(f"{what}; add one{fits}", "connectors", bare).problems
        try:
            for role in ("judge", "simulator"):
                agents.find_helper(bare, role)
        except BadInput as wrong:
            return tuple(each for problem in wrong.problems for each in placed(name, problem))
        return ()

    return wrong_with


def _unreached(name: str) -> str:
    family = name.partition("-")[0]
    return (
        f"no agent or connector is called {name!r}, and no connector reaches a model of that name; for a model, write "
        f'`models = ["{family}-*"]` into its connector in viva.toml, for example below [connectors.{family}]'
    )

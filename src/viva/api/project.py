"""Settings, agents and connections of a project, for conversations and tests outside a run."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from viva import catalog, config
from viva.check import AgentFunction
from viva.config import Settings
from viva.engine.helpers import HelperPool
from viva.engine.sending import AgentCaller, NamedAgent, build_session_options
from viva.errors import BadInput
from viva.llm.transport import HttpTransport
from viva.model.case import Case, Key
from viva.protocols import WorkspaceFactory
from viva.record.redaction import Redactor
from viva.session.agents import AgentFactory
from viva.session.workspaces import EmptyWorkspaces
from viva.state.trial_state import TrialState

AgentInput = str | AgentFunction | object
"""An agent under test: a name or reference, a function, or any object that can reply. `object` keeps the types of lambdas."""


class Project(Struct, frozen=True):
    """A loaded project, for a conversation or a file of tests. The caller of `load` closes `http`."""

    settings: Settings
    agents: AgentFactory
    http: HttpTransport
    helpers: HelperPool
    empty_workspaces: WorkspaceFactory

    @classmethod
    def load(
        cls, file: Path | None, folder: Path, connector: str | None = None, functions: Mapping[str, Any] | None = None
    ) -> "Project":
        """Load the given config, or the nearest one in the folder and its parents. `functions` are helpers by name."""
        settings = config.load_project(file, folder.resolve())
        agents = AgentFactory(settings, connector, functions=functions)
        http = HttpTransport()
        empty_workspaces = EmptyWorkspaces(settings)
        helpers = HelperPool(agents.find_helper, http, settings.connectors, empty_workspaces=empty_workspaces)
        return cls(settings, agents, http, helpers, empty_workspaces)

    @property
    def redactor(self) -> Redactor:
        return self.settings.redactor

    def create_state(self, case: Case, session_id: str) -> TrialState:
        confirmation_tools = frozenset(self.settings.confirmation_tools)
        key = Key("", session_id)
        return TrialState(case, key, self.helpers, NoTimeLimit(), confirmation_tools=confirmation_tools)

    def create_caller(self, state: TrialState, under_test: Any) -> AgentCaller:
        """An object that calls agents by name, for the code of a trial."""

        def find(name: str | None) -> NamedAgent:
            return self.agents.find_agent_under_test(under_test) if name is None else self.agents.find_agent(name)

        return AgentCaller(
            find_agent=find,
            key=state.key,
            http=self.http,
            connectors=self.settings.connectors,
            meter=state.calls.append,
            progress=state.progress,
            base_options=build_session_options(state.key.case),
            empty_workspaces=self.empty_workspaces,
        )


def refuse_during_import(name: str) -> None:
    """Raises BadInput if the calling module is just being imported by Viva: the call would never end."""
    if (module := catalog.find_module_in_import()) is not None:
        raise BadInput.of(
            f"{name} was called while Viva imports {module}, which would never end; "
            'put the call below `if __name__ == "__main__":`'
        )


class NoTimeLimit:
    """A Clock without a time limit."""

    is_over: bool = False

    def pause(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

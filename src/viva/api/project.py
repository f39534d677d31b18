"""What code outside of a run has around it: the project's settings, its agents, and a way to reach them."""

from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from viva import catalog, config
from viva.config import Settings
from viva.engine.helpers import HelperPool
from viva.engine.sending import AgentCaller, NamedAgent
from viva.llm.transport import HttpTransport
from viva.model.case import Case, Key
from viva.protocols import WorkspaceFactory
from viva.record.redaction import Redactor
from viva.session.agents import AgentFactory
from viva.session.workspaces import EmptyWorkspaces
from viva.state.trial_state import TrialState


class Project(Struct, frozen=True):
    """Found once for a conversation, or for a file of tests. Whoever finds them closes `http`."""

    settings: Settings
    agents: AgentFactory
    http: HttpTransport
    helpers: HelperPool
    redactor: Redactor
    empty_workspaces: WorkspaceFactory

    @classmethod
    def load(cls, file: Path | None, folder: Path, connector: str | None = None) -> "Project":
        """By the given config, or the nearest one upward from the folder."""
        settings = config.load_settings(file, folder.resolve())
        catalog.load_plugins(settings.plugins, settings.folder)
        agents = AgentFactory(settings, connector)
        http = HttpTransport()
        spare = EmptyWorkspaces(settings)
        helper_pool = HelperPool(agents.find_helper, http, settings.connectors, empty_workspaces=spare)
        return cls(settings, agents, http, helper_pool, settings.redactor, spare)

    def create_state(self, case: Case, session_id: str) -> TrialState:
        asking = frozenset(self.settings.confirmation_tools)
        return TrialState(case, Key("", session_id), self.helpers, _NoLimit(), confirmation_tools=asking)

    def create_calls(self, state: TrialState, under_test: Any = None) -> AgentCaller:
        """How code that belongs to a talk calls agents by name."""

        def find(name: str | None) -> NamedAgent:
            return self.agents.find_agent_under_test(under_test) if name is None else self.agents.find_agent(name)

        return AgentCaller(
            find=find,
            key=state.key,
            http=self.http,
            connectors=self.settings.connectors,
            meter=state.calls.append,
            progress=state.progress,
            base_options={"session_id": state.key.case, "referer": "agent-test"},
            empty_workspaces=self.empty_workspaces,
        )


class _NoLimit:
    """No clock runs: how long it may take is up to the code that talks."""

    def pause(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

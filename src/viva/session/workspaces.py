"""Chooses and creates the folder that an agent works in, from the case, the flags and the config."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from viva.config import Settings
from viva.model.case import Case, Key, WorkspaceSpec
from viva.protocols import Workspace, WorkspaceFactory
from viva.session.agents import ConfiguredAgent
from viva.session.options.run_options import AllRunOptions

if TYPE_CHECKING:
    from viva.workspace.folders import LocalWorkspaces
    from viva.workspace.sandbox import Bubblewrap


class EmptyWorkspaces:
    """A WorkspaceFactory for agents that run outside a case: helpers, calls from Python code, version checks.

    The workspaces are sandboxed if the flag or the config says so, and always deleted.
    """

    def __init__(self, settings: Settings, sandbox: str | None = None) -> None:
        self._environ = settings.environ
        self._sandbox_kind = sandbox or settings.defaults.sandbox
        self._workspaces: LocalWorkspaces | None = None

    @cached_property
    def sandbox(self) -> "Bubblewrap | None":
        """The sandbox, if one is configured. Raises BadInput if it does not work here."""
        if self._sandbox_kind != "bwrap":
            return None
        from viva.workspace.sandbox import find_bubblewrap

        return find_bubblewrap(self._environ)

    def __call__(self, spec: WorkspaceSpec, key: Key) -> AbstractAsyncContextManager[Workspace]:
        if self._workspaces is None:
            from viva.workspace.folders import LocalWorkspaces  # most runs need none

            self._workspaces = LocalWorkspaces(environ=self._environ, sandbox=self.sandbox)
        return self._workspaces(spec, key)


class WorkspaceProvider:
    """Creates the workspaces of a run: for cases that need one, and for all cases of a terminal agent.

    Flags override the kind of a copied workspace, but not a `tmpdir` of a playbook. Suite files, cassettes and reports
    are left out of copies, so that the agent cannot read its own tests.
    """

    def __init__(
        self, options: AllRunOptions, settings: Settings, agents: Sequence[ConfiguredAgent], files: Iterable[Path]
    ) -> None:
        defaults = settings.defaults
        self._agents = {agent.name: agent for agent in agents}
        self._root = str(options.folder.resolve())
        self._kind = options.workspace or defaults.workspace
        self._link_mode = options.link_mode or defaults.link_mode
        cassettes = [path for path in (options.record, options.replay) if path is not None]
        self._exclude = tuple(str(path.resolve()) for path in (*files, *cassettes, *options.outputs))
        self._environ = settings.environ
        self._keep_always = options.keep_workspace or defaults.keep_workspace
        self._is_replay = options.replay is not None
        self._workspaces: LocalWorkspaces | None = None
        empty_workspaces = EmptyWorkspaces(settings, options.sandbox)
        self._sandbox = empty_workspaces.sandbox
        self.empty_workspaces: WorkspaceFactory = empty_workspaces

    @property
    def is_in_place(self) -> bool:
        """Do agents work in the working folder itself (`--workspace cwd`), one case at a time?"""
        return self._kind == "cwd"

    def assign_workspace(self, case: Case, agent_name: str) -> Case:
        """The case with the workspace that it gets on an agent; unchanged if it needs none."""
        spec, agent = case.workspace, self._agents[agent_name]
        if spec is None:
            if not (agent.needs_workspace or "workspace" in case.needs) or case.sessions != "one":
                return case
            spec = WorkspaceSpec("copy", self._root)
        kind = self._kind if self._kind is not None and spec.kind == "copy" else spec.kind
        link_mode = self._link_mode or ("symlink" if agent.follows_links else "copy")
        spec = structs.replace(spec, kind=kind, link_mode=link_mode, exclude=self._exclude)
        return structs.replace(case, workspace=spec)

    def open_workspace(self, spec: WorkspaceSpec, key: Key) -> AbstractAsyncContextManager[Workspace]:
        """The workspace of one trial: a WorkspaceFactory."""
        if self._workspaces is None:
            from viva.workspace.folders import LocalWorkspaces  # most runs need none

            self._workspaces = LocalWorkspaces(
                environ=self._environ, keep_always=self._keep_always, sandbox=self._sandbox, is_replay=self._is_replay
            )
        return self._workspaces(spec, key)

    def describe_permissions(self) -> Iterator[str]:
        """A note for each terminal agent: whether its tools run without approval, and whether a sandbox confines it."""
        for agent in self._agents.values():
            if not agent.needs_workspace:
                if self._sandbox is not None:
                    yield f"--sandbox confines terminal agents; {agent.name} is not one and runs unconfined"
                continue
            is_asking = agent.auto_approves is False
            approval = "as its config says" if is_asking else "in auto-approve mode: every tool runs without asking"
            confined = "confined to its workspace by bubblewrap" if self._sandbox else "unconfined (--sandbox bwrap)"
            yield f"{agent.name} runs {approval}, {confined}"

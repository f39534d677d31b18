"""Which folder an agent works in: what the case says, and over it the flags and the config."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from viva.config import Settings
from viva.model.case import Case, Key, WorkspaceSpec
from viva.protocols import Workspace, WorkspaceFactory
from viva.session.agents import ConfiguredAgent
from viva.session.options import RunOptions

if TYPE_CHECKING:
    from viva.workspace.folders import LocalWorkspaces
    from viva.workspace.sandbox import Bubblewrap


class EmptyWorkspaces:
    """Empty workspaces (a `Workspaces`) for commands that run outside of a case's own: helpers, calls from code, version probes.

    They are confined as the run or the config says, and never kept.
    """

    def __init__(self, settings: Settings, sandbox: str | None = None) -> None:
        self._environ = settings.environ
        self._asked_for = sandbox or settings.defaults.sandbox
        self._folders: LocalWorkspaces | None = None

    @cached_property
    def sandbox(self) -> "Bubblewrap | None":
        """BadInput if it is asked for and does not work here."""
        if self._asked_for != "bwrap":
            return None
        from viva.workspace.sandbox import find_bubblewrap

        return find_bubblewrap(self._environ)

    def __call__(self, spec: WorkspaceSpec, key: Key) -> AbstractAsyncContextManager[Workspace]:
        if self._folders is None:
            from viva.workspace.folders import LocalWorkspaces  # most runs need none

            self._folders = LocalWorkspaces(environ=self._environ, sandbox=self.sandbox)
        return self._folders(spec, key)


class WorkspaceProvider:
    """Gives a workspace to the cases that want one and, where the agent itself lives in one, to all.

    What a flag says stands over a copy of the repository; a playbook with a `tmpdir` has said otherwise. `files` are
    those of the suites: no agent is to read what it is examined in, nor what is written about it.
    """

    def __init__(self, options: RunOptions, settings: Settings, agent: ConfiguredAgent, files: Iterable[Path]) -> None:
        defaults = settings.defaults
        self._agent = agent
        self._lives_in_one = agent.needs_workspace
        self._root = str(options.folder.resolve())
        self._kind = options.workspace or defaults.workspace
        usual = "symlink" if agent.follows_links else "copy"
        self._link_mode = options.link_mode or defaults.link_mode or usual
        ours = [path for path in (options.record, options.replay) if path is not None]
        self._leave_out = tuple(str(path.resolve()) for path in (*files, *ours, *options.outputs))
        self._environ = settings.environ
        self._keep = options.keep_workspace or defaults.keep_workspace
        self._replaying = options.replay is not None
        self._folders: LocalWorkspaces | None = None
        spare = EmptyWorkspaces(settings, options.sandbox)
        self._sandbox = spare.sandbox
        self.empty_workspaces: WorkspaceFactory = spare

    def assign_workspace(self, case: Case) -> Case:
        spec = case.workspace
        if spec is None:
            if not (self._lives_in_one or "workspace" in case.needs) or case.sessions != "one":
                return case
            spec = WorkspaceSpec("copy", self._root)
        kind = self._kind if self._kind is not None and spec.kind == "copy" else spec.kind
        spec = structs.replace(spec, kind=kind, link_mode=self._link_mode, exclude=self._leave_out)
        return structs.replace(case, workspace=spec)

    def open_workspace(self, spec: WorkspaceSpec, key: Key) -> AbstractAsyncContextManager[Workspace]:
        """The workspace of one trial (a `Workspaces`)."""
        if self._folders is None:
            from viva.workspace.folders import LocalWorkspaces  # most runs need none

            self._folders = LocalWorkspaces(
                environ=self._environ, keep_always=self._keep, sandbox=self._sandbox, is_replay=self._replaying
            )
        return self._folders(spec, key)

    def build_notes(self) -> Iterator[str]:
        """What everybody should know before the run: what a command may do unasked, and what keeps it in."""
        if not self._lives_in_one:
            if self._sandbox is not None:
                yield f"--sandbox confines commands; {self._agent.name} is none, and runs unconfined"
            return
        asks = (
            "as its config says"
            if self._agent.auto_approves is False
            else "in auto-approve mode: every tool runs unasked"
        )
        where = (
            "confined to its workspace by bubblewrap" if self._sandbox is not None else "unconfined (--sandbox bwrap)"
        )
        yield f"{self._agent.name} runs {asks}, {where}"

"""Where a CLI works when its case has no workspace, and where its version is asked for: an empty one of its own."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache

from viva.model.case import WorkspaceSpec
from viva.protocols import SessionContext, Workspace, WorkspaceFactory
from viva.workspace.folders import LocalWorkspaces


@asynccontextmanager
async def open_cli_workspace(context: SessionContext) -> AsyncGenerator[Workspace]:
    if context.workspace is not None:
        yield context.workspace
        return
    async with choose_workspaces(context)(WorkspaceSpec("empty"), context.key) as workspace:
        yield workspace


def choose_workspaces(context: SessionContext) -> WorkspaceFactory:
    """Those that whoever opens the session has, with the sandbox that the run asks for; else unconfined ones."""
    return context.empty_workspaces or _folders()


@cache
def _folders() -> LocalWorkspaces:
    """One for all, so that what others have left is swept once."""
    return LocalWorkspaces()

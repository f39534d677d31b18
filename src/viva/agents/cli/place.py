"""Where a CLI works when its case has no workspace: an empty one of its own."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache

from viva.model.case import WorkspaceSpec
from viva.protocols import SessionContext, Workspace
from viva.workspace.folders import Folders


@asynccontextmanager
async def placed(context: SessionContext) -> AsyncGenerator[Workspace]:
    if context.workspace is not None:
        yield context.workspace
        return
    async with _folders()(WorkspaceSpec("empty"), context.key) as workspace:
        yield workspace


@cache
def _folders() -> Folders:
    """One for all, so that what others have left is swept once."""
    return Folders()

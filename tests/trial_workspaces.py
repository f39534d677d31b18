"""Workspaces for tests."""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from viva.model.case import Key, WorkspaceSpec
from viva.workspace.folders import LocalWorkspaces, TrialWorkspace

T = TypeVar("T")
KEY = Key("suite", "case")


def folders(base: Path, **more: Any) -> LocalWorkspaces:
    base.mkdir(parents=True, exist_ok=True)
    return LocalWorkspaces(str(base), environ=os.environ, **more)


def opened(
    made: LocalWorkspaces, spec: WorkspaceSpec, use: Callable[[TrialWorkspace], Awaitable[T]], key: Key = KEY
) -> T:
    """Returns the result of a function that uses a temporary workspace."""

    async def scenario() -> T:
        async with made(spec, key) as folder:
            return await use(folder)

    return asyncio.run(scenario())


def tree(root: str | Path) -> dict[str, bytes | str | None]:
    """Everything below a folder: file contents, link targets, and folders."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(Path(root).rglob("*")):
        name = str(path.relative_to(root))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def files(root: str | Path) -> set[str]:
    return {name for name, held in tree(root).items() if held is not None}


def put(root: str | Path, name: str, text: str | bytes = "") -> Path:
    path = Path(root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def git(folder: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *settings, *arguments], cwd=folder, check=True, capture_output=True)

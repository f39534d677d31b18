"""Describes the origin of a run: the model of its agent, the commit of the project, and the run that it repeats."""

import re
from pathlib import Path

from viva.model.event import RunOrigin
from viva.session.run_plan import RunPlan

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MAX_PACKED_BYTES = 64 * 1024 * 1024


def describe_origin(plan: RunPlan) -> RunOrigin:
    connectors = [agent.connector for agent in plan.tested_agents]
    models = dict.fromkeys(plan.options.agent_model or (each.model if each else "") for each in connectors)
    commit, branch = find_commit(plan.options.folder.absolute())
    return RunOrigin(
        model=", ".join(filter(None, models)), commit=commit, branch=branch, rerun_of=plan.options.rerun_of or ""
    )


def find_commit(folder: Path) -> tuple[str, str]:
    """The commit and branch of the Git repository around a folder; empty texts if unknown. No process is started."""
    try:
        git = next((each / ".git" for each in (folder, *folder.parents) if (each / ".git").exists()), None)
        if git is None:
            return "", ""
        if git.is_file():  # a worktree or a submodule
            git = git.parent / git.read_text().partition("gitdir:")[2].strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return _keep_valid_commit(head), ""
        reference = head.removeprefix("ref: ")
        shared = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        return _read_branch_commit(git, shared, reference), reference.removeprefix("refs/heads/")
    except (OSError, ValueError):  # no repository that can be read: the run has no commit
        return "", ""


def _read_branch_commit(git: Path, shared: Path, reference: str) -> str:
    for folder in (git, shared):
        if (folder / reference).is_file():
            return _keep_valid_commit((folder / reference).read_text().strip())
    packed = shared / "packed-refs"
    if not packed.is_file() or packed.stat().st_size > _MAX_PACKED_BYTES:
        return ""
    lines = packed.read_text().splitlines()
    return next((_keep_valid_commit(line.split(" ")[0]) for line in lines if line.endswith(f" {reference}")), "")


def _keep_valid_commit(text: str) -> str:
    return text if _COMMIT.fullmatch(text) else ""

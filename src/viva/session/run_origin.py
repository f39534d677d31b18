"""Where a run comes from: the model of its agent, the commit of the project, and the run that it repeats."""

import re
from pathlib import Path

from viva.model.event import RunOrigin
from viva.session.run_plan import RunPlan

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MAX_PACKED_BYTES = 64 * 1024 * 1024


def describe_origin(plan: RunPlan) -> RunOrigin:
    models = [agent.connector.model for agent in plan.tested_agents if agent.connector]
    model = plan.options.agent_model or ", ".join(dict.fromkeys(filter(None, models)))
    commit, branch = find_commit(plan.options.folder.absolute())
    return RunOrigin(model=model, commit=commit, branch=branch, rerun_of=plan.options.rerun_of or "")


def find_commit(folder: Path) -> tuple[str, str]:
    """The commit and the branch that a folder is at, from the files of Git: no process is started. Empty if unknown."""
    try:
        git = next((each / ".git" for each in (folder, *folder.parents) if (each / ".git").exists()), None)
        if git is None:
            return "", ""
        if git.is_file():  # a worktree or a submodule
            git = git.parent / git.read_text().partition("gitdir:")[2].strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return _take_commit(head), ""
        reference = head.removeprefix("ref: ")
        shared = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        return _find_reference(git, shared, reference), reference.removeprefix("refs/heads/")
    except (OSError, ValueError):  # no repository that can be read: the run has no commit
        return "", ""


def _find_reference(git: Path, shared: Path, reference: str) -> str:
    for folder in (git, shared):
        if (folder / reference).is_file():
            return _take_commit((folder / reference).read_text().strip())
    packed = shared / "packed-refs"
    if not packed.is_file() or packed.stat().st_size > _MAX_PACKED_BYTES:
        return ""
    lines = packed.read_text().splitlines()
    return next((_take_commit(line.split(" ")[0]) for line in lines if line.endswith(f" {reference}")), "")


def _take_commit(text: str) -> str:
    return text if _COMMIT.fullmatch(text) else ""

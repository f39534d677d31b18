"""Agents that live in a terminal, from what `viva.toml` says of them, and what `viva agents` tells of them."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from viva import catalog
from viva.config import Settings
from viva.model import codec
from viva.protocols import Agent, WorkspaceFactory
from viva.text import credentials

CLI_NAMES = ("gemini", "claude", "codex", "qwen", "opencode")
"""CLIs that can be named without a config."""
TERMINAL_KINDS = frozenset((*CLI_NAMES, "command", "acp"))
DEFAULT_PARALLEL = 2
"""So many of them at once, unless the config says otherwise: each is a process that may build and test things."""


def build_terminal_agent(settings: Settings, name: str, kind: str, fields: Mapping[str, Any], folder: Path) -> Agent:
    """The agent of that name. A command that is a path is looked for beside the config."""
    made = dict(fields)
    for theirs in ("tools", "connector"):  # which tools it has and whom it speaks to is its own affair
        made.pop(theirs, None)
    for key in ("command", "resume", "model_args", "args", "permissions"):
        if key in made and not (key == "permissions" and isinstance(made[key], str)):
            made[key] = _words(made[key], folder if key in ("command", "resume") else None)
    made["env"] = {k: settings.expand_variables(str(v), "agents", name, "env") for k, v in made.get("env", {}).items()}
    settings.redactor.add_secrets(credentials.find_in_environment(made["env"]))
    component = catalog.find_component("agent", kind)
    assert component is not None
    if kind in ("command", "acp") and not made.get("command"):
        raise settings.problem(f"agent {name!r} misses `command`", "agents", name)
    try:
        if "events" in made:
            from viva.agents.cli.command import LineRule

            made["events"] = tuple(codec.convert(rule, LineRule) for rule in made["events"])
        agent: Any = component(host=settings.environ, **made)
    except (ValueError, codec.ValidationError) as wrong:
        raise settings.problem(f"agent {name!r}: {wrong}", "agents", name) from wrong
    settings.redactor.add_secrets(value for key in agent.dialect.keys if (value := settings.environ.get(key)))
    return agent


def _words(written: Any, folder: Path | None) -> tuple[str, ...]:
    words = shlex.split(written) if isinstance(written, str) else [str(word) for word in written]
    if folder is not None and words and "/" in words[0]:
        words[0] = str(folder / Path(words[0]).expanduser())
    return tuple(words)


async def inspect_program(agent: Any, workspaces: WorkspaceFactory) -> tuple[str | None, str | None, str | None]:
    """Where its program is, which version, and what is missing to use it. A command of the config's own is not run for that."""
    from viva.agents.cli.installation import inspect_installation

    environ = {**agent.host, **agent.env}
    logins = agent.host.get("HOME") if agent.login else None
    found = await inspect_installation(
        agent.called[0], environ, agent.dialect, logins, None if agent.command else workspaces
    )
    return found.executable, found.version, found.missing

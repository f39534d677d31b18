"""`viva agents`: lists configured agents, connectors and installed CLIs, and what is missing."""

import asyncio
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, structs

from viva import config
from viva.agents.agent_config import AgentStatus, list_nameable_kinds
from viva.cli.history import config_option
from viva.config import Settings
from viva.errors import BadInput
from viva.model import codec
from viva.reporters.formatting import escape_controls
from viva.session.agents import AgentFactory
from viva.session.loop import run_coroutine
from viva.session.workspaces import EmptyWorkspaces
from viva.text.credentials import mask_url_credentials

EPILOG = """\b
Examples:
  viva agents                             agents and connectors of viva.toml, and installed CLIs
  viva agents --json                      the same as JSON
  viva agents --config other/viva.toml    those of another project
"""


class _AgentRow(Struct, omit_defaults=True, kw_only=True):
    """An agent in the list. `missing` is why it cannot be used."""

    name: str
    kind: str = ""
    default: bool = False
    description: str = ""
    executable: str | None = None
    version: str | None = None
    missing: str | None = None


@click.command(epilog=EPILOG)
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(config_file: Path | None, as_json: bool) -> int:
    """List agents, connectors and installed CLIs, and what is missing to use them.

    Exit code 1 if a configured agent cannot be reached.
    """
    settings = config.load_project(config_file, Path.cwd(), allow_unset=True)
    unset = settings.unset_variables or []  # of connectors
    settings = structs.replace(settings, unset_variables=None)  # each agent reports its own
    rows, clis = run_coroutine(_inspect_agents(settings))
    if as_json:
        print(codec.pretty_json(codec.encode(_build_json_document(settings, rows, clis))).decode())
    else:
        _print_agents(settings, rows, clis)
        for missing in unset:
            print(missing)
    return 1 if any(row.missing for row in rows) else 0


async def _inspect_agents(settings: Settings) -> tuple[list[_AgentRow], list[_AgentRow]]:
    agents = AgentFactory(settings)
    names = agents.list_agent_names()
    rows = [_build_row(agents, name, default=settings.defaults.agent == name or len(names) == 1) for name in names]
    others = [_build_row(agents, name) for name in list_nameable_kinds() if name not in names]
    workspaces = EmptyWorkspaces(settings)
    await asyncio.gather(*(_inspect_agent(row, agents, workspaces) for row in (*rows, *others)))
    return rows, others


def _build_row(agents: AgentFactory, name: str, *, default: bool = False) -> _AgentRow:
    try:
        agent = agents.find_agent(name)
    except BadInput as error:
        return _AgentRow(name=name, default=default, missing=error.problems[0].message)
    return _AgentRow(name=name, kind=agent.kind, default=default, description=agent.description)


async def _inspect_agent(row: _AgentRow, agents: AgentFactory, workspaces: EmptyWorkspaces) -> None:
    """Fill in the program, its version, and what is missing, as the agent reports them."""
    if row.missing is not None or (inspect := getattr(agents.find_agent(row.name).agent, "inspect", None)) is None:
        return
    try:
        status: AgentStatus = await inspect(workspaces)
    except BadInput as error:  # the configured sandbox is missing
        row.missing = error.problems[0].message
    else:
        row.executable, row.version, row.missing = status.executable, status.version, status.missing


def _print_agents(settings: Settings, rows: list[_AgentRow], clis: list[_AgentRow]) -> None:
    if settings.file is None:
        print(f"No {config.CONFIG_FILE} here or in a parent folder; create one with `viva init`")
    else:
        print(f"{settings.file}")
    for row in rows:
        print(_format_row(row))
    for connector in settings.connectors.values():
        key = "" if connector.api_key else f"  {connector.key_source} is not set"
        print(
            f"  connector {connector.name}  {connector.provider} {connector.model} {mask_url_credentials(connector.base_url)}{key}"
        )
    print("\nInstalled CLIs, which -n accepts without a config:")
    for row in clis:
        print(_format_row(row))


def _format_row(row: _AgentRow) -> str:
    default = " (default)" if row.default else ""
    kind = row.kind if row.kind != row.name else ""
    parts = (f"{'✗' if row.missing else '✓'} {row.name}{default}", kind, row.version, row.description, row.missing)
    return escape_controls(
        "  ".join(part for part in parts if part)
    )  # an agent may have said the version or description


def _build_json_document(settings: Settings, rows: list[_AgentRow], clis: list[_AgentRow]) -> dict[str, Any]:
    connectors = [
        {
            "name": connector.name,
            "provider": connector.provider,
            "model": connector.model,
            "base_url": mask_url_credentials(connector.base_url),
            "missing": None if connector.api_key else f"{connector.key_source} is not set",
        }
        for connector in settings.connectors.values()
    ]
    file = str(settings.file) if settings.file else None
    return {"config": file, "agents": rows, "connectors": connectors, "clis": clis}

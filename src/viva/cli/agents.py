"""`viva agents`: what the config knows, which CLIs there are, and what of it can be reached."""

import asyncio
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from msgspec import Struct, structs

from viva import catalog, config
from viva.config import Settings
from viva.errors import BadInput
from viva.model import codec
from viva.session import terminal_agents
from viva.session.agents import AgentFactory
from viva.session.loop import run_coroutine
from viva.session.workspaces import EmptyWorkspaces
from viva.text.credentials import mask_text

EPILOG = """\b
Examples:
  viva agents
  viva agents --json
  viva agents --config other/viva.toml
"""


class _Row(Struct, omit_defaults=True, kw_only=True):
    """What is known of an agent; `missing` is why it cannot be used."""

    name: str
    kind: str = ""
    default: bool = False
    description: str = ""
    executable: str | None = None
    version: str | None = None
    missing: str | None = None


@click.command(epilog=EPILOG)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another config than the nearest viva.toml.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON, for machines.")
def command(config_file: Path | None, as_json: bool) -> int:
    """List agents, connectors and installed CLIs, and say what is missing. Exit code 1 if an agent of the config cannot be reached."""
    settings = config.load_settings(config_file, Path.cwd(), allow_unset=True)
    catalog.load_plugins(settings.plugins, settings.folder)
    unset = settings.unset_variables or []  # of connectors
    settings = structs.replace(settings, unset_variables=None)  # each agent reports its own
    rows, clis = run_coroutine(_looked_at(settings))
    if as_json:
        print(codec.pretty_json(codec.encode(_document(settings, rows, clis))).decode())
    else:
        _print(settings, rows, clis)
        for missing in unset:
            print(missing)
    return 1 if any(row.missing for row in rows) else 0


async def _looked_at(settings: Settings) -> tuple[list[_Row], list[_Row]]:
    agents = AgentFactory(settings)
    names = agents.list_names()
    rows = [_row(agents, name, default=settings.defaults.agent == name or len(names) == 1) for name in names]
    others = [_row(agents, name) for name in terminal_agents.CLI_NAMES if name not in names]
    spare = EmptyWorkspaces(settings)
    await asyncio.gather(*(_look_at(row, agents, spare) for row in (*rows, *others)))
    return rows, others


def _row(agents: AgentFactory, name: str, *, default: bool = False) -> _Row:
    try:
        found = agents.find_agent(name)
    except BadInput as broken:
        return _Row(name=name, default=default, missing=broken.problems[0].message)
    return _Row(name=name, kind=found.kind, default=default, description=found.description)


async def _look_at(row: _Row, agents: AgentFactory, spare: EmptyWorkspaces) -> None:
    """Fills in whether it is there."""
    if row.missing is not None:
        return
    agent: Any = agents.find_agent(row.name).agent
    if row.kind in terminal_agents.TERMINAL_KINDS:
        try:
            row.executable, row.version, row.missing = await terminal_agents.inspect_program(agent, spare)
        except BadInput as broken:  # the sandbox that the config asks for is not there
            row.missing = broken.problems[0].message
        return
    url = getattr(agent, "url", None) or getattr(getattr(agent, "connector", None), "base_url", None)
    row.missing = (
        await _unreachable(url)
        if url and "$" not in url
        else url and f"{mask_text(url)} has a variable that is not set"
    )


def _print(settings: Settings, rows: list[_Row], clis: list[_Row]) -> None:
    if settings.file is None:
        print(f"There is no {config.CONFIG_FILE} here or above; `viva init` makes one.")
    else:
        print(f"{settings.file}")
    for row in rows:
        print(_line(row))
    for connector in settings.connectors.values():
        key = "" if connector.api_key else f"  {connector.key_source} is not set"
        print(
            f"  connector {connector.name}  {connector.provider} {connector.model} {mask_text(connector.base_url)}{key}"
        )
    print("\nCLIs that -n can name without a config:")
    for row in clis:
        print(_line(row))


def _line(row: _Row) -> str:
    default = " (default)" if row.default else ""
    kind = row.kind if row.kind != row.name else ""
    parts = (f"{'✗' if row.missing else '✓'} {row.name}{default}", kind, row.version, row.description, row.missing)
    return "  ".join(part for part in parts if part)


def _document(settings: Settings, rows: list[_Row], clis: list[_Row]) -> dict[str, Any]:
    connectors = [
        {
            "name": each.name,
            "provider": each.provider,
            "model": each.model,
            "base_url": mask_text(each.base_url),
            "missing": None if each.api_key else f"{each.key_source} is not set",
        }
        for each in settings.connectors.values()
    ]
    file = str(settings.file) if settings.file else None
    return {"config": file, "agents": rows, "connectors": connectors, "clis": clis}


async def _unreachable(url: str) -> str | None:
    """Why nobody listens there; None if somebody does."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, port), 3)
    except TimeoutError:
        return f"{parts.hostname}:{port} does not answer"
    except (OSError, socket.gaierror) as wrong:
        return f"{parts.hostname}:{port}: {wrong.strerror or wrong}"
    writer.close()
    return None

"""`viva agents`: what the config knows, and what of it can be reached."""

import asyncio
import socket
from pathlib import Path
from urllib.parse import urlsplit

import click

from viva import catalog, config
from viva.config import Settings
from viva.errors import BadInput
from viva.session.agents import Agents
from viva.session.loop import run_loop

EPILOG = """\b
Examples:
  viva agents
  viva agents --config other/viva.toml
"""


@click.command(epilog=EPILOG)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another config than the nearest viva.toml.",
)
def command(config_file: Path | None) -> int:
    """List agents and connectors, and say what is missing. Exit code 1 if an agent cannot be reached."""
    settings = config.load(config_file, Path.cwd())
    catalog.load_plugins(settings.plugins)
    if settings.file is None:
        print(f"There is no {config.FILE} here or above; `viva init` makes one.")
        return 0
    print(f"{settings.file}")
    return run_loop(_list(settings))


async def _list(settings: Settings) -> int:
    agents = Agents(settings)
    wrong = 0
    for name in agents.names():
        default = " (default)" if settings.defaults.agent == name or len(agents.names()) == 1 else ""
        try:
            agent = agents.named(name)
        except BadInput as broken:
            wrong += 1
            print(f"✗ {name}{default}  {broken.problems[0].what}")
            continue
        url = getattr(agent.agent, "url", None) or getattr(getattr(agent.agent, "connector", None), "base_url", None)
        trouble = await _unreachable(url) if url else None
        wrong += trouble is not None
        print(
            f"{'✗' if trouble else '✓'} {name}{default}  {agent.kind}"
            + (f"  {agent.description}" if agent.description else "")
            + (f"  {trouble}" if trouble else "")
        )
    for connector in settings.connectors.values():
        key = "" if connector.api_key else f"  {connector.key_from} is not set"
        print(f"  connector {connector.name}  {connector.provider} {connector.model} {connector.base_url}{key}")
    return 1 if wrong else 0


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

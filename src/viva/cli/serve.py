"""`viva serve`: serves agents and eval suites as an OpenWOP host."""

from pathlib import Path

import click

from viva.cli import serve_token
from viva.cli.history import config_option
from viva.errors import BadInput
from viva.text.addresses import is_loopback
from viva.text.duration import parse_age, parse_duration

EPILOG = """\b
Examples:
  viva serve                               on 127.0.0.1:8765, with a new token, shown once
  viva serve --port 9000 --public-url https://evals.example.com
  viva serve --conformance                 with the test endpoints of OpenWOP's conformance suite
  viva serve token add acme                a token of a tenant, also while the host runs
  curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8765/v1/agents

\b
It serves the agents of viva.toml. Configure suites and packs as [openwop] suites = [...], tokens as
[openwop.tenants.NAME] tokens = ["${NAME}"], or add them with `viva serve token add`. Runs are saved in .viva and continue after a restart.
SIGTERM lets running runs end (--drain); SIGHUP loads tokens, keys, agents, suites and limits again.
"""


def find_address_warning(bind_address: str, public_url: str) -> str | None:
    """A warning if the host is reachable from other machines without TLS; else None."""
    if is_loopback(bind_address) or not public_url.startswith("http://"):
        return None
    reason = f"{bind_address} is reachable from other machines, and tokens are sent there as plain text"
    return f"{reason}. Put a proxy with TLS in front of it and set --public-url https://..."


def _parse_drain_time(_context: click.Context, _option: click.Parameter, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _parse_keep_age(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else parse_age(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.group(epilog=EPILOG, invoke_without_command=True)
@click.option("--host", metavar="ADDRESS", help="Address to listen on (default: 127.0.0.1).")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Port to listen on (default: 8765; 0 for a free one)."
)
@click.option("--public-url", metavar="URL", help="The URL of this host for others, used in links.")
@click.option(
    "--drain",
    callback=_parse_drain_time,
    default="30s",
    metavar="TIME",
    help="How long running runs may go on after SIGTERM (default: 30s). Later they continue after the next start.",
)
@click.option(
    "--keep",
    callback=_parse_keep_age,
    metavar="AGE",
    help="Delete finished runs that are older, for example 30d (default: never).",
)
@click.option("--conformance", is_flag=True, help="Add the test endpoints of OpenWOP's conformance suite.")
@config_option
@click.pass_context
def command(
    context: click.Context,
    host: str | None,
    port: int | None,
    public_url: str | None,
    drain: float,
    keep: float | None,
    conformance: bool,
    config_file: Path | None,
) -> int:
    """Serve the agents and eval suites of a project over HTTP, as an OpenWOP host."""
    if context.invoked_subcommand is not None:
        return 0
    try:
        from viva.host.server import serve
        from viva.host.setup import ServeFlags, load_setup
    except ImportError as missing:
        raise BadInput.of(
            f"`viva serve` needs the extra `serve` ({missing.name} is missing): pip install 'viva-eval[serve]'"
        ) from missing
    flags = ServeFlags(host, port, public_url, conformance, drain, keep)
    opened = load_setup(config_file, Path.cwd(), flags)
    if warning := find_address_warning(opened.bind_address, opened.options.public_url):
        click.echo(f"Warning: {warning}", err=True)

    def ready(url: str) -> None:
        print(f"OpenWOP host at {url}; stop it with Ctrl-C", flush=True)
        if opened.generated_token is not None:
            print(f"token of tenant {'local'!r}, shown only once: {opened.generated_token}", flush=True)
        if conformance:
            print("Conformance endpoints are enabled: do not serve real tenants", flush=True)

    serve(opened, ready)
    return 0


command.add_command(serve_token.command)

"""`viva serve`: be an OpenWOP host."""

from pathlib import Path

import click

from viva.errors import BadInput

EPILOG = """\b
Examples:
  viva serve                               on 127.0.0.1:8765; a token is made and shown once
  viva serve --port 9000 --public-url https://evals.example.com
  viva serve --conformance                 with the doors of OpenWOP's conformance suite
  curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8765/v1/agents

\b
Agents are those of viva.toml. Suites and packs are named as [openwop] suites = [...], tokens as
[openwop.tenants.NAME] tokens = ["${NAME}"]. Runs are kept under .viva and go on after a restart.
"""


@click.command(epilog=EPILOG)
@click.option("--host", metavar="ADDRESS", help="The address to listen on (127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="The port (8765; 0 for any free one).")
@click.option("--public-url", metavar="URL", help="How others reach this host, for the links in its answers.")
@click.option("--conformance", is_flag=True, help="Open the doors that OpenWOP's conformance suite needs.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another config than the nearest viva.toml.",
)
def command(host: str | None, port: int | None, public_url: str | None, conformance: bool, config: Path | None) -> int:
    """Serve the agents and eval suites of a project over HTTP, as an OpenWOP host."""
    try:
        from viva.host.server import load_setup, serve
    except ImportError as missing:
        raise BadInput.of(
            f"`viva serve` needs the extra `serve` ({missing.name} is missing): pip install 'viva-eval[serve]'"
        ) from missing
    opened = load_setup(
        config, Path.cwd(), bind_address=host, port=port, public_url=public_url, conformance_routes=conformance
    )

    def ready(url: str) -> None:
        print(f"Viva is an OpenWOP host at {url}; Ctrl-C ends it.", flush=True)
        if opened.generated_token is not None:
            print(f"token of the tenant {'local'!r}, shown only now: {opened.generated_token}", flush=True)
        if conformance:
            print("conformance seams are open: do not serve real tenants like this", flush=True)

    serve(opened, ready)
    return 0

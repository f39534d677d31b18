"""`viva view`: shows runs in a browser."""

import sys
from pathlib import Path

import click

from viva.cli.history import config_option, find_run, open_history, report_crashed_runs
from viva.errors import BadInput

EPILOG = """\b
Examples:
  viva view                          all runs of this project
  viva view latest                   the newest run; a running one is updated live
  viva view remote:latest            the newest run of the team's history
  viva view --allow-run              start runs and repeat cases from the page
  viva view --no-open --port 8500    print the link only, for a tunnel

The server listens on 127.0.0.1 only. The link works once, in one browser.
"""


@click.command(epilog=EPILOG)
@click.argument("run", required=False)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port to listen on (default: a free one)."
)
@click.option("--no-open", is_flag=True, help="Print the link only.")
@click.option("--allow-run", is_flag=True, help="Let the page start runs and repeat cases.")
@config_option
def command(run: str | None, port: int, no_open: bool, allow_run: bool, config_file: Path | None) -> int:
    """Show all runs in a browser, or RUN (an id or its start, `latest`, `latest~1`, `remote:ID`)."""
    config_file = config_file.resolve() if config_file else None
    history = open_history(config_file)
    report_crashed_runs(history)
    fragment = f"#/runs/{find_run(history, run, config_file).id}" if run else ""
    try:
        from viva.viewer.server import serve
    except ImportError as missing:
        raise BadInput.of(
            f"`viva view` needs the extra `serve` ({missing.name} is missing): pip install 'viva-eval[serve]'"
        ) from missing

    def ready(link: str) -> None:
        print(f"Viva shows {history.home}\n{link}{fragment}\nStop it with Ctrl-C", flush=True)
        if not no_open:
            import webbrowser

            if not webbrowser.open(link + fragment):
                print("No browser could be opened; open the link yourself", file=sys.stderr)

    serve(history, port=port, allow_run=allow_run, config=config_file, on_ready=ready)
    return 0

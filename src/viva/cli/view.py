"""`viva view`: look at runs in a browser."""

import sys
from pathlib import Path

import click

from viva.cli.history import open_history, report_crashed_runs
from viva.errors import BadInput

EPILOG = """\b
Examples:
  viva view                     all runs of this project
  viva view latest              the newest one; a run that goes on streams in
  viva view --allow-run         cases can be run again from the page
  viva view --no-open --port 8500    print the link only, for a tunnel

The server answers on 127.0.0.1 alone, and the link works once, in one browser.
"""


@click.command(epilog=EPILOG)
@click.argument("run", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port (any free one).")
@click.option("--no-open", is_flag=True, help="Print the link, and open no browser.")
@click.option("--allow-run", is_flag=True, help="Let the page start runs and run cases again.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another config than the nearest viva.toml.",
)
def command(run: str | None, port: int, no_open: bool, allow_run: bool, config: Path | None) -> int:
    """Look at runs in a browser: all of them, or RUN (an id, its beginning, `latest`, `latest~1`)."""
    config = config.resolve() if config else None
    history = open_history(config)
    report_crashed_runs(history)
    where = f"#/runs/{history.find_run(run).id}" if run else ""
    try:
        from viva.viewer.server import serve
    except ImportError as missing:
        raise BadInput.of(
            f"`viva view` needs the extra `serve` ({missing.name} is missing): pip install 'viva-eval[serve]'"
        ) from missing

    def ready(link: str) -> None:
        print(f"Viva shows {history.home}\n{link}{where}\nCtrl-C ends it.", flush=True)
        if not no_open:
            import webbrowser

            if not webbrowser.open(link + where):
                print("no browser could be opened here: open the link yourself", file=sys.stderr)

    serve(history, port=port, allow_run=allow_run, config=config, on_ready=ready)
    return 0

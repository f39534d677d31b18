"""The project of the working folder, for the commands that read its config and runs."""

import sys
from pathlib import Path

import click

from viva import config
from viva.history.index import History

config_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Use this config instead of the nearest viva.toml.",
)


def open_history(config_file: Path | None = None) -> History:
    """Return the history of a config's project, by default that of the working folder."""
    file = config_file.resolve() if config_file else config.find_config(Path.cwd())
    return History((file.parent if file else Path.cwd()) / ".viva")


def report_crashed_runs(history: History) -> None:
    """Print once, in one line, which runs stopped unexpectedly and how to continue them."""
    runs = history.take_crashed_runs()
    if len(runs) == 1:
        print(f"Run {runs[0]} stopped unexpectedly; continue with `viva test --resume {runs[0]}`", file=sys.stderr)
    elif runs:
        names = ", ".join(runs[:5]) + (", …" if len(runs) > 5 else "")
        print(f"{len(runs)} runs stopped unexpectedly; continue with `viva test --resume ID`: {names}", file=sys.stderr)

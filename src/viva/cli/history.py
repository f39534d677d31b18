"""Opens the history of a project, for the commands that read runs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from viva import config
from viva.errors import BadInput
from viva.history.index import History, RunRow

if TYPE_CHECKING:
    from viva.history.remote import RemoteHistory

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


def open_remote_history(url: str | None = None, config_file: Path | None = None) -> "RemoteHistory":
    """Open the history that a team shares, at the URL or, without one, at the place that the config names."""
    from viva.history.remote import RemoteHistory  # few commands need it

    settings = config.load_settings(config_file, Path.cwd(), allow_unset=True)
    place = settings.expand_history_settings()
    if (remote := url or place.remote) is None:
        raise BadInput.of('no remote history: pass a URL, or add [history] remote = "s3://bucket/prefix" to viva.toml')
    return RemoteHistory(remote, place.options, settings.redactor.redact_text)


def find_run(history: History, name: str, config_file: Path | None = None) -> RunRow:
    """Find a run of this machine. A run named `remote:RUN` is pulled from the remote history first."""
    prefix, colon, remote_name = name.partition(":")
    if not colon or prefix != "remote":
        return history.find_run(name)
    remote = open_remote_history(config_file=config_file)
    run = remote.find_run(remote_name)
    list(remote.pull(history, [run]))
    return history.find_run(run)


def report_crashed_runs(history: History) -> None:
    """Print once, in one line, which runs stopped unexpectedly and how to continue them."""
    runs = history.pop_crashed_runs()
    if len(runs) == 1:
        print(f"Run {runs[0]} stopped unexpectedly; continue with `viva test --resume {runs[0]}`", file=sys.stderr)
    elif runs:
        names = ", ".join(runs[:5]) + (", …" if len(runs) > 5 else "")
        print(f"{len(runs)} runs stopped unexpectedly; continue with `viva test --resume ID`: {names}", file=sys.stderr)

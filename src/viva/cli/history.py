"""Where the runs of this project are, for the commands that look at them."""

from pathlib import Path

from viva import config
from viva.history.index import History


def history_here(file: Path | None = None) -> History:
    """The history of the project that the working folder belongs to, or of another config's."""
    file = file.resolve() if file else config.find_config(Path.cwd())
    return History((file.parent if file else Path.cwd()) / ".viva")

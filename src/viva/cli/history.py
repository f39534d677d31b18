"""Where the runs of this project are, for the commands that look at them."""

import sys
from pathlib import Path

from viva import config
from viva.history.index import History


def open_history(file: Path | None = None) -> History:
    """The history of the project that the working folder belongs to, or of another config's."""
    file = file.resolve() if file else config.find_config(Path.cwd())
    return History((file.parent if file else Path.cwd()) / ".viva")


def report_crashed_runs(history: History) -> None:
    """Says once, in one line, which runs ended without a word (a crash, a kill) and how to go on with them."""
    match history.take_crashed_runs():
        case []:
            pass
        case [run]:
            print(f"Run {run} stopped unexpectedly; continue with `viva test --resume {run}`", file=sys.stderr)
        case runs:
            named = ", ".join(runs[:5]) + (", …" if len(runs) > 5 else "")
            print(
                f"{len(runs)} runs stopped unexpectedly; continue with `viva test --resume ID`: {named}",
                file=sys.stderr,
            )

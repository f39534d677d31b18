"""The files by which a run shows its state to a viewer in another process, beside the journal.

A viewer that shows a run touches `watched`. A run that is watched writes `live.json` about once a second; one that is not
watched writes nothing, so conversations in flight cost it nothing.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from viva.model import codec
from viva.model.live import LiveView
from viva.record.atomic_files import replace_file
from viva.record.private_files import open_private

_WATCHED_S = 10.0
"""A run counts as watched for this long after a viewer has asked for it."""


def mark_watched(journal: Path) -> None:
    """Asks a run to write its live view for some seconds. Nothing happens if the run has been deleted."""
    with suppress(OSError):
        file = open_private(journal.with_name("watched"), os.O_WRONLY | os.O_CREAT)
        try:
            os.utime(file)
        finally:
            os.close(file)


def is_watched(journal: Path) -> bool:
    try:
        return time.time() - journal.with_name("watched").stat().st_mtime < _WATCHED_S
    except OSError:
        return False


def write_live_view(journal: Path, view: LiveView) -> None:
    replace_file(journal.with_name("live.json"), codec.encode(view), private=True)


def read_live_view(journal: Path) -> LiveView | None:
    """The latest view of a run; None if it wrote none yet, or has ended."""
    try:
        return codec.decode_own(journal.with_name("live.json").read_bytes(), type=LiveView)
    except (OSError, codec.DecodeError):
        return None


def remove_live_files(journal: Path) -> None:
    for name in ("live.json", "watched"):
        with suppress(OSError):
            journal.with_name(name).unlink()

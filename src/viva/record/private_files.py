"""Files and folders that only their owner can read: `.viva`, all that is in it, and cassettes."""

import os
import stat
from contextlib import suppress
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_private(path: Path, flags: int) -> int:
    """Opens a file as `os.open` does; nobody but its owner can read it from then on, also if it was there before."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    _tighten(file)
    return file


def make_private_folder(path: Path) -> None:
    """Makes a folder, and those above it, for their owner alone. One that others can enter is closed, with all that is in it."""
    if not path.parent.is_dir():
        make_private_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        return
    if path.stat().st_mode & _OTHERS:  # an older Viva made it so
        for folder, _, names in os.walk(path.resolve()):
            for each in (folder, *(f"{folder}/{name}" for name in names)):
                _close(each)


def _close(path: str) -> None:
    try:
        # A link is left alone, and so is what a pipe would wait for: nothing outside may be changed.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _tighten(file)
    finally:
        os.close(file)


def _tighten(file: int) -> None:
    mode = os.fstat(file).st_mode
    if mode & _OTHERS and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        with suppress(PermissionError):  # somebody else's: then it is theirs to close
            os.fchmod(file, stat.S_IMODE(mode) & ~_OTHERS)

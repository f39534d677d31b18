"""Files and folders that only their owner can read: `.viva`, everything in it, and cassettes."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from viva.record.atomic_files import replace_file

_PERMISSIONS_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SQLITE = ".sqlite"


def open_private(path: Path, flags: int) -> int:
    """Open a file like `os.open`, and remove the permissions of others, even if the file existed before."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    _remove_permissions_of_others(file)
    return file


def create_private_database(path: Path) -> None:
    """Create an empty SQLite file that only the owner can read, or remove the permissions of others from an existing one.

    An existing file is not opened: closing it would release the locks that SQLite holds on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return
    with suppress(OSError):  # a link to nothing: SQLite says so
        _remove_permissions_of_others(path)


def make_private_folder(path: Path) -> None:
    """Create a folder and its parents for the owner alone. An existing folder that others can enter is closed with its content."""
    if not path.parent.is_dir():
        make_private_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        return
    if path.stat().st_mode & _PERMISSIONS_OF_OTHERS:  # an older Viva made it so
        for folder, _, names in os.walk(path.resolve()):
            files = (name for name in names if _SQLITE not in name)  # `create_private_database` says why
            for entry in (folder, *(f"{folder}/{name}" for name in files)):
                _make_private(entry)


def make_data_folder(path: Path) -> None:
    """Create the `.viva` folder of a project, which git ignores."""
    make_private_folder(path)
    ignore_file = path / ".gitignore"
    if not ignore_file.exists():
        replace_file(ignore_file, b"*\n", private=True)


def _make_private(path: str) -> None:
    try:
        # No link is followed and no pipe is waited for: nothing outside the folder may change.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _remove_permissions_of_others(file)
    finally:
        os.close(file)


def _remove_permissions_of_others(file: int | Path) -> None:
    mode = os.stat(file).st_mode  # noqa: PTH116 -- also of a file descriptor
    if mode & _PERMISSIONS_OF_OTHERS and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        with suppress(PermissionError):  # it belongs to another user
            os.chmod(file, stat.S_IMODE(mode) & ~_PERMISSIONS_OF_OTHERS)  # noqa: PTH101 -- see above

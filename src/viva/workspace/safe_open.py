"""Opens files that an agent has made, or has put something else in the place of."""

import errno
import os
import stat

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


def open_regular_file(path: str, flags: int = os.O_RDONLY, *, make_folders: bool = False) -> int:
    """The ordinary file at an absolute path of which no part is a link; OSError for anything else.

    A path that was looked at before may lead elsewhere by now, or to a pipe that would be waited for without end: so no link
    is followed, and nothing is waited for.
    """
    *above, name = path.strip("/").split("/")
    folder = os.open("/", _FOLDER)
    try:
        for part in above:
            below = _open_folder(part, folder, make=make_folders)
            os.close(folder)
            folder = below
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
    except ValueError as wrong:  # a name with a character that no file has
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path) from wrong
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is no ordinary file", path)
    return file


def _open_folder(name: str, above: int, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    os.mkdir(name, dir_fd=above)
    return os.open(name, _FOLDER, dir_fd=above)

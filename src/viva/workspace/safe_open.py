"""Opens files that an agent wrote or may have replaced by something else."""

import errno
import os
import stat

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


def open_regular_file(path: str, flags: int = os.O_RDONLY, *, make_folders: bool = False) -> int:
    """Open the regular file at an absolute path without links in it; OSError for anything else.

    A path that was checked before may lead elsewhere now, or to a pipe that blocks. So no link is followed and nothing blocks.
    """
    *parents, name = path.strip("/").split("/")
    folder = os.open("/", _FOLDER)
    try:
        for part in parents:
            child = _open_folder(part, folder, make=make_folders)
            os.close(folder)
            folder = child
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
    except ValueError as error:  # for example a NUL in the name
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path) from error
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return file


def _open_folder(name: str, parent: int, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    os.mkdir(name, dir_fd=parent)
    return os.open(name, _FOLDER, dir_fd=parent)

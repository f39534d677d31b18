"""Writing files so that a crash, a full disk or a second process leaves no half of one.

`replacing` and `replace_file` put a whole new file in the place of an old one; `append_whole` and `cut_torn_tail` are for
files that grow line by line. All of them raise OSError: the caller knows which file it is to the user, and what to do.
"""

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_BLOCK = 65536


@contextmanager
def open_replacement(path: Path, *, durable: bool = False, private: bool = False) -> Generator[BinaryIO]:
    """A file that takes the place of `path` when the block ends without an error: readers see the old one or the new one.

    The mode of the old file stays, and a link stays a link. `durable` waits until the disk has the content: for data
    that cannot be made again. Only its owner can read a `private` file.
    """
    target = Path(os.path.realpath(path))
    mode = _mode_of(target)
    draft = target.with_name(f".viva-{secrets.token_hex(6)}.tmp")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
        with os.fdopen(descriptor, "wb", buffering=1 << 18) as out:
            yield out
            if mode is not None and not private:
                os.fchmod(out.fileno(), mode)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        draft.replace(target)
    finally:
        with suppress(OSError):
            draft.unlink()


def replace_file(path: Path, content: bytes, *, durable: bool = False, private: bool = False) -> None:
    """Writes a whole file, as `replacing` does."""
    with open_replacement(path, durable=durable, private=private) as out:
        out.write(content)


def _mode_of(target: Path) -> int | None:
    """The permissions of a file that is there already. What is no ordinary file is never replaced by one."""
    try:
        found = target.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not an ordinary file, and would be replaced by one", str(target))
    return stat.S_IMODE(found.st_mode)


def append_atomically(file: int, raw: bytes, end: int) -> None:
    """Appends all of `raw` to an open file that is `end` bytes long, or leaves it at that length."""
    left = memoryview(raw)
    try:
        while left:
            written = os.write(file, left)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left = left[written:]
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, end)
        raise


def truncate_partial_line(file: int) -> int:
    """Cuts an open file of lines back to its last whole line, and gives its length."""
    size = os.fstat(file).st_size
    end = find_last_line_end(file, size)
    if end != size:
        os.ftruncate(file, end)
    return end


def find_last_line_end(file: int, end: int) -> int:
    """Where the last whole line before `end` ends: behind its line break, or at 0."""
    while end:
        block = os.pread(file, min(end, _BLOCK), max(0, end - _BLOCK))
        newline = block.rfind(b"\n")
        if newline >= 0:
            return end - len(block) + newline + 1
        end -= len(block)
    return 0

"""File writes that leave no half-written file after a crash, a full disk or a concurrent process.

`open_replacement` and `replace_file` replace a whole file. `append_atomically` and `truncate_partial_line` are for files
that grow line by line. All raise OSError; the caller adds which file it is and what to do.
"""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_BLOCK = 65536


@contextmanager
def open_replacement(path: Path, *, durable: bool = False, private: bool = False) -> Generator[BinaryIO]:
    """Open a file that replaces `path` when the block ends without an error. Readers see the old file or the new one.

    The new file keeps the mode of the old one, and a link stays a link. `durable` waits until the content is on disk.
    Only the owner can read a `private` file.
    """
    target = Path(os.path.realpath(path))
    mode = _get_regular_file_mode(target)
    draft = target.with_name(f".viva-{os.urandom(6).hex()}.tmp")
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
    """Replace a whole file by `content`; see `open_replacement`."""
    with open_replacement(path, durable=durable, private=private) as out:
        out.write(content)


def _get_regular_file_mode(target: Path) -> int | None:
    """Return the permissions of an existing file; None if there is none. OSError for a pipe, device or folder."""
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file and will not be replaced", str(target))
    return stat.S_IMODE(status.st_mode)


def append_atomically(file: int, raw: bytes, end: int) -> None:
    """Append all of `raw` to an open file of `end` bytes, or leave the file at that length."""
    left = memoryview(raw)
    try:
        while left:
            count = os.write(file, left)
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left = left[count:]
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, end)
        raise


def truncate_partial_line(file: int) -> int:
    """Truncate an open file to its last complete line and return its new length."""
    size = os.fstat(file).st_size
    end = find_last_line_end(file, size)
    if end != size:
        os.ftruncate(file, end)
    return end


def find_last_line_end(file: int, end: int) -> int:
    """Return the offset behind the last line break before `end`, or 0."""
    while end:
        block = os.pread(file, min(end, _BLOCK), max(0, end - _BLOCK))
        newline = block.rfind(b"\n")
        if newline >= 0:
            return end - len(block) + newline + 1
        end -= len(block)
    return 0

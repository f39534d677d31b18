"""One writer for each run: an exclusive lock on a file beside its journal.

The lock belongs to an open file, so it ends with the process, however that ends. The file says who holds it. A writer that
ends in order empties it; one that was killed leaves its name there, which is how the next command notices.
"""

import errno
import fcntl
import os
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from viva.errors import BadInput

_TRIES = 20
_PAUSE_S = 0.01
"""Readers hold the lock for a moment while they look whether anybody else does: a writer waits that long."""


class LockHolder(Struct, frozen=True):
    """The process that wrote its name into a lock file."""

    pid: int
    start_time: int = 0
    """The kernel's start time of that process; 0 where it is not known. It tells a reused pid from the old process."""
    host: str = ""

    def is_alive(self) -> bool:
        """Is that very process still there? One on another machine cannot be seen from here."""
        if self.host != _here():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # it is there, and belongs to somebody else
        return not self.start_time or _started(self.pid) == self.start_time


class WriterLock:
    """The right to write to one run, from construction until `release`. Raises BadInput where another process has it."""

    def __init__(self, journal: Path) -> None:
        self._file = -1
        self._file = os.open(lock_path(journal), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take(journal)
        except BaseException:
            self._close()
            raise
        _held.add(self)

    def _take(self, journal: Path) -> None:
        for last in (*[False] * _TRIES, True):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if last:
                    raise _in_use(journal, _holder_in(self._file)) from None
            except OSError:  # a file system without locks: the name in the file has to do
                holder = _holder_in(self._file)
                if holder is not None and holder.is_alive():
                    raise _in_use(journal, holder) from None
                break
            time.sleep(_PAUSE_S)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()} {_started(os.getpid())} {_here()}\n".encode(), 0)

    def release(self) -> None:
        """Says that the writer has ended in order, and lets others write."""
        if self._file >= 0:
            with suppress(OSError):
                os.ftruncate(self._file, 0)
            self._close()

    def abandon(self) -> None:
        """Gives up the lock without saying that all is well: the run counts as cut off."""
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self._close()


_held: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child that outlives its parent must not keep the parent's lock."""
    for lock in list(_held):
        lock.abandon()


os.register_at_fork(after_in_child=_forget_in_child)


def lock_path(journal: Path) -> Path:
    """The lock of a journal."""
    return journal.with_suffix(".lock")


def is_in_use(journal: Path) -> bool:
    """Does some process write to this journal?"""
    with _looking(journal) as (file, is_free):
        return file >= 0 and not is_free


def find_holder(journal: Path) -> LockHolder | None:
    """The process that writes to this journal now."""
    with _looking(journal) as (file, is_free):
        return _holder_in(file) if file >= 0 and not is_free else None


def has_crashed(journal: Path, *, acknowledge: bool = False) -> bool:
    """Did the last writer of this journal end without releasing its lock? `forget` makes this the last time it is said."""
    try:
        if not lock_path(journal).stat().st_size:  # most have ended in order: nothing needs to be opened
            return False
    except OSError:
        return False
    with _looking(journal) as (file, is_free):
        if file < 0 or not is_free or _holder_in(file) is None:
            return False
        if acknowledge:
            with suppress(OSError):
                os.truncate(lock_path(journal), 0)
        return True


@contextmanager
def _looking(journal: Path) -> Generator[tuple[int, bool]]:
    """The open lock file (-1: there is none), and whether nobody holds it; nobody can take it meanwhile."""
    try:
        file = os.open(lock_path(journal), os.O_RDONLY)
    except OSError:
        yield -1, True
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_free = True
        except BlockingIOError:
            is_free = False
        except OSError:  # a file system without locks
            holder = _holder_in(file)
            is_free = holder is None or not holder.is_alive()
        yield file, is_free
    finally:
        os.close(file)


def _in_use(journal: Path, holder: LockHolder | None) -> BadInput:
    who = f"process {holder.pid}" if holder else "another process"
    if holder and holder.host != _here():
        who += f" on {holder.host}"
    return BadInput.of(f"run {journal.parent.name} is in use by {who}; wait until it ends, or stop it")


def _holder_in(file: int) -> LockHolder | None:
    try:
        pid, started, host = os.pread(file, 1000, 0).decode().split()
        return LockHolder(int(pid), int(started), host)
    except (OSError, ValueError):
        return None


def _here() -> str:
    return os.uname().nodename or "-"


def _started(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0 where the system does not say."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(after_name[19])
    except (OSError, ValueError, IndexError):
        return 0


@contextmanager
def exclusive_lock(path: Path) -> Generator[int]:
    """The open file `path`, for this process alone; others wait. Where the file system has no locks, nobody waits."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as wrong:
            if wrong.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
                raise
        yield file
    finally:
        os.close(file)

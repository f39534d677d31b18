"""File locks: one writer per run, by an exclusive lock on a file beside its journal.

The lock belongs to an open file, so it ends with the process. The file names the process that holds it. A writer that
ends normally empties the file; a killed one does not, which is how the next command notices.
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

_TRIES = 100
_PAUSE_S = 0.01
"""Readers hold the lock for a moment to see whether it is free; a writer waits that long."""
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)


class LockHolder(Struct, frozen=True):
    """The process named in a lock file."""

    pid: int
    start_time: int = 0
    """The kernel's start time of the process, which tells a reused pid from the old process; 0 if unknown."""
    host: str = ""

    def is_alive(self) -> bool:
        """Return whether this process still runs. A process on another machine is not visible."""
        if self.host != _get_host_name():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # it runs, and belongs to another user
        return not self.start_time or _get_process_start_time(self.pid) == self.start_time


class WriterLock:
    """The right to write to one run, from construction until `release`. BadInput if another process has it."""

    def __init__(self, journal: Path) -> None:
        self._file = -1
        self._file = os.open(get_lock_path(journal), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._acquire(journal)
        except BaseException:
            self._close()
            raise
        _locks.add(self)

    def _acquire(self, journal: Path) -> None:
        for is_last in (*[False] * _TRIES, True):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if is_last:
                    raise _create_in_use_error(journal, _read_holder(self._file)) from None
            except OSError:  # a file system without locks: go by the process named in the file
                holder = _read_holder(self._file)
                if holder is not None and holder.is_alive():
                    raise _create_in_use_error(journal, holder) from None
                break
            time.sleep(_PAUSE_S)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()} {_get_process_start_time(os.getpid())} {_get_host_name()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock after a normal end."""
        if self._file >= 0:
            with suppress(OSError):
                os.ftruncate(self._file, 0)
            self._close()

    def abandon(self) -> None:
        """Release the lock without a normal end: the run counts as stopped unexpectedly."""
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self._close()


_locks: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


def _abandon_in_child() -> None:
    """Give up the locks in a forked child: if it outlives its parent, it must not hold them."""
    for lock in list(_locks):
        lock.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)


def get_lock_path(journal: Path) -> Path:
    return journal.with_suffix(".lock")


def is_journal_in_use(journal: Path) -> bool:
    """Return whether a process writes to this journal."""
    with _inspect_lock(journal) as (file, is_free):
        return file >= 0 and not is_free


def find_lock_holder(journal: Path) -> LockHolder | None:
    """Return the process that writes to this journal."""
    with _inspect_lock(journal) as (file, is_free):
        return _read_holder(file) if file >= 0 and not is_free else None


def has_writer_crashed(journal: Path, *, acknowledge: bool = False) -> bool:
    """Return whether the last writer ended without releasing its lock. With `acknowledge`, the next call returns False."""
    try:
        if not get_lock_path(journal).stat().st_size:  # the usual case, without opening the file
            return False
    except OSError:
        return False
    with _inspect_lock(journal) as (file, is_free):
        if file < 0 or not is_free or _read_holder(file) is None:
            return False
        if acknowledge:
            with suppress(OSError):
                os.truncate(get_lock_path(journal), 0)
        return True


@contextmanager
def _inspect_lock(journal: Path) -> Generator[tuple[int, bool]]:
    """The open lock file (-1 if there is none) and whether it is free. A free lock cannot be taken meanwhile."""
    try:
        file = os.open(get_lock_path(journal), os.O_RDONLY)
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
            holder = _read_holder(file)
            is_free = holder is None or not holder.is_alive()
        yield file, is_free
    finally:
        os.close(file)


def _create_in_use_error(journal: Path, holder: LockHolder | None) -> BadInput:
    process = f"process {holder.pid}" if holder else "another process"
    if holder and holder.host != _get_host_name():
        process += f" on {holder.host}"
    return BadInput.of(f"run {journal.parent.name} is in use by {process}; wait until it ends, or stop it")


def _read_holder(file: int) -> LockHolder | None:
    try:
        pid, start_time, host = os.pread(file, 1000, 0).decode().split()
        return LockHolder(int(pid), int(start_time), host)
    except (OSError, ValueError):
        return None


def _get_host_name() -> str:
    return os.uname().nodename or "-"


def _get_process_start_time(pid: int) -> int:
    """Return the start of a process in ticks since boot; 0 if the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


@contextmanager
def open_exclusively(path: Path) -> Generator[int]:
    """Open a file under an exclusive lock, for which other processes wait. A file system without locks has no waiting."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        yield file
    finally:
        os.close(file)

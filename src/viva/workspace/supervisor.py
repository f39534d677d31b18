"""Stands between Viva and a command, so that nothing which the command starts outlives it.

A script of its own, with the standard library only: `python -I -S supervisor.py CONTROL GRACE_S FORGET LIMIT COMMAND...`.
It tells `exit CODE` or `failed ERRNO` on the socket CONTROL, and ends all that is left of the command's family when the
command has ended, when it hears anything there, or when nobody is there any more: then Viva itself was killed. With a
LIMIT other than 0 standard output is a file, and a command that makes it larger than that is ended too.

On Linux those that fork away and leave their session come back to it, as to an init, and are found by their parents.
Elsewhere only the command's own process group can be ended; a daemon that has left it lives on.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_LINUX = sys.platform == "linux"
_LOOK_S = 0.05
_KILL_S = 5.0
"""What does not die of KILL in this time hangs in the kernel: nobody can end it."""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    for name in sys.argv[3].split(","):
        os.environ.pop(name, None)
    wake, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    if _LINUX:
        _prctl(_SET_CHILD_SUBREAPER, 1)
    pid, limit = _started(control, sys.argv[5:]), int(sys.argv[4])
    family = _Family(pid, control, wake, _File(os.dup(1), limit) if limit else None)
    _leave_streams()
    family.wait()
    family.end(float(sys.argv[2]))


def _started(control: socket.socket, command: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        if _LINUX:
            _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 -- no shell is the point
    except OSError as wrong:
        control.send(f"failed {wrong.errno}\n".encode())
    finally:
        os._exit(127)


def _leave_streams() -> None:
    """Their end shall come when the command and its family have closed them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


class _File:
    """The file that the command prints to, and how large it may become."""

    def __init__(self, fd: int, limit: int) -> None:
        self._fd, self._limit = fd, limit

    def is_full(self) -> bool:
        return os.fstat(self._fd).st_size > self._limit


class _Family:
    """The command and all that came of it."""

    def __init__(self, pid: int, control: socket.socket, wake: socket.socket, printed: _File | None) -> None:
        self._pid, self._control, self._wake, self._printed = pid, control, wake, printed
        self._ended = False

    def wait(self) -> None:
        """Until the command has ended, or shall."""
        while not self._ended and not self._has_printed_too_much():
            ready, _, _ = select.select([self._control, self._wake], [], [], _LOOK_S if self._printed else None)
            if self._wake in ready:
                told = self._wake.recv(4096)
                if set(told) - {signal.SIGCHLD}:
                    return
                self._reap()
            if self._control in ready:
                return

    def end(self, grace_s: float) -> None:
        for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_S)):
            due, told = time.monotonic() + limit_s, set[int]()
            while (left := set(self._living())) and time.monotonic() < due:
                if number == signal.SIGTERM and self._has_printed_too_much():
                    break  # it would go on for all of its grace
                for pid in left - told if number == signal.SIGTERM else left:
                    with suppress(OSError):
                        os.kill(pid, number)
                told |= left
                select.select([self._wake], [], [], 0.02)
                self._reap()
        self._reap()

    def _has_printed_too_much(self) -> bool:
        return self._printed is not None and self._printed.is_full()

    def _living(self) -> Iterator[int]:
        if _LINUX:
            yield from find_descendants(os.getpid())
            return
        try:
            os.killpg(self._pid, 0)
            yield -self._pid
        except OSError:
            return

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            self._wake.setblocking(False)
            self._wake.recv(4096)
        self._wake.setblocking(True)
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._pid:
                    self._ended = True
                    with suppress(OSError):
                        self._control.send(f"exit {os.waitstatus_to_exitcode(found[1])}\n".encode())


def find_descendants(root: int) -> list[int]:
    """All living processes that came of this one, by what Linux says of their parents."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (parent := find_parent(int(name))) is not None:
            children.setdefault(parent, []).append(int(name))
    found, waiting = list[int](), [root]
    while waiting:
        waiting += (came := children.get(waiting.pop(), []))
        found += came
    return found


def find_parent(pid: int) -> int | None:
    """None for a dead one. One whose first thread alone has ended looks like a zombie, and keeps its children."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state, parent, threads = fields[0], int(fields[1]), int(fields[17])
    return None if state in (b"Z", b"X") and threads < 2 else parent


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()

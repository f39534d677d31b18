"""Runs a command for Viva so that none of its processes outlives it.

A script that uses only the standard library: `python -I -S supervisor.py CONTROL GRACE_S UNSET LIMIT COMMAND...`. It
reports `exit CODE` or `failed ERRNO` on the socket CONTROL. It ends all processes of the command when the command has
ended, when it receives anything on the socket, or when the socket closes because Viva was killed. With a LIMIT other
than 0 standard output is a file, and a command that makes it larger is ended too.

On Linux detached processes are adopted by the supervisor and found by their parents. On other systems only the process
group of the command can be ended; a daemon that left it stays.
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
_POLL_S = 0.05
_KILL_S = 5.0
"""A process that KILL does not end in this time hangs in the kernel."""


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
        _call_prctl(_SET_CHILD_SUBREAPER, 1)
    pid, limit = _start_command(control, sys.argv[5:]), int(sys.argv[4])
    tree = _ProcessTree(pid, control, wake, _OutputFile(os.dup(1), limit) if limit else None)
    _close_streams()
    tree.wait_until_ending()
    tree.end_all_processes(float(sys.argv[2]))


def _start_command(control: socket.socket, command: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        if _LINUX:
            _call_prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would inherit that
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 -- no shell is the point
    except OSError as error:
        control.send(f"failed {error.errno}\n".encode())
    finally:
        os._exit(127)


def _close_streams() -> None:
    """Close the standard streams here, so that they end with the processes of the command."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


class _OutputFile:
    """The file with the output of the command, and its maximum size."""

    def __init__(self, fd: int, limit: int) -> None:
        self._fd, self._limit = fd, limit

    def is_full(self) -> bool:
        return os.fstat(self._fd).st_size > self._limit


class _ProcessTree:
    """The command and all its processes."""

    def __init__(self, pid: int, control: socket.socket, wake: socket.socket, output: _OutputFile | None) -> None:
        self._pid, self._control, self._wake, self._output = pid, control, wake, output
        self._ended = False

    def wait_until_ending(self) -> None:
        """Wait until the command has ended, or must be ended."""
        while not self._ended and not self._is_output_full():
            ready = _wait_for_input([self._control, self._wake], _POLL_S if self._output else None)
            if self._wake in ready:
                signals = self._wake.recv(4096)
                if set(signals) - {signal.SIGCHLD}:
                    return
                self._collect_ended_processes()
            if self._control in ready:
                return

    def end_all_processes(self, grace_s: float) -> None:
        for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_S)):
            deadline, signalled = time.monotonic() + limit_s, set[int]()
            while (left := set(self._iter_running_processes())) and time.monotonic() < deadline:
                if number == signal.SIGTERM and self._is_output_full():
                    break  # it would print on during the grace period
                for pid in left - signalled if number == signal.SIGTERM else left:
                    with suppress(OSError):
                        os.kill(pid, number)
                signalled |= left
                _wait_for_input([self._wake], 0.02)
                self._collect_ended_processes()
        self._collect_ended_processes()

    def _is_output_full(self) -> bool:
        return self._output is not None and self._output.is_full()

    def _iter_running_processes(self) -> Iterator[int]:
        if _LINUX:
            yield from find_descendants(os.getpid())
            return
        try:
            os.killpg(self._pid, 0)
            yield -self._pid
        except OSError:
            return

    def _collect_ended_processes(self) -> None:
        with suppress(BlockingIOError):
            self._wake.setblocking(False)
            self._wake.recv(4096)
        self._wake.setblocking(True)
        with suppress(ChildProcessError):
            while (status := os.waitpid(-1, os.WNOHANG))[0]:
                if status[0] == self._pid:
                    self._ended = True
                    with suppress(OSError):
                        self._control.send(f"exit {os.waitstatus_to_exitcode(status[1])}\n".encode())


def _wait_for_input(sockets: list[socket.socket], limit_s: float | None) -> list[socket.socket]:
    """Return the sockets that can be read, none after the time limit. `select` would refuse descriptors over 1023."""
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    ready = {number for number, _ in poll.poll(None if limit_s is None else limit_s * 1000)}
    return [each for each in sockets if each.fileno() in ready]


def find_descendants(root: int) -> list[int]:
    """Return all running descendants of a process, from /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (parent := find_parent(int(name))) is not None:
            children.setdefault(parent, []).append(int(name))
    descendants, waiting = list[int](), [root]
    while waiting:
        new = children.get(waiting.pop(), [])
        waiting += new
        descendants += new
    return descendants


def find_parent(pid: int) -> int | None:
    """Return the parent; None for a dead process. One whose first thread ended looks like a zombie but has children."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state, parent, threads = fields[0], int(fields[1]), int(fields[17])
    return None if state in (b"Z", b"X") and threads < 2 else parent


def _call_prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()

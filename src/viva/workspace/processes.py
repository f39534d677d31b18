"""Runs the commands of agents, each in its own session, with bounded output, and ends all their child processes.

    async with run_command(argv, cwd=workspace.path, env=environment) as process:
        async for line in process.lines(): ...
        code = await process.wait()

However the block ends (time-out, cancel, Ctrl-C, an error), all processes of the command get TERM, then KILL. What they
printed before can still be read. A supervisor does this (`supervisor.py`), also if Viva itself is killed. The processes
have VIVA_TRIAL in their environment, so that `kill_orphans` can end what even a killed supervisor left behind.
"""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from viva.errors import AgentFailed, Undetermined, Unreachable
from viva.model.ellipsis import decode_end
from viva.workspace import supervisor
from viva.workspace.output import CommandOutput, create_output_file, create_pipe

T = TypeVar("T")
TRIAL_VARIABLE = "VIVA_TRIAL"
GRACE_S = 3.0
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_BYTES = 64 * 1024 * 1024
_LINE_COST_BYTES = 128
"""What each line counts in addition to its length: millions of short lines take much more memory than their bytes."""
STDERR_BYTES = 16 * 1024
_RETRY_S = 0.05
_OVERDUE_S = 15.0
"""A supervisor counts as hung after this time. It needs a few seconds for processes that KILL does not end at once."""


class CommandLimits(Struct, frozen=True):
    """`grace_s` is the time between TERM and KILL."""

    grace_s: float = GRACE_S
    max_line_bytes: int = MAX_LINE_BYTES
    max_bytes: int = MAX_BYTES


class Process:
    """A running command. `overlong_lines` and `has_overflowed` tell which output was dropped."""

    def __init__(
        self,
        command: subprocess.Popen[bytes],
        control: socket.socket,
        out: CommandOutput,
        err: CommandOutput,
        *,
        name: str,
        limits: CommandLimits,
    ) -> None:
        self._name = name
        self._command = command
        self._control = control
        self._limits = limits
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._out, self._err = out, err
        self._stdin: asyncio.StreamWriter | None = None
        self._stderr = bytearray()
        self._is_stderr_cut = False
        self._complete_lines: deque[bytes] = deque()
        self._partial_line: list[bytes] = []
        self._partial_size = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.output_bytes = 0
        self._line_count = 0
        self.overlong_lines = 0
        self.has_overflowed = False

    @property
    def stderr_tail(self) -> str:
        """The end of its standard error."""
        return decode_end(self._stderr) if self._is_stderr_cut else self._stderr.decode(errors="replace")

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of standard output as they arrive. Output over the limits is dropped and counted.

        Reading can stop and continue later, also after the command has ended.
        """
        while True:
            while self._complete_lines:
                yield self._complete_lines.popleft()
            if not (chunk := await self._out.read()):
                break
            self._add_chunk_within_limits(chunk)
        if self._partial_size and not self.has_overflowed:
            self._split_chunk_into_lines(b"\n")
            while self._complete_lines:
                yield self._complete_lines.popleft()

    def _add_chunk_within_limits(self, chunk: bytes) -> None:
        self.output_bytes += len(chunk)
        self._line_count += chunk.count(b"\n")
        size = self.output_bytes + self._line_count * _LINE_COST_BYTES
        self.has_overflowed = self.has_overflowed or size > self._limits.max_bytes
        if not self.has_overflowed:  # drop it, but read it: a full pipe would block the command
            self._split_chunk_into_lines(chunk)

    def _split_chunk_into_lines(self, chunk: bytes) -> None:
        """Split a chunk into lines; the last one stays partial."""
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            if self._partial_size + len(piece) > self._limits.max_line_bytes:
                self.overlong_lines += 1
            else:
                self._complete_lines.append(b"".join((*self._partial_line, piece)).removesuffix(b"\r"))
            self._partial_line, self._partial_size = [], 0
        self._partial_size += len(rest)
        if self._partial_size > self._limits.max_line_bytes:
            self._partial_line = []
        elif rest:
            self._partial_line.append(rest)

    async def send(self, data: bytes) -> None:
        """Write to its standard input, if it was started with one."""
        assert self._stdin is not None
        self._stdin.write(data)
        await self._stdin.drain()

    def close_stdin(self) -> None:
        if self._stdin is not None:
            self._stdin.close()

    async def wait(self) -> int:
        """Return its exit code, negative for a signal, and drop further output. Unreachable if it could not start."""
        async for _ in self.lines():
            pass
        return await asyncio.shield(self._code)

    async def terminate(self) -> None:
        """End the command and all its processes; return when none is left."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(self._limits.grace_s + _OVERDUE_S):
                while self._command.poll() is None:  # noqa: ASYNC110 -- no event works with every event loop
                    await asyncio.sleep(0.005)
        except TimeoutError:
            self._command.kill()
            self._command.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # both end with the supervisor
        while chunk := self._out.read_available():  # output not read yet
            self._add_chunk_within_limits(chunk)
        self._close()

    async def start_io(self, *, stdin: bool) -> None:
        if stdin:
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, self._command.stdin)
            self._stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        self._tasks += [asyncio.ensure_future(self._read_stderr()), asyncio.ensure_future(self._read_control())]

    async def _read_stderr(self) -> None:
        while chunk := await self._err.read():
            self._stderr += chunk
            self._is_stderr_cut = self._is_stderr_cut or len(self._stderr) > STDERR_BYTES
            del self._stderr[:-STDERR_BYTES]

    async def _read_control(self) -> None:
        """Read the supervisor's reports. Its end means that all processes of the command are gone."""
        report = b""
        while chunk := await self._receive_report():
            report += chunk
            self._apply_supervisor_report(report)
        if not self._code.done():
            self._code.set_result(-signal.SIGKILL)  # the supervisor was killed, and the command with it
        for output in (self._out, self._err):  # a process that hangs in the kernel may keep them open
            output.finish()

    async def _receive_report(self) -> bytes:
        """Return the next bytes; empty at the end. An error is the end only if the supervisor is gone."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.sock_recv(self._control, 4096)
            except OSError:
                if self._command.poll() is not None:
                    return b""
                await asyncio.sleep(_RETRY_S)

    def _apply_supervisor_report(self, report: bytes) -> None:
        for line in report.decode().splitlines():
            kind, _, number = line.partition(" ")
            if self._code.done() or not number:
                continue
            if kind == "failed":
                reason = os.strerror(int(number))
                self._code.set_exception(Unreachable(f"{self._name}: cannot be started: {reason}"))
                self._code.exception()  # marks the exception as seen
            elif kind == "exit":
                self._code.set_result(int(number))

    def _close(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
        for output in (self._out, self._err):
            output.close()
        self._control.close()


@asynccontextmanager
async def run_command(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdin: bool = False,
    to_file: bool = False,
    limits: CommandLimits = CommandLimits(),  # noqa: B008 -- frozen
) -> AsyncGenerator[Process]:
    """Run a command in its own session, without standard input unless `stdin` is set.

    With `to_file` its standard output is a file: programs in JavaScript lose output at exit that a pipe does not take at
    once. A file never blocks the command, so one that prints more than `max_bytes` is ended. AgentFailed if the folder is
    gone; Unreachable if the command cannot be started.
    """
    if not os.path.isdir(cwd):  # noqa: ASYNC240 -- one fast call
        raise AgentFailed(f"its working folder is gone: {cwd}")
    with ExitStack() as theirs, ExitStack() as ours:
        try:
            control, their_control = socket.socketpair()
            theirs.enter_context(their_control)
            ours.enter_context(control)
            out, their_out = create_output_file(env.get("TMPDIR"), limits.max_bytes) if to_file else create_pipe()
            theirs.callback(os.close, their_out)
            ours.callback(out.close)
            err, their_err = create_pipe()
            theirs.callback(os.close, their_err)
            ours.callback(err.close)
            command = subprocess.Popen(  # noqa: ASYNC220 -- a few milliseconds, and the same with every event loop
                _build_supervisor_command(
                    argv, their_control.fileno(), limits.grace_s, env, limits.max_bytes if to_file else 0
                ),
                cwd=cwd,
                env={**env, TRIAL_VARIABLE: _create_trial_id()},
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=their_out,
                stderr=their_err,
                pass_fds=(their_control.fileno(),),
                start_new_session=True,
            )
        except OSError as error:  # too many processes or files, too long a command line
            raise Unreachable(f"{argv[0]}: cannot be started: {error.strerror}") from error
        except ValueError as error:  # for example a NUL in a message
            raise Undetermined(f"{argv[0]}: cannot be started: {error}", deterministic=True) from error
        ours.pop_all()
    control.setblocking(False)
    process = Process(command, control, out, err, name=argv[0], limits=limits)
    try:
        await process.start_io(stdin=stdin)
        yield process
    finally:
        await run_to_completion(process.terminate())


def _build_supervisor_command(
    argv: Sequence[str], control: int, grace_s: float, env: Mapping[str, str], limit: int
) -> list[str]:
    # Python sets LC_CTYPE for itself if there is no locale; the command must not get it.
    unset_variables = "" if "LC_CTYPE" in env else "LC_CTYPE"
    return [
        sys.executable,
        "-I",
        "-S",
        supervisor.__file__,
        str(control),
        str(grace_s),
        unset_variables,
        str(limit),
        *argv,
    ]


async def run_to_completion(work: Awaitable[T]) -> T:
    """Finish the work despite cancellation, and raise the cancellation afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while True:
        try:
            result = await asyncio.shield(task)
            break
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return result


def _create_trial_id() -> str:
    """Return an id that names the owner of a process: `namespace-pid-start-random`."""
    pid = os.getpid()
    return f"{_get_pid_namespace()}-{pid}-{get_process_start_time(pid)}-{secrets.token_hex(4)}"


@cache
def _get_pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        return "0"


def get_process_start_time(pid: int) -> int:
    """Return the start of a process in kernel ticks; 0 if there is none or the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def find_trial_processes() -> dict[int, str]:
    """Return the running processes of trials and their ids. Only Linux tells; elsewhere the result is empty."""
    processes: dict[int, str] = {}
    prefix = f"{TRIAL_VARIABLE}=".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environ = (folder / "environ").read_bytes()
            if prefix not in environ:
                continue
            trial_id = next((variable for variable in environ.split(b"\0") if variable.startswith(prefix)), None)
            if trial_id is not None:
                processes[int(folder.name)] = trial_id.removeprefix(prefix).decode(errors="replace")
    return processes


def _may_be_running(pid: int, start: int) -> bool:
    """Is this process running? True also if the system does not tell, for example without free file descriptors."""
    try:
        os.stat(f"/proc/{pid}")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return get_process_start_time(pid) in (start, 0)


def kill_orphans() -> list[int]:
    """Kill processes of runs whose Viva is gone, never those of a running one, in any container."""
    ended: list[int] = []
    for pid, trial_id in find_trial_processes().items():
        namespace, _, rest = trial_id.partition("-")
        owner, _, rest = rest.partition("-")
        start = rest.partition("-")[0]
        if namespace != _get_pid_namespace() or not owner.isdecimal() or not start.isdecimal() or start == "0":
            continue
        if not _may_be_running(int(owner), int(start)):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                ended.append(pid)
    return ended

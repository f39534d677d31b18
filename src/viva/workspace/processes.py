"""Commands that an agent is made of: each in a session of its own, with bounded output, and never outlived by its family.

    async with running(argv, cwd=workspace.path, env=environment) as process:
        async for line in process.lines(): ...
        code = await process.wait()

However the block is left (time-out, cancel, Ctrl-C, an error), all that the command has started is told TERM, then KILL.
What it printed up to then can still be read: its output ends when all who could write to it have closed it or are gone,
never after a time of silence. A supervisor sees to it (`supervisor.py`), also when Viva itself is killed. All of them carry VIVA_TRIAL in their
environment, so that `sweep` can end what even a killed supervisor has left.
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
from typing import Any, TypeVar

from viva.errors import AgentFailed, Undetermined, Unreachable
from viva.workspace import supervisor
from viva.workspace.output import CommandOutput, create_output_file, create_pipe

T = TypeVar("T")
TRIAL_VARIABLE = "VIVA_TRIAL"
GRACE_S = 3.0
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_BYTES = 64 * 1024 * 1024
STDERR_BYTES = 16 * 1024
_OVERDUE_S = 15.0
"""So long after its time a supervisor is taken for hung. It needs a few seconds for what does not die of KILL at once."""


class Process:
    """A command that runs. `overlong_lines` and `overflowed` say what of its output was read and thrown away."""

    def __init__(
        self,
        command: subprocess.Popen[bytes],
        control: socket.socket,
        out: CommandOutput,
        err: CommandOutput,
        *,
        grace_s: float,
        max_line_bytes: int,
        max_bytes: int,
    ) -> None:
        self._command = command
        self._control = control
        self._grace_s, self._max_line, self._max_bytes = grace_s, max_line_bytes, max_bytes
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._out, self._err = out, err
        self._stdin: asyncio.StreamWriter | None = None
        self._tail = bytearray()
        self._whole: deque[bytes] = deque()
        self._begun: list[bytes] = []
        self._size = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.output_bytes = 0
        self.overlong_lines = 0
        self.has_overflowed = False

    @property
    def stderr_tail(self) -> str:
        """The last that it said on its standard error."""
        return self._tail.decode(errors="replace")

    async def lines(self) -> AsyncIterator[bytes]:
        """Each line of standard output without its end, as it comes. What is over the limits is left out, and noted.

        Whoever stops reading can go on later, also after the command was ended.
        """
        while True:
            while self._whole:
                yield self._whole.popleft()
            if not (chunk := await self._out.read()):
                break
            self._count(chunk)
        if self._size and not self.has_overflowed:
            self._take(b"\n")
            while self._whole:
                yield self._whole.popleft()

    def _count(self, chunk: bytes) -> None:
        self.output_bytes += len(chunk)
        self.has_overflowed = self.has_overflowed or self.output_bytes > self._max_bytes
        if not self.has_overflowed:  # else it was read all the same: a full pipe would stop the command
            self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        """Adds to the line that has begun, and ends it, and so on."""
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            if self._size + len(piece) > self._max_line:
                self.overlong_lines += 1
            else:
                self._whole.append(b"".join((*self._begun, piece)).removesuffix(b"\r"))
            self._begun, self._size = [], 0
        self._size += len(rest)
        if self._size > self._max_line:
            self._begun = []
        elif rest:
            self._begun.append(rest)

    async def send(self, data: bytes) -> None:
        """Writes to its standard input, where it was started with one."""
        assert self._stdin is not None
        self._stdin.write(data)
        await self._stdin.drain()

    def close_stdin(self) -> None:
        """Nothing more will be sent."""
        if self._stdin is not None:
            self._stdin.close()

    async def wait(self) -> int:
        """Its exit code, negative for a signal; what it still has to say is thrown away. Unreachable if it could not start."""
        async for _ in self.lines():
            pass
        return await asyncio.shield(self._code)

    async def terminate(self) -> None:
        """Ends the command and all that came of it; returns when none of them is left."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(self._grace_s + _OVERDUE_S):
                while self._command.poll() is None:  # noqa: ASYNC110 -- no event tells it under every kind of loop
                    await asyncio.sleep(0.005)
        except TimeoutError:
            self._command.kill()
            self._command.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # with the supervisor gone, both come to their end
        while chunk := self._out.read_available():  # what nobody has read yet
            self._count(chunk)
        self._close()

    async def start_io(self, *, stdin: bool) -> None:
        if stdin:
            loop = asyncio.get_running_loop()
            writing, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, self._command.stdin)
            self._stdin = asyncio.StreamWriter(writing, protocol, None, loop)
        self._tasks += [asyncio.ensure_future(self._keep_tail()), asyncio.ensure_future(self._listen())]

    async def _keep_tail(self) -> None:
        while chunk := await self._err.read():
            self._tail += chunk
            del self._tail[:-STDERR_BYTES]

    async def _listen(self) -> None:
        """What the supervisor tells: how the command ended and, by falling silent, that all of its family is gone."""
        loop = asyncio.get_running_loop()
        told = b""
        with suppress(OSError):
            while chunk := await loop.sock_recv(self._control, 4096):
                told += chunk
                self._settle(told)
        if not self._code.done():
            self._code.set_result(-signal.SIGKILL)  # the supervisor was killed, and the command with it
        for output in (
            self._out,
            self._err,
        ):  # what hangs in the kernel may hold them open for ever, but writes nothing
            output.finish()

    def _settle(self, told: bytes) -> None:
        for line in told.decode().splitlines():
            word, _, number = line.partition(" ")
            if self._code.done() or not number:
                continue
            if word == "failed":
                argv = _command_of(self._command)
                self._code.set_exception(Unreachable(f"{argv}: cannot be started: {os.strerror(int(number))}"))
                self._code.exception()  # nobody has to ask
            elif word == "exit":
                self._code.set_result(int(number))

    def _close(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
        for output in (self._out, self._err):
            output.close()
        self._control.close()


def _command_of(command: "subprocess.Popen[bytes]") -> str:
    arguments: Any = command.args
    return str(arguments[_AHEAD])


_AHEAD = 8
"""So many arguments of the supervisor's own stand before the command."""


@asynccontextmanager
async def run_command(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdin: bool = False,
    grace_s: float = GRACE_S,
    max_line_bytes: int = MAX_LINE_BYTES,
    max_bytes: int = MAX_BYTES,
    to_file: bool = False,
) -> AsyncGenerator[Process]:
    """The command while it runs, in its own session, with nothing on standard input unless `stdin` is asked for.

    With `to_file` its standard output is a file, which takes all at once: programs in JavaScript lose what a pipe does not
    take at once when they exit. Since a file never makes it wait, a command that prints more than `max_bytes` is ended.
    AgentFailed if the folder is gone; Unreachable if the command cannot be started.
    """
    if not os.path.isdir(cwd):  # noqa: ASYNC240 -- one quick look
        raise AgentFailed(f"the folder that it works in is gone: {cwd}")
    with ExitStack() as theirs, ExitStack() as ours:
        try:
            control, their_control = socket.socketpair()
            theirs.enter_context(their_control)
            ours.enter_context(control)
            out, their_out = create_output_file(env.get("TMPDIR"), max_bytes) if to_file else create_pipe()
            theirs.callback(os.close, their_out)
            ours.callback(out.close)
            err, their_err = create_pipe()
            theirs.callback(os.close, their_err)
            ours.callback(err.close)
            command = subprocess.Popen(  # noqa: ASYNC220 -- a few milliseconds; it is the same under every kind of loop
                _supervised(argv, their_control.fileno(), grace_s, env, max_bytes if to_file else 0),
                cwd=cwd,
                env={**env, TRIAL_VARIABLE: _new_mark()},
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=their_out,
                stderr=their_err,
                pass_fds=(their_control.fileno(),),
                start_new_session=True,
            )
        except OSError as wrong:  # too many processes or files, too long a command line
            raise Unreachable(f"{argv[0]}: cannot be started: {wrong.strerror}") from wrong
        except ValueError as wrong:  # a message with a character that no command line can hold
            raise Undetermined(f"{argv[0]}: cannot be started: {wrong}") from wrong
        ours.pop_all()
    control.setblocking(False)
    process = Process(command, control, out, err, grace_s=grace_s, max_line_bytes=max_line_bytes, max_bytes=max_bytes)
    try:
        await process.start_io(stdin=stdin)
        yield process
    finally:
        await run_to_completion(process.terminate())


def _supervised(argv: Sequence[str], control: int, grace_s: float, env: Mapping[str, str], limit: int) -> list[str]:
    # Python gives itself an LC_CTYPE where there is no locale; the command shall not see it.
    forget = "" if "LC_CTYPE" in env else "LC_CTYPE"
    return [sys.executable, "-I", "-S", supervisor.__file__, str(control), str(grace_s), forget, str(limit), *argv]


async def run_to_completion(work: Awaitable[T]) -> T:
    """Finishes the work, however often it is cancelled meanwhile; the cancellation then goes on."""
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


def _new_mark() -> str:
    """Names the one who answers for a process: `namespace-pid-start-random`."""
    pid = os.getpid()
    return f"{_namespace()}-{pid}-{process_start_time(pid)}-{secrets.token_hex(4)}"


@cache
def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        return "0"


def process_start_time(pid: int) -> int:
    """When a process began, in the kernel's own count; 0 if there is none, or if nobody can say."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def find_trial_processes() -> dict[int, str]:
    """The living processes of ours that carry a mark, and the mark. Only Linux tells; elsewhere there are none to see."""
    found: dict[int, str] = {}
    wanted = f"{TRIAL_VARIABLE}=".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environ = (folder / "environ").read_bytes()
            if wanted not in environ:
                continue
            mark = next((each for each in environ.split(b"\0") if each.startswith(wanted)), None)
            if mark is not None:
                found[int(folder.name)] = mark.removeprefix(wanted).decode(errors="replace")
    return found


def kill_orphans() -> list[int]:
    """Ends what is left of runs whose Viva is gone; never anything of one that still runs, in whatever container."""
    ended: list[int] = []
    for pid, mark in find_trial_processes().items():
        namespace, _, rest = mark.partition("-")
        owner, _, rest = rest.partition("-")
        began = rest.partition("-")[0]
        if namespace != _namespace() or not owner.isdecimal() or not began.isdecimal() or began == "0":
            continue
        if process_start_time(int(owner)) != int(began):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                ended.append(pid)
    return ended

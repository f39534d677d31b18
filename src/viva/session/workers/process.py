"""A worker process for one run. It reads calls from standard input and writes results to standard output.

When standard input ends, the process cancels its trials and ends.
"""

import asyncio
import itertools
import os
import signal
import struct
import sys
import threading
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import BinaryIO, Literal, get_args

from viva.model import codec
from viva.session.loop import LoopThread
from viva.session.workers.worker import TrialWorker, WorkerSetup

Method = Literal["prepare", "exchange", "set_worker_count", "close"]
_METHOD_NAMES: tuple[Method, ...] = get_args(Method)
_MESSAGE_HEADER = struct.Struct("!IBQ")
"""The header of a message: number of the call, index of the method (in a result: 1 if the call failed), size of the content."""
_CLOSE_TIMEOUT_S = 10.0
_PYTHON_ARGUMENTS = ("-P", "-c", f"from {__name__} import main; main()")  # -P: no modules of the working folder


def _pack_message(number: int, code: int, content: bytes) -> bytes:
    return _MESSAGE_HEADER.pack(number, code, len(content)) + content


class WorkerProcess:
    """Starts and calls the process, from its parent. A call raises ConnectionResetError if the process has ended."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._reader = asyncio.create_task(self._read_results())

    @classmethod
    async def start(cls, setup: bytes) -> "WorkerProcess":
        process = await asyncio.create_subprocess_exec(sys.executable, *_PYTHON_ARGUMENTS, stdin=PIPE, stdout=PIPE)
        started = cls(process)
        with suppress(OSError):  # the process has ended already: the first call reports it
            await started._send(_pack_message(0, 0, setup))
        return started

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(self, method: Method, argument: bytes = b"") -> bytes:
        if self._reader.done():
            raise ConnectionResetError("the process of the run has ended")
        number = next(self._numbers)
        result = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send(_pack_message(number, _METHOD_NAMES.index(method), argument))
            return await result
        finally:
            del self._waiting[number]

    async def close(self) -> None:
        """End the process; kill it if it does not end in time, since an agent may block it."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                with suppress(OSError):
                    await self.call("close")
                if self._process.stdin is not None:
                    self._process.stdin.close()
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        await self._reader

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(message)
        await self._process.stdin.drain()

    async def _read_results(self) -> None:
        assert self._process.stdout is not None
        with suppress(asyncio.IncompleteReadError, OSError):  # it has ended
            while True:
                number, has_failed, size = _MESSAGE_HEADER.unpack(
                    await self._process.stdout.readexactly(_MESSAGE_HEADER.size)
                )
                content = await self._process.stdout.readexactly(size)
                waiting = self._waiting.get(number)
                if waiting is None or waiting.done():
                    continue
                if has_failed:
                    waiting.set_exception(RuntimeError(content.decode(errors="replace")))
                else:
                    waiting.set_result(content)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the process of the run has ended"))


class _CallServer:
    """Runs the calls of the parent on the TrialWorker of the process and writes their results."""

    def __init__(self, worker: TrialWorker, out: BinaryIO) -> None:
        self._worker = worker
        self._out = out
        self._lock = threading.Lock()

    async def serve(self, number: int, method: Method, argument: bytes) -> None:
        try:
            message = _pack_message(number, 0, await getattr(self._worker, method)(argument))
        except Exception as error:  # the coordinator reports it
            message = _pack_message(number, 1, f"{type(error).__name__}: {error}".encode(errors="replace"))
        await asyncio.to_thread(self._write, message)

    def _write(self, message: bytes) -> None:
        with self._lock, suppress(OSError):  # the parent has ended
            self._out.write(message)
            self._out.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent decides when it ends
    calls, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what an agent reads and prints is neither call nor result
    os.dup2(2, 1)
    setup = _read_message(calls)
    if setup is None:
        return
    loop = LoopThread()
    worker = TrialWorker(codec.decode_own(setup[2], type=WorkerSetup))
    server = _CallServer(worker, out)
    while (message := _read_message(calls)) is not None:
        number, method, argument = message
        loop.bridge.start(server.serve(number, _METHOD_NAMES[method], argument))
    timer = threading.Timer(_CLOSE_TIMEOUT_S, os._exit, (1,))  # an agent may block the loop
    timer.daemon = True
    timer.start()
    loop.run_blocking(worker.close(b""))
    os._exit(0)  # threads of the agent do not hold the process


def _read_message(calls: BinaryIO) -> tuple[int, int, bytes] | None:
    """The next message; None at the end."""
    head = calls.read(_MESSAGE_HEADER.size)
    if len(head) < _MESSAGE_HEADER.size:
        return None
    number, code, size = _MESSAGE_HEADER.unpack(head)
    content = calls.read(size)
    return (number, code, content) if len(content) == size else None

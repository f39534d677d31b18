"""Runs blocking user code in daemon threads: it cannot block the event loop, nor keep the process alive when it hangs.

The standard thread pool is small and joins its threads at exit; a hung agent would block both.
"""

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from viva.model.tracebacks import format_error

T = TypeVar("T")
_RETRY_S = 0.01
_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


class ThreadAbandoned(BaseException):
    """Raised inside a thread whose caller was cancelled."""


class _WorkerThread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True, name="viva-blocking")
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.is_abandoned = False
        self.start()

    def run(self) -> None:
        try:
            while not self.is_abandoned:
                self._run_next_job()
        except ThreadAbandoned:
            return

    def _run_next_job(self) -> None:
        work, done = self.jobs.get()
        process = os.getpid()
        try:
            value = work()
        except ThreadAbandoned:
            raise
        except BaseException as raised:  # the caller gets it, whatever it is
            _exit_if_forked(process)
            done(None, raised)
        else:
            _exit_if_forked(process)
            done(value, None)

    def abandon(self) -> None:
        """Ends Python code at its next step. A blocking system call continues until it returns.

        Not while the thread starts another one: until that one runs, CPython has both under one id, so the exception could
        end the new thread, and `Thread.start` would wait for it forever, with the lock of all thread pools.
        """
        import ctypes  # slow to import, rarely needed

        self.is_abandoned = True
        if _is_starting_a_thread(self.ident or 0):
            asyncio.get_running_loop().call_later(_RETRY_S, self.abandon)
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(ThreadAbandoned))


def _is_starting_a_thread(ident: int) -> bool:
    # There is no public way to see where another thread is.
    frame = sys._current_frames().get(ident)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


def _exit_if_forked(process: int) -> None:
    """Ends a child process that the user code has forked: it has the memory of a running Viva, but none of its threads."""
    if os.getpid() != process:
        os._exit(0)


_idle_threads: list[_WorkerThread] = []
_NOT_FOR_FUTURES = (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
"""A future cannot hold the first; the others would end more than the caller of `sys.exit()`."""


def is_being_cancelled() -> bool:
    """Is this task being cancelled? If not, a CancelledError was raised by user code."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function in a thread and waits for it. When cancelled, the thread is abandoned."""
    thread = DedicatedThread()
    try:
        return await thread.run(function, *arguments)
    finally:
        thread.release()


class DedicatedThread:
    """Runs all calls of a session in one thread: an SQLite connection works only in the thread that created it."""

    def __init__(self) -> None:
        self._worker: _WorkerThread | None = None

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        worker = self._worker = self._worker or (_idle_threads.pop() if _idle_threads else _WorkerThread())
        context = contextvars.copy_context()

        def settle(value: Any, raised: BaseException | None) -> None:
            if future.cancelled():
                return
            if raised is None:
                future.set_result(value)
            else:
                future.set_exception(
                    RuntimeError(format_error(raised)) if isinstance(raised, _NOT_FOR_FUTURES) else raised
                )

        def done(value: Any, raised: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(settle, value, raised)
            except RuntimeError:  # the loop is closed
                return

        worker.jobs.put((lambda: context.run(function, *arguments), done))
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():  # else the work was done at the same moment, and the thread is free
                worker.abandon()
                self._worker = None
            raise

    def release(self) -> None:
        """Makes the thread available to other sessions."""
        if self._worker is not None:
            _idle_threads.append(self._worker)
            self._worker = None

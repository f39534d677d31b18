"""Other people's blocking code, in daemon threads: it neither stops the loop nor, when it hangs, keeps the process alive.

The standard pool joins its threads at exit and has a handful of them; a hung agent would block both.
"""

import asyncio
import contextvars
import ctypes
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from viva.model.tracebacks import error_text

T = TypeVar("T")
_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


class ThreadAbandoned(BaseException):
    """Raised inside a thread whose caller no longer waits for it."""


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True, name="viva-blocking")
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.given_up = False
        self.start()

    def run(self) -> None:
        try:
            while not self.given_up:
                self._work()
        except ThreadAbandoned:
            return

    def _work(self) -> None:
        work, done = self.jobs.get()
        process = os.getpid()
        try:
            value = work()
        except ThreadAbandoned:
            raise
        except BaseException as raised:  # whatever it is, it belongs to the one who waits
            _leave_if_forked(process)
            done(None, raised)
        else:
            _leave_if_forked(process)
            done(value, None)

    def give_up(self) -> None:
        """Ends Python code at its next step. A blocking system call goes on, harmlessly, until it returns."""
        self.given_up = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(ThreadAbandoned))


def _leave_if_forked(process: int) -> None:
    """Ends a child process that the work has forked: it has the memory of a Viva that runs, but none of its threads."""
    if os.getpid() != process:
        os._exit(0)


_idle: list[_Worker] = []
_NOT_FOR_FUTURES = (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
"""A future cannot carry the first, and the others would end more than the one who called `sys.exit()`."""


def is_being_cancelled() -> bool:
    """Does somebody cancel this task? Else a CancelledError is one that the user's own code has raised."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Runs `work` in a thread and waits for it; when cancelled, the thread is given up."""
    thread = DedicatedThread()
    try:
        return await thread.run(function, *arguments)
    finally:
        thread.release()


class DedicatedThread:
    """The same thread for call after call, since some things (an SQLite connection) work only where they were made."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        worker = self._worker = self._worker or (_idle.pop() if _idle else _Worker())
        context = contextvars.copy_context()

        def settle(value: Any, raised: BaseException | None) -> None:
            if future.cancelled():
                return
            if raised is None:
                future.set_result(value)
            else:
                future.set_exception(
                    RuntimeError(error_text(raised)) if isinstance(raised, _NOT_FOR_FUTURES) else raised
                )

        def done(value: Any, raised: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(settle, value, raised)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        worker.jobs.put((lambda: context.run(function, *arguments), done))
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():  # else the work was done in the same moment, and the thread is free
                worker.give_up()
                self._worker = None
            raise

    def release(self) -> None:
        """Lets others have the thread."""
        if self._worker is not None:
            _idle.append(self._worker)
            self._worker = None

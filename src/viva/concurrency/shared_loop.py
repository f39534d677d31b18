"""One event loop for all objects of agent frameworks, in a daemon thread that lives as long as the process.

A model client keeps open connections, which belong to the event loop that made them. Every run of Viva has its own loop, so
an object that two runs share would fail in the second one with "bound to a different event loop". On this loop it does not.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

from viva.concurrency.loops import await_with_timed_steps
from viva.model.tracebacks import format_error

T = TypeVar("T")


class DaemonThreadExecutor(ThreadPoolExecutor):
    """Runs each call in a daemon thread of its own: a tool that hangs does not keep the process alive.

    The thread has the context variables of its caller, so that what a tool runs there belongs to its turn.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        future: Future[T] = Future()
        context = copy_context()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(context.run(fn, *args, **kwargs))
            except BaseException as raised:  # the caller gets it, whatever it is
                future.set_exception(raised)

        threading.Thread(target=work, name="viva-framework", daemon=True).start()
        return future


@cache
def _get_shared_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonThreadExecutor())

    def run() -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # raised by the user's code in a task of its own: the loop goes on
                continue

    threading.Thread(target=run, name="viva-frameworks", daemon=True).start()
    return loop


async def run_on_shared_loop(work: Coroutine[Any, Any, T]) -> T:
    """Awaits a coroutine that runs on the shared loop.

    Its slow steps are not reported: Viva's own loop goes on, and frameworks import much in their first call.
    """

    async def run() -> T:
        try:
            # It also ends a child process that the user's code forks.
            return await await_with_timed_steps(work, _ignore_step)
        except (SystemExit, KeyboardInterrupt) as raised:  # a task that raises these stops its loop
            raise RuntimeError(format_error(raised)).with_traceback(raised.__traceback__) from None

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), _get_shared_loop()))


def _ignore_step(seconds: float) -> None:
    del seconds

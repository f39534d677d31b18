"""Ctrl-C and SIGTERM: the first ends what is at work, and the run still writes its reports; the second leaves at once."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class RunInterrupted(Exception):  # noqa: N818 -- no error: somebody asked for it
    """The work was ended because the run is to stop."""


class InterruptHandler:
    """Ends the parts of a run one by one when it is asked to stop. `stop` says that no further trial is to begin.

    A run that is cancelled from outside (its thread is interrupted) ends in order too, unless it is `hosted`: then its
    host knows better.
    """

    def __init__(self, stop: Callable[[], object], *, is_hosted: bool = False) -> None:
        self._stop = stop
        self._hosted = is_hosted
        self._task: asyncio.Task[Any] | None = None
        self.is_requested = False
        self.is_cancelled = False
        """Was the whole run cancelled from outside? Then it is told so when it has ended in order."""

    def request_stop(self) -> None:
        """The run is to stop."""
        self.is_requested = True
        self._stop()
        if self._task is not None:
            self._task.cancel()

    async def run_part(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits one part of the run; raises Interrupted if it is ended before it is done."""
        self._task = asyncio.ensure_future(work)
        try:
            return await self._task
        except asyncio.CancelledError:
            if not self.is_requested:
                if self._hosted:
                    raise
                self.is_cancelled = True
                self.request_stop()
            raise RunInterrupted from None
        finally:
            self._task = None


@contextmanager
def handle_stop_signals(stop: Callable[[], object]) -> Generator[None]:
    """The first SIGINT or SIGTERM calls `stop` on the loop; the second leaves at once, with code 2."""
    loop = asyncio.get_running_loop()
    asked = False

    # A handler of the loop's own would wait for its turn; an agent that blocks the loop must not keep anybody here.
    def interrupt(_number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            os._exit(2)
        asked = True
        loop.call_soon_threadsafe(stop)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, interrupt)
    except ValueError:  # not the main thread: signals are not ours to handle
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

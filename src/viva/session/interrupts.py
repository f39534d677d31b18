"""Handles Ctrl-C, SIGTERM and the end of the terminal: the first stops the run, which still writes its reports; the second ends the process."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from viva.concurrency.stop_signals import is_hangup, list_stop_signals

T = TypeVar("T")


class RunInterrupted(Exception):  # noqa: N818 -- requested by the user, not an error
    """A step of the run was cancelled because the run stops."""


class InterruptHandler:
    """Runs the steps of a run and cancels the current step when the run must stop. `stop` is called then, to start no more trials.

    Cancelling the task from outside stops the run in the same way, except for a hosted run, whose host handles it.
    """

    def __init__(self, stop: Callable[[], object], *, is_hosted: bool) -> None:
        self._stop = stop
        self._is_hosted = is_hosted
        self._task: asyncio.Task[Any] | None = None
        self.is_stop_requested = False
        self.signal: int | None = None
        """The signal that stopped the run, if one did."""
        self.is_cancelled = False
        """Was the whole run cancelled from outside? Then CancelledError is raised after its end."""

    def request_stop(self, signal_number: int | None = None) -> None:
        self.is_stop_requested = True
        self.signal = self.signal or signal_number
        self._stop()
        if self._task is not None:
            self._task.cancel()

    async def run_interruptibly(self, work: Coroutine[Any, Any, T]) -> T:
        """Await one step of the run. Raises RunInterrupted if it is cancelled."""
        self._task = asyncio.ensure_future(work)
        try:
            return await self._task
        except asyncio.CancelledError:
            if not self.is_stop_requested:
                if self._is_hosted:
                    raise
                self.is_cancelled = True
                self.request_stop()
            raise RunInterrupted from None
        finally:
            self._task = None

    async def run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a step of the run that nothing cuts off. If the task is cancelled meanwhile, the run ends as after the step."""
        task = asyncio.ensure_future(work)
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise
                self.is_cancelled = True


@contextmanager
def handle_stop_signals(stop: Callable[[int], object]) -> Generator[None]:
    """The first stop signal calls `stop` with its number on the loop; the second exits at once with code 2."""
    loop = asyncio.get_running_loop()
    is_stopping = False

    # Not a signal handler of the loop: an agent that blocks the loop would block that too.
    def interrupt(number: int, _frame: object) -> None:
        nonlocal is_stopping
        if is_stopping and is_hangup(number):  # the kernel sends it, and often the shell too
            return
        if is_stopping:
            os._exit(2)
        is_stopping = True
        loop.call_soon_threadsafe(stop, number)

    previous: dict[signal.Signals, Any] = {}
    try:
        for number in list_stop_signals():
            previous[number] = signal.signal(number, interrupt)
    except ValueError:  # not the main thread: only that can handle signals
        pass
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

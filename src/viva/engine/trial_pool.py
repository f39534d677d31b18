"""Runs many trials, several at a time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, cast

from viva.protocols import PlannedTrial


class ParallelLimit(Protocol):
    """How many trials may run in parallel; `subscribe` registers who is called when it grows, until `unsubscribe`."""

    @property
    def limit(self) -> int: ...

    def subscribe(self, listener: Callable[[], None]) -> None: ...

    def unsubscribe(self, listener: Callable[[], None]) -> None: ...


@asynccontextmanager
async def yield_to_others() -> AsyncGenerator[None]:
    """Gives other tasks of the event loop a chance to run after a trial. The default where no host shares out turns."""
    yield
    # Else trials that never wait would be journaled, and could be stopped, only at the end.
    await asyncio.sleep(0)


class TrialPool:
    """Several tasks that pull trials as they become free, so that cases stream and no trial waits for a batch.

    There are as many tasks as the limit says: more when it grows; when it shrinks, some end after their trial.
    """

    def __init__(
        self, parallel: ParallelLimit, take_turn: Callable[[], AbstractAsyncContextManager[None]] = yield_to_others
    ) -> None:
        self._parallel = parallel
        self._take_turn = take_turn
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    async def run(
        self, trials: AsyncIterator[PlannedTrial], run_trial: Callable[[PlannedTrial], Awaitable[None]]
    ) -> None:
        lock = asyncio.Lock()
        is_exhausted = False

        async def pull_trials() -> None:
            nonlocal is_exhausted
            while not self._is_stopped:
                if len(self._tasks) > self._parallel.limit:
                    self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))  # others count at once
                    return
                async with lock:
                    planned = await anext(trials, None)
                if planned is None:
                    is_exhausted = True
                    return
                async with self._take_turn():
                    await run_trial(planned)

        def add_tasks() -> None:
            while len(self._tasks) < self._parallel.limit and not (self._is_stopped or is_exhausted):
                task = group.create_task(pull_trials())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        self._parallel.subscribe(add_tasks)
        try:
            async with asyncio.TaskGroup() as group:
                add_tasks()
        except* Exception as errors:
            raise _first_error(errors) from None
        finally:
            is_exhausted = True  # later calls, of a reporter, start nothing more
            self._parallel.unsubscribe(add_tasks)

    def stop(self) -> None:
        self._is_stopped = True  # a task that never suspends would not see its cancellation in time
        for task in tuple(self._tasks):
            task.cancel()


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first_error(inner) if isinstance(inner, BaseExceptionGroup) else inner

"""Runs many trials, several at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from viva.protocols import PlannedTrial


class TrialPool:
    """Several tasks that pull trials as they become free, so that cases stream and no trial waits for a batch."""

    def __init__(self, parallel: int) -> None:
        self._parallel = parallel
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopped = False

    async def run(self, trials: AsyncIterator[PlannedTrial], work: Callable[[PlannedTrial], Awaitable[None]]) -> None:
        lock = asyncio.Lock()

        async def run_trials() -> None:
            while not self._is_stopped:
                async with lock:
                    planned = await anext(trials, None)
                if planned is None:
                    return
                await work(planned)

        try:
            async with asyncio.TaskGroup() as group:
                self._tasks = [group.create_task(run_trials()) for _ in range(self._parallel)]
        except* Exception as group:
            raise _first_error(group) from None

    def stop(self) -> None:
        self._is_stopped = True  # a task that never suspends would not see its cancellation in time
        for task in self._tasks:
            task.cancel()


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first_error(inner) if isinstance(inner, BaseExceptionGroup) else inner

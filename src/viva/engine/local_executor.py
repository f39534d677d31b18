"""Runs trials concurrently in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from viva.protocols import PlannedTrial


class LocalExecutor:
    """Several workers that pull trials as they become free, so that cases stream and no trial waits for a batch."""

    def __init__(self, parallel: int) -> None:
        self._parallel = parallel
        self._workers: list[asyncio.Task[None]] = []
        self._is_stopped = False

    async def run(self, trials: AsyncIterator[PlannedTrial], work: Callable[[PlannedTrial], Awaitable[None]]) -> None:
        lock = asyncio.Lock()

        async def run_worker() -> None:
            while not self._is_stopped:
                async with lock:
                    planned = await anext(trials, None)
                if planned is None:
                    return
                await work(planned)

        try:
            async with asyncio.TaskGroup() as group:
                self._workers = [group.create_task(run_worker()) for _ in range(self._parallel)]
        except* Exception as group:
            raise _first_error(group) from None

    def stop(self) -> None:
        self._is_stopped = True  # a worker that never suspends would not see its cancellation in time
        for worker in self._workers:
            worker.cancel()


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first_error(inner) if isinstance(inner, BaseExceptionGroup) else inner

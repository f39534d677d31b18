"""Many trials at once in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from viva.protocols import PlannedTrial


class LocalExecutor:
    """A few workers that pull trials as they become free, so cases stream and none waits for a batch to end."""

    def __init__(self, parallel: int) -> None:
        self._parallel = parallel
        self._workers: list[asyncio.Task[None]] = []
        self._stopped = False

    async def run(self, trials: AsyncIterator[PlannedTrial], work: Callable[[PlannedTrial], Awaitable[None]]) -> None:
        one_at_a_time = asyncio.Lock()

        async def worker() -> None:
            while not self._stopped:
                async with one_at_a_time:
                    planned = await anext(trials, None)
                if planned is None:
                    return
                await work(planned)

        try:
            async with asyncio.TaskGroup() as group:
                self._workers = [group.create_task(worker()) for _ in range(self._parallel)]
        except* Exception as group:
            raise _first(group) from None

    def stop(self) -> None:
        self._stopped = True  # a worker that does not wait for anything would not hear of it in time
        for worker in self._workers:
            worker.cancel()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner

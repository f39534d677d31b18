"""Requests and results that travel together: a message between processes costs more than many of the trials that it is for."""

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import cast

_HEADER = struct.Struct("!IBQ")
"""The header of a message: the number of its request, its kind, and the size of its content."""
_RUN, _CANCEL = 0, 1
_RESULT, _ERROR = 0, 1
_MIN_WAIT_S, _MAX_WAIT_S = 0.001, 0.005
_WAIT_SHARE = 1 / 8
_REFILL_WAIT_S = 0.002


def _pack_message(number: int, kind: int, content: bytes = b"") -> bytes:
    return _HEADER.pack(number, kind, len(content)) + content


def _unpack_messages(batch: bytes) -> Iterator[tuple[int, int, bytes]]:
    start = 0
    while start < len(batch):
        number, kind, size = _HEADER.unpack_from(batch, start)
        start += _HEADER.size + size
        yield number, kind, batch[start - size : start]


class RequestQueue:
    """Runs the requests of batches in a worker, and returns their results as soon as there are any.

    A result waits for others that end within a few milliseconds, at most for an eighth of the time that its request took. It
    does not wait when half of the requests have ended: the others keep the worker busy until new ones arrive.
    """

    def __init__(self, run: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._run = run
        self._tasks: dict[int, asyncio.Future[bytes]] = {}
        self._ended: list[bytes] = []
        self._waiter: asyncio.Future[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def exchange(self, batch: bytes) -> bytes:
        """Start and cancel requests as the batch says, and return a batch of results as soon as there is one.

        Only one call waits: a later call takes its place.
        """
        loop = asyncio.get_running_loop()
        for number, kind, request in _unpack_messages(batch):
            if kind == _RUN:
                task = self._tasks[number] = asyncio.ensure_future(self._run(request))
                task.add_done_callback(partial(self._add_result, number, loop.time()))
            elif number in self._tasks:
                self._tasks[number].cancel()
        self._wake()
        if self._tasks and not self._ended:
            self._waiter = loop.create_future()
            return await self._waiter
        return self._take_results()

    async def close(self) -> None:
        """Cancel all requests, and wait for their end."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add_result(self, number: int, start: float, task: asyncio.Future[bytes]) -> None:
        del self._tasks[number]
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._ended.append(_pack_message(number, _RESULT, task.result()))
        else:
            text = f"{type(error).__name__}: {error}".encode(errors="replace")
            self._ended.append(_pack_message(number, _ERROR, text))
        if len(self._ended) >= len(self._tasks):
            self._wake()
        elif self._timer is None:
            loop = task.get_loop()
            wait_s = min(max((loop.time() - start) * _WAIT_SHARE, _MIN_WAIT_S), _MAX_WAIT_S)
            self._timer = loop.call_later(wait_s, self._wake)

    def _take_results(self) -> bytes:
        ended, self._ended = self._ended, []
        return b"".join(ended)

    def _wake(self) -> None:
        """Let the waiting call return. What ends before it does so is for the next call: else all requests would wait for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._take_results())
        self._waiter = None


class RequestSender:
    """Sends requests to the queue of a worker in batches.

    After results, it waits up to two milliseconds for as many new requests. `exchange` calls the queue; what it raises is
    raised for all requests of the worker.
    """

    def __init__(self, exchange: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._exchange = exchange
        self._numbers = itertools.count()
        self._results: dict[int, asyncio.Future[bytes]] = {}
        self._unsent: dict[int, bytes] = {}
        self._awaited = 0
        """How many requests are sent at once rather than at the end of the timer."""
        self._timer: asyncio.Handle | None = None
        self._calls: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many requests have no result yet?"""
        return len(self._results)

    def send(self, request: bytes) -> tuple[int, asyncio.Future[bytes]]:
        """Send a request. Returns its number and its result to come."""
        number = next(self._numbers)
        result = self._results[number] = asyncio.get_running_loop().create_future()
        self._add_message(number, _pack_message(number, _RUN, request))
        return number, result

    def cancel(self, number: int) -> None:
        """Cancel a request. What it returns then is its result; its future is cancelled if it was not sent yet."""
        if self._unsent.pop(number, None) is not None:
            self.forget(number)
        elif number in self._results:
            self._add_message(number, _pack_message(number, _CANCEL))

    def forget(self, number: int) -> None:
        """Cancel the future of a request."""
        if (result := self._results.pop(number, None)) is not None:
            result.cancel()

    def close(self, error: Exception) -> None:
        """Let all requests raise the error."""
        if self._timer is not None:
            self._timer.cancel()
        for call in tuple(self._calls):
            call.cancel()
        self._fail(error)

    def _add_message(self, number: int, message: bytes) -> None:
        self._unsent[number] = message
        if self._timer is None or len(self._unsent) == self._awaited:
            self._schedule(0)

    def _schedule(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._send_batch)

    def _send_batch(self) -> None:
        self._timer, self._awaited = None, 0
        if self._unsent or (self._results and not self._calls):
            batch = b"".join(self._unsent.values())
            self._unsent.clear()
            self._calls.add(asyncio.create_task(self._call_queue(batch)))

    async def _call_queue(self, batch: bytes) -> None:
        try:
            self._accept_results(await self._exchange(batch))
        except Exception as error:  # every request of the worker gets it
            self._fail(error)
        finally:  # not when the task has ended: the timer may end before that, and would take this call for one that waits
            self._calls.discard(cast("asyncio.Task[None]", asyncio.current_task()))
        self._schedule(_REFILL_WAIT_S)

    def _accept_results(self, results: bytes) -> None:
        for number, kind, content in _unpack_messages(results):
            self._awaited += 1
            if (result := self._results.pop(number, None)) is None:
                continue
            if kind == _RESULT:
                result.set_result(content)
            else:
                result.set_exception(RuntimeError(content.decode(errors="replace")))

    def _fail(self, error: Exception) -> None:
        results, self._results = self._results, {}
        self._unsent.clear()
        for result in results.values():
            result.set_exception(error)

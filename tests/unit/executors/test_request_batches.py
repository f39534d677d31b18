"""Requests that travel in batches: all are answered once, and few messages do it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from viva.executors.request_batches import RequestQueue, RequestSender
from viva.session.loop import run_coroutine

Run = Callable[[bytes], Awaitable[bytes]]


class Connection:
    """A sender and the queue that it calls, in one process."""

    def __init__(self, run: Run) -> None:
        self.queue = RequestQueue(run)
        self.sender = RequestSender(self.exchange)
        self.calls = 0

    async def exchange(self, batch: bytes) -> bytes:
        self.calls += 1
        return await self.queue.exchange(batch)


async def answer(request: bytes) -> bytes:
    await asyncio.sleep(0)
    return request.upper()


def test_trials_that_end_together_share_messages() -> None:  # 17
    async def run() -> None:
        connection = Connection(answer)

        async def repeat(name: int) -> None:
            for number in range(50):
                request = b"%d-%d-a" % (name, number)
                assert await connection.sender.send(request)[1] == request.upper()

        await asyncio.gather(*map(repeat, range(4)))
        assert len(connection.sender) == 0
        assert connection.calls <= 100  # for 200 requests

    asyncio.run(run())


def test_a_result_does_not_wait_for_slow_requests() -> None:  # 17
    slow = asyncio.Event()

    async def wait(request: bytes) -> bytes:
        if request == b"slow":
            await slow.wait()
        return request

    async def run() -> None:
        connection = Connection(wait)
        _, late = connection.sender.send(b"slow")
        for _ in range(3):
            assert await connection.sender.send(b"fast")[1] == b"fast"
        assert not late.done()
        slow.set()
        assert await late == b"slow"

    asyncio.run(run())


def test_a_worker_has_requests_left_while_results_travel(shorten: Callable[[str, float], None]) -> None:  # 17
    """Requests that end in the same moment are returned in two halves: the worker would have none until new ones arrive."""
    for limit in ("_MIN_WAIT_S", "_MAX_WAIT_S"):
        shorten(f"viva.executors.request_batches.{limit}", 3600.0)
    ends = [asyncio.Event() for _ in range(6)]

    async def wait(request: bytes) -> bytes:
        await ends[int(request)].wait()
        return request

    async def run() -> None:
        connection = Connection(wait)
        results = [connection.sender.send(b"%d" % number)[1] for number in range(6)]
        await asyncio.sleep(0.01)
        for end in ends[:4]:
            end.set()
        async with asyncio.timeout(60):
            assert await asyncio.gather(*results[:3]) == [b"0", b"1", b"2"]
            assert not any(result.done() for result in results[3:])
            ends[4].set()
            assert await asyncio.gather(*results[3:5]) == [b"3", b"4"]
            ends[5].set()
            await results[5]

    asyncio.run(run())


def test_the_last_results_arrive_on_a_busy_machine(shorten: Callable[[str, float], None]) -> None:
    """On uvloop, as in a run: the timer of the sender may end before the task of the call that started it."""
    shorten("viva.executors.request_batches._REFILL_WAIT_S", 0.0)
    second = asyncio.Event()

    async def wait(request: bytes) -> bytes:
        if request == b"second":
            await second.wait()
        return request

    async def run() -> None:
        connection = Connection(wait)
        results = [connection.sender.send(request)[1] for request in (b"first", b"second")]
        assert await results[0] == b"first"
        await asyncio.sleep(0)
        second.set()
        async with asyncio.timeout(60):
            assert await results[1] == b"second"

    run_coroutine(run())


def test_a_cancelled_request_returns_what_it_cost_and_an_unsent_one_never_starts() -> None:  # 17
    started: list[bytes] = []

    async def wait(request: bytes) -> bytes:
        started.append(request)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return b"cost of " + request
        raise AssertionError

    async def run() -> None:
        connection = Connection(wait)
        number, result = connection.sender.send(b"sent")
        while not started:
            await asyncio.sleep(0)
        connection.sender.cancel(number)
        assert await result == b"cost of sent"
        number, result = connection.sender.send(b"unsent")
        connection.sender.cancel(number)
        assert result.cancelled()
        await asyncio.sleep(0.01)
        assert (started, len(connection.sender)) == ([b"sent"], 0)

    asyncio.run(run())


def test_an_error_ends_its_request_and_a_lost_worker_all() -> None:  # 17
    async def fail(request: bytes) -> bytes:
        if request == b"wait":
            await asyncio.Event().wait()
        raise ValueError("wrong")

    async def run() -> None:
        connection = Connection(fail)
        with pytest.raises(RuntimeError, match="ValueError: wrong"):
            await connection.sender.send(b"fail")[1]
        _, waiting = connection.sender.send(b"wait")
        _, unsent = connection.sender.send(b"wait")
        connection.sender.close(ConnectionResetError())
        for each in (waiting, unsent):
            with pytest.raises(ConnectionResetError):
                await each
        await connection.queue.close()

    asyncio.run(run())


def test_a_connection_that_breaks_ends_all_requests() -> None:  # 17
    async def run() -> None:
        async def break_down(_batch: bytes) -> bytes:
            raise ConnectionResetError

        sender = RequestSender(break_down)
        for each in [sender.send(b"one")[1], sender.send(b"two")[1]]:
            with pytest.raises(ConnectionResetError):
                await each

    asyncio.run(run())


def test_closing_cancels_what_runs() -> None:  # 17
    async def run() -> None:
        queue = RequestQueue(lambda _request: asyncio.Event().wait())  # type: ignore[arg-type,return-value]
        sender = RequestSender(queue.exchange)
        _, result = sender.send(b"wait")
        await asyncio.sleep(0.01)
        await queue.close()
        with pytest.raises(RuntimeError, match="CancelledError"):
            await result

    asyncio.run(run())

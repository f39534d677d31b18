"""Other people's blocking code: it neither stops the loop nor keeps the process alive."""

import asyncio
import contextvars
import threading
import time

import pytest

from viva.concurrency.threads import DedicatedThread, run_in_thread


def test_work_is_done_in_another_thread_with_this_context():
    color = contextvars.ContextVar("color", default="none")

    async def scenario() -> tuple[str, int, int]:
        color.set("blue")
        return await run_in_thread(lambda: (color.get(), threading.get_ident(), threading.get_ident()))

    found, thread, _ = asyncio.run(scenario())
    assert found == "blue"
    assert thread != threading.get_ident()


def test_what_it_raises_is_raised_here():
    with pytest.raises(KeyError, match="k"):
        asyncio.run(run_in_thread(lambda: {}["k"]))


@pytest.mark.parametrize(
    ("raised", "message"),
    [(StopIteration, "StopIteration"), (SystemExit(3), "SystemExit: 3"), (KeyboardInterrupt, "KeyboardInterrupt")],
)
def test_an_exception_that_would_end_the_process_becomes_an_error(raised: BaseException, message: str):
    """`sys.exit()` in a tool must not end the run, and a future cannot carry StopIteration."""

    def work() -> None:
        raise raised

    with pytest.raises(RuntimeError) as found:
        asyncio.run(run_in_thread(work))
    assert str(found.value) == message


def test_blocking_work_runs_side_by_side():
    """Twenty at once need all their threads: a pool of a handful would never get through the barrier."""
    barrier = threading.Barrier(20, timeout=300)

    async def scenario() -> list[int]:
        return await asyncio.gather(*(run_in_thread(barrier.wait) for _ in range(20)))

    assert sorted(asyncio.run(scenario())) == list(range(20))


def test_work_that_is_given_up_ends_at_its_next_step():
    started, ended = threading.Event(), threading.Event()

    def spin() -> None:
        try:
            started.set()
            while True:
                pass
        finally:
            ended.set()

    async def scenario() -> None:
        work = asyncio.create_task(run_in_thread(spin))
        while not started.is_set():  # work that has not begun is not interrupted
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(scenario())
    assert ended.wait(300)


def test_work_that_cannot_be_interrupted_is_not_waited_for():
    release = threading.Event()

    async def scenario() -> float:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_in_thread(release.wait, 60), 0.05)
        return time.monotonic() - began

    assert asyncio.run(scenario()) < 10
    release.set()


def test_threads_are_used_again():
    async def scenario() -> set[int]:
        return {await run_in_thread(threading.get_ident) for _ in range(20)}

    assert len(asyncio.run(scenario())) == 1


def test_one_thread_stays_the_same_and_is_not_shared_meanwhile():
    """Some things work only in the thread where they were made."""

    async def scenario() -> tuple[set[int], int]:
        mine = DedicatedThread()
        seen = {await mine.run(threading.get_ident)}
        other = await run_in_thread(threading.get_ident)
        seen.add(await mine.run(threading.get_ident))
        mine.release()
        return seen, other

    mine, other = asyncio.run(scenario())
    assert len(mine) == 1
    assert other not in mine


def test_after_one_thread_was_given_up_there_is_another():
    release = threading.Event()

    async def scenario() -> str:
        mine = DedicatedThread()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mine.run(release.wait, 60), 0.05)
        message = await mine.run(lambda: "still here")
        mine.release()
        return message

    assert asyncio.run(scenario()) == "still here"
    release.set()


def test_a_thread_is_not_ended_while_it_starts_another_one():
    """CPython has the new thread under the same id until it runs: the exception would end that one, and `start` would wait forever."""
    is_starting, released, ended = threading.Event(), threading.Event(), threading.Event()
    reached: list[str] = []

    class SlowStart(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            is_starting.set()
            while not released.wait(0.01):  # here the exception would be raised
                pass
            return super().wait(timeout)

    def work() -> None:
        thread = threading.Thread(target=reached.append, args=["new thread"])
        vars(thread)["_started"] = SlowStart()
        try:
            thread.start()
            reached.append("started")
            while True:
                time.sleep(0.001)
        finally:
            thread.join()
            ended.set()

    async def scenario() -> None:
        task = asyncio.create_task(run_in_thread(work))
        await asyncio.to_thread(is_starting.wait)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0.05)
        released.set()
        await asyncio.to_thread(ended.wait, 60)  # the thread is ended after all

    asyncio.run(scenario())
    assert ended.is_set()
    assert sorted(reached) == ["new thread", "started"]

"""Event loops for synchronous code."""

import asyncio
import gc
import weakref

import pytest

from viva.session.loop import LoopThread, run_coroutine


class Result:
    pass


def test_a_loop_keeps_nothing_of_a_coroutine_that_has_ended() -> None:
    async def make_result() -> Result:
        return Result()

    loop = LoopThread()
    results = [loop.bridge.wait_for(loop.bridge.start(make_result())), loop.run_blocking(make_result())]
    references = [weakref.ref(result) for result in results]
    results.clear()
    loop.close()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_loop_that_runs_refuses_to_run_something_else() -> None:
    """An agent that calls `run_until_complete` on the loop of the run gets an error, and nothing hangs."""

    async def act() -> None:
        work = asyncio.sleep(0)
        try:
            with pytest.raises(RuntimeError, match="already running"):
                asyncio.get_running_loop().run_until_complete(work)
        finally:
            work.close()

    run_coroutine(act())

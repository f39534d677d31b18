"""Event loops for synchronous code."""

import asyncio
import gc
import weakref
from contextlib import closing
from typing import Any

import pytest

from viva.session.loop import LoopBridge, LoopThread, run_coroutine


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


def test_an_agent_that_runs_the_loop_it_is_on_gets_an_error():
    async def agent() -> None:
        work = asyncio.sleep(0)
        with closing(work):
            asyncio.get_running_loop().run_until_complete(work)

    with pytest.raises(RuntimeError, match="already running"):
        run_coroutine(agent())


class InterruptedBridge(LoopBridge):
    """Ctrl-C arrives when the loop has a call already, but the caller does not know yet."""

    def _submit(self, work: Any) -> Any:
        super()._submit(work)
        raise KeyboardInterrupt


def test_a_call_that_is_interrupted_while_it_is_submitted_is_cancelled():
    async def act() -> None:
        before = asyncio.all_tasks()
        bridge = InterruptedBridge(asyncio.get_running_loop())
        with pytest.raises(KeyboardInterrupt):
            await asyncio.to_thread(bridge.run_blocking, asyncio.Event().wait())
        async with asyncio.timeout(60):
            while tasks := asyncio.all_tasks() - before:
                await asyncio.wait(tasks)

    run_coroutine(act())

"""Event loops for synchronous code."""

import gc
import weakref

from viva.session.loop import LoopThread


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

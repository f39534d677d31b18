"""Times the steps of the user's coroutines: one that takes long blocks every other conversation."""

import os
import time
import types
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

SLOW_STEP_S = 0.1
"""A step that is shorter disturbs nobody."""


async def _awaited(awaitable: Awaitable[T]) -> T:
    """Any awaitable as a coroutine: not all of them can be sent values."""
    return await awaitable


@types.coroutine
def time_steps(awaitable: Awaitable[T], on_slow_step: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Awaits it. `on_slow_step` is told how long each step took that blocked the event loop."""
    process = os.getpid()
    steps = _awaited(awaitable).__await__()
    step: Callable[[], Any] = partial(steps.send, None)
    while True:
        began = time.perf_counter()
        try:
            waiting_for = step()
        except StopIteration as done:
            return done.value
        except GeneratorExit as raised:  # nobody closes this coroutine: the user's code raised it
            raise RuntimeError("GeneratorExit") from raised
        finally:
            if os.getpid() != process:
                os._exit(0)  # a child that the step has forked must not go on with the run as a second Viva
            took_s = time.perf_counter() - began
            if took_s > SLOW_STEP_S:
                on_slow_step(took_s)
        try:
            value = yield waiting_for
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as raised:  # a cancellation, most of the time: it is for the coroutine to handle
            step = partial(steps.throw, raised)
        else:
            step = partial(steps.send, value)

"""Times the steps of user coroutines: a slow step blocks all other conversations."""

import os
import time
import types
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

SLOW_STEP_S = 0.1
"""Shorter steps are not reported."""


async def _to_coroutine(awaitable: Awaitable[T]) -> T:
    """Any awaitable as a coroutine, to which values can be sent."""
    return await awaitable


@types.coroutine
def await_with_timed_steps(awaitable: Awaitable[T], on_slow_step: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Awaits `awaitable`, and calls `on_slow_step` with the duration of each step that blocked the event loop."""
    process = os.getpid()
    steps = _to_coroutine(awaitable).__await__()
    step: Callable[[], Any] = partial(steps.send, None)
    while True:
        started = time.perf_counter()
        try:
            waiting_for = step()
        except StopIteration as done:
            return done.value
        except GeneratorExit as raised:  # raised by user code: this coroutine is not being closed
            raise RuntimeError("GeneratorExit") from raised
        finally:
            if os.getpid() != process:
                os._exit(0)  # a forked child must not continue the run
            elapsed_s = time.perf_counter() - started
            if elapsed_s > SLOW_STEP_S:
                on_slow_step(elapsed_s)
        try:
            value = yield waiting_for
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as raised:  # mostly a cancellation: the coroutine handles it
            step = partial(steps.throw, raised)
        else:
            step = partial(steps.send, value)

"""Between threads and an event loop: code of the user's own blocks in a thread while agents are reached on the loop."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from viva.concurrency.threads import run_in_thread
from viva.errors import VivaError
from viva.session.loop import run_coroutine

R = TypeVar("R")


class LoopBridge:
    """Lets threads wait for what is done on a loop, until it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awaited: set[Future[Any]] = set()
        self._closed = False

    def run_blocking(self, work: Coroutine[Any, Any, R]) -> R:
        """Does the work on the loop, and blocks this thread until it is done."""
        __tracebackhide__ = True
        future = self._begun(work)
        try:
            return future.result()
        except VivaError as fault:  # how it came through our rooms does not help whoever wrote the test
            raise fault.with_traceback(None) from fault.__cause__
        except BaseException:  # also a Ctrl-C of this thread: nobody waits for the work any more
            future.cancel()
            raise
        finally:
            self._awaited.discard(future)

    async def run_async(self, work: Coroutine[Any, Any, R]) -> R:
        """Does the work on the loop, and lets the loop of this thread go on until it is done."""
        __tracebackhide__ = True
        future = self._begun(work)
        try:
            return await asyncio.wrap_future(future)
        except VivaError as fault:
            raise fault.with_traceback(None) from fault.__cause__
        finally:
            self._awaited.discard(future)

    def _begun(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        __tracebackhide__ = True
        if self._closed:
            work.close()
            raise RuntimeError("this belongs to a test that is over")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._awaited.add(future)
        return future

    def close(self) -> None:
        """Whoever still waits is sent away."""
        self._closed = True
        for future in tuple(self._awaited):
            future.cancel()


class LoopThread:
    """An event loop in a thread of its own, for code that cannot await."""

    def __init__(self) -> None:
        self._ready: Future[tuple[LoopBridge, Callable[[], None]]] = Future()
        self._thread = threading.Thread(target=self._live, name="viva-loop", daemon=True)
        self._thread.start()
        self.bridge, self._stop = self._ready.result()

    def run_blocking(self, work: Coroutine[Any, Any, R]) -> R:
        """As `Bridge.wait`, on the loop of this thread."""
        __tracebackhide__ = True
        return self.bridge.run_blocking(work)

    def close(self) -> None:
        self.bridge.close()
        self._stop()
        self._thread.join()

    def _live(self) -> None:
        run_coroutine(self._until_stopped())

    async def _until_stopped(self) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set_result((LoopBridge(loop), lambda: loop.call_soon_threadsafe(over.set) and None))
        await over.wait()


async def run_user_function(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the user's returns. It runs in a thread; an `async def` on a loop of its own there."""

    def perform() -> Any:
        try:
            returned = function(*arguments)
            return asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned
        except SystemExit as left:  # it may leave its own function, not the run
            raise RuntimeError(f"it called sys.exit({left.code!r})").with_traceback(left.__traceback__) from None

    return await run_in_thread(perform)


async def _awaited(returned: Awaitable[R]) -> R:
    return await returned

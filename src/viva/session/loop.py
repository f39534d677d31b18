"""Event loops for synchronous code: user functions block in a thread while agents are called on the loop."""

import asyncio
import inspect
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from viva.concurrency.threads import ThreadAbandoned, is_being_cancelled, run_in_thread
from viva.errors import VivaError, is_ctrl_c
from viva.model.tracebacks import format_error

R = TypeVar("R")


def run_coroutine(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end on a new event loop (uvloop, if it is installed). KeyboardInterrupt if it was cancelled."""
    results: list[R] = []

    async def keep_result() -> None:
        """The task returns None: asyncio writes what it returns as text, and the text of a RunResult reads its journal."""
        results.append(await work)

    try:
        with asyncio.Runner(loop_factory=_create_loop) as runner:
            runner.run(keep_result())
        return results[0]
    except asyncio.CancelledError:  # an agent may cancel all tasks that it finds
        raise KeyboardInterrupt from None
    finally:
        work.close()  # Ctrl-C may come before it starts


def _create_loop() -> asyncio.AbstractEventLoop:
    base: Any
    try:
        import uvloop

        base = uvloop.Loop
    except ImportError:
        base = asyncio.ProactorEventLoop if sys.platform == "win32" else asyncio.SelectorEventLoop

    class PersistentLoop(base):
        """A loop that code of an agent on it cannot end: not by `sys.exit` or KeyboardInterrupt in a task of its own, nor by `loop.stop`."""

        def run_until_complete(self, future: Any) -> Any:
            if asyncio._get_running_loop() is not None:  # noqa: SLF001 -- called on a loop: this raises, and always would
                return super().run_until_complete(future)
            work = asyncio.ensure_future(future, loop=self)
            while True:
                try:
                    return super().run_until_complete(work)
                except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                    if work.done() or self.is_closed() or is_ctrl_c(error):
                        raise

    return PersistentLoop()


class EndTest(BaseException):
    """Raised to end a script test. Not an Exception, so that a test cannot catch it by accident."""


class _CancellableCall(Generic[R]):
    """A coroutine that can be cancelled on its loop before it starts, too."""

    def __init__(self, work: Coroutine[Any, Any, R]) -> None:
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def run(self) -> R:
        self._task = asyncio.current_task()
        if self._is_cancelled:
            self._work.close()
            raise asyncio.CancelledError
        return await self._work

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


class LoopBridge:
    """Runs coroutines on an event loop for other threads, until the bridge is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: set[Future[Any]] = set()
        self._is_closed = False

    def run_blocking(self, work: Coroutine[Any, Any, R]) -> R:
        """Run the coroutine on the loop and block this thread until it ends."""
        __tracebackhide__ = True
        self._require_open(work)
        call = _CancellableCall(work)
        try:
            ended = self._submit(call.run()).result()
        except BaseException:  # also Ctrl-C in this thread, even while the call is submitted: the result is not needed
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call.cancel)
            raise
        return ended.get()

    def start(self, work: Coroutine[Any, Any, R]) -> "Future[CallOutcome[R]]":
        """Start a coroutine on the loop without waiting. `wait_for` returns its result."""
        return self._submit(work)

    def wait_for(self, started: "Future[CallOutcome[R]]") -> R:
        """Block this thread until a started coroutine has ended, and return its result."""
        __tracebackhide__ = True
        return started.result().get()

    def run_until_interrupted(self, work: Coroutine[Any, Any, R]) -> R:
        """Like `run_blocking`, but Ctrl-C in this thread cancels the coroutine, waits for its end, and is then raised again."""
        __tracebackhide__ = True
        task: asyncio.Task[CallOutcome[R]] | None = None

        async def wait() -> CallOutcome[R]:
            nonlocal task
            task = asyncio.ensure_future(catch_outcome(work))
            await asyncio.wait([task])
            return task.result()

        future = self._submit(wait())
        try:
            return future.result().get().get()
        except KeyboardInterrupt:
            if task is not None:
                self._loop.call_soon_threadsafe(task.cancel)
            wait_for_futures([future])
            raise

    async def run_async(self, work: Coroutine[Any, Any, R]) -> R:
        """Run the coroutine on the bridge's loop and await its result on the loop of the caller."""
        __tracebackhide__ = True
        ended = await asyncio.wrap_future(self._submit(work))
        return ended.get()

    def _submit(self, work: Coroutine[Any, Any, R]) -> "Future[CallOutcome[R]]":
        __tracebackhide__ = True
        self._require_open(work)
        future = asyncio.run_coroutine_threadsafe(catch_outcome(work), self._loop)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def _require_open(self, work: Coroutine[Any, Any, Any]) -> None:
        __tracebackhide__ = True
        if self._is_closed:
            work.close()
            raise RuntimeError("`ctx` and `t` cannot be used after their test has ended")

    def close(self) -> None:
        """Cancel all coroutines that are still running."""
        self._is_closed = True
        for future in tuple(self._pending):
            future.cancel()


class CallOutcome(Generic[R]):
    """What a coroutine returned or raised, as a value: a KeyboardInterrupt or SystemExit raised in a task would end the loop."""

    def __init__(self, value: R | None, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error

    def get(self) -> R:
        """The returned value. Raises what the coroutine raised."""
        __tracebackhide__ = True
        error = self._error
        if isinstance(error, VivaError):  # frames of Viva do not help the author of a test
            raise error.with_traceback(None) from error.__cause__
        if error is not None:
            raise error
        return cast("R", self._value)


async def catch_outcome(work: Awaitable[R]) -> CallOutcome[R]:
    """Await something and return its result or exception. Only a cancellation of the calling task is raised."""
    try:
        return CallOutcome(await work)
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        return CallOutcome[R](None, error)
    except BaseException as error:  # the caller in another thread gets it
        return CallOutcome[R](None, error)


class LoopThread:
    """An event loop in its own thread, for code that cannot await. The thread and those that it starts use the given cores, or all."""

    def __init__(self, cores: Collection[int] = ()) -> None:
        self._cores = cores
        self._ready: Future[tuple[LoopBridge, Callable[[], None]]] = Future()
        self._thread = threading.Thread(
            target=lambda: run_coroutine(self._run_until_stopped()), name="viva-loop", daemon=True
        )
        self._thread.start()
        self.bridge, self._stop = self._ready.result()

    def run_blocking(self, work: Coroutine[Any, Any, R]) -> R:
        """Like `LoopBridge.run_blocking`, on the loop of this thread."""
        __tracebackhide__ = True
        return self.bridge.run_blocking(work)

    def close(self) -> None:
        self.bridge.close()
        self._stop()
        self._thread.join()

    async def _run_until_stopped(self) -> None:
        if self._cores:
            with suppress(OSError):  # the system has taken these cores away meanwhile
                os.sched_setaffinity(0, self._cores)
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set_result((LoopBridge(loop), lambda: loop.call_soon_threadsafe(stopped.set) and None))
        await stopped.wait()


async def run_user_function(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user in a thread; an `async def` runs on its own loop there."""

    def call() -> Any:
        try:
            result = function(*arguments)
            return asyncio.run(_await(result)) if inspect.isawaitable(result) else result
        except SystemExit as error:  # sys.exit() ends the function, not the run
            raise RuntimeError(f"it called sys.exit({error.code!r})").with_traceback(error.__traceback__) from None
        except (Exception, EndTest, ThreadAbandoned):
            raise
        except BaseException as error:  # such as pytest.fail(): it ends the function, not the run
            raise RuntimeError(format_error(error)).with_traceback(error.__traceback__) from None

    return await run_in_thread(call)


async def _await(result: Awaitable[R]) -> R:
    return await result

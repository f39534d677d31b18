"""Runs on their way: begun when there is room, ended exactly once, cancelled when asked, taken up again after a restart."""

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from viva.host.errors import ApiError
from viva.host.events import run_cancelled, run_failed, run_started
from viva.host.log import EventDraft, RunLog, RunLogs, utc_timestamp
from viva.host.store import Run, Store

RETRY_AFTER_S = 5
RunFunction = Callable[[Run, RunLog], Awaitable[None]]


class RunError(Exception):
    """A run that cannot come to its end. `message` is ours alone: no word of a suite or an agent."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RunManager:
    """All runs of a host. `at_once` of them work at a time; the others wait their turn."""

    def __init__(self, store: Store, logs: RunLogs, max_running: int, max_unfinished: int) -> None:
        self.store = store
        self.logs = logs
        self._slots = asyncio.Semaphore(max_running)
        self._most = max_unfinished
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled_by: dict[str, str] = {}
        self.on_end: Callable[[str], object] = lambda _run: None
        """Hears of each run that is not at work any more."""
        self.run_functions: dict[str, RunFunction] = {}
        """How each kind of run is done."""

    def check_capacity(self) -> None:
        """Says so, rather than to take in more than can ever be done."""
        if len(self._tasks) >= self._most:
            details = {"scope": "global", "retryAfter": RETRY_AFTER_S, "retryAfterMs": RETRY_AFTER_S * 1000}
            raise ApiError(
                429, "rate_limited", "too many runs are waiting", details, {"Retry-After": str(RETRY_AFTER_S)}
            )

    def start(self, run: Run) -> None:
        task = asyncio.create_task(self._run(run), name=run.id)
        self._tasks[run.id] = task
        task.add_done_callback(lambda _: self._gone(run.id))

    def _gone(self, run: str) -> None:
        self._tasks.pop(run, None)
        self._cancelled_by.pop(run, None)
        self.on_end(run)

    async def wait_for_end(self, run: Run) -> Run:
        """Waits for the end of it."""
        task = self._tasks.get(run.id)
        if task is not None:
            await asyncio.wait((task,))
        return self.store.find_run(run.id, run.tenant) or run

    def resume_unfinished(self) -> int:
        """Goes on with what was not finished when the host went down."""
        unfinished = self.store.load_unfinished_runs()
        for run in unfinished:
            if run.status == "cancelling":
                self.end(run, self.logs.open_log(run.id), "cancelled", [run_cancelled("system")])
            else:
                self.start(run)
        return len(unfinished)

    def cancel(self, run: Run, cancelled_by: str) -> Run:
        """Asks a run to stop, once: to ask again while it does would break in on what it has to put away."""
        if run.id in self._cancelled_by:
            return run
        task = self._tasks.get(run.id)
        if task is None:
            self.end(run, self.logs.open_log(run.id), "cancelled", [run_cancelled(cancelled_by)])
            return run
        self._cancelled_by[run.id] = cancelled_by
        run.status = "cancelling"
        self.store.save_run(run)
        task.cancel()
        return run

    async def close(self) -> None:
        """Lets go of all runs; they are taken up again when the host is."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, run: Run, log: RunLog, status: Any, drafts: list[EventDraft]) -> None:
        """The last events of a run and its last state, written as one."""
        run.status = status
        run.completed_at = utc_timestamp()
        if not log.events:
            drafts = [run_started(run.workflow, run.tenant), *drafts]
            run.started_at = run.started_at or run.completed_at
        log.append(drafts, run)

    async def _run(self, run: Run) -> None:
        log = self.logs.open_log(run.id)
        try:
            async with self._slots:
                if not log.events:
                    run.status, run.started_at = "running", utc_timestamp()
                    log.append([run_started(run.workflow, run.tenant)], run)
                await self.run_functions[run.kind](run, log)
        except asyncio.CancelledError:
            if (by := self._cancelled_by.pop(run.id, None)) is not None and not log.is_finished:
                self.end(run, log, "cancelled", [run_cancelled(by)])
            # Otherwise the host goes down: the run is taken up when it comes back.
        except RunError as failed:
            self._fail(run, log, failed.code, failed.message)
        except Exception as broken:  # one run that breaks must not take the host with it
            log_error(f"run {run.id}", broken)
            self._fail(run, log, "internal_error", "the host broke while it ran this")

    def _fail(self, run: Run, log: RunLog, code: str, message: str) -> None:
        if not log.is_finished:
            run.error = {"code": code, "message": message}
            self.end(run, log, "failed", [run_failed(code, message)])


def log_error(what: str, broken: BaseException) -> None:
    """Where it broke, for the log. What the exception says stays out of it: it may quote an agent or a suite."""
    print(f"{what}: {type(broken).__name__}", file=sys.stderr)  # noqa: T201 -- the host's own log
    for frame in traceback.extract_tb(broken.__traceback__)[-6:]:
        print(f"  {frame.filename}:{frame.lineno} in {frame.name}", file=sys.stderr)  # noqa: T201 -- see above
    sys.stderr.flush()

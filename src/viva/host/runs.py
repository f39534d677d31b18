"""Executes the runs of a host: starts them in turns of the tenants, ends each exactly once, cancels and resumes them.

The limits of each tenant, and whether the host takes new runs at all, are here too.
"""

import asyncio
import errno
import math
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from viva.host.errors import ApiError
from viva.host.events import (
    EventDraft,
    RunLog,
    RunLogs,
    run_cancelled,
    run_failed,
    run_started,
    utc_timestamp,
)
from viva.host.monitoring import log_error
from viva.host.store import (
    ClaimedRun,
    LeaseLost,
    Run,
    RunKind,
    RunStatus,
    SequenceTaken,
    Store,
    StoreUnavailable,
    TenantQueue,
)
from viva.host.turns import HostWork, TenantTurns

RETRY_AFTER_S = 5
_BURST_S = 10
"""A tenant that has not sent requests for a while may send those of this many seconds at once."""


class TenantLimits(Struct, frozen=True, kw_only=True):
    """`[serve.tenant_limits]`, or `[openwop.tenants.NAME.limits]` for one tenant."""

    at_once: int = 8
    """How many runs execute in parallel; others wait."""
    max_unfinished: int = 1000
    """How many runs may wait or execute; more are refused."""
    requests_per_second: int = 100


class HostLimits:
    """The limits of a host and of its tenants."""

    def __init__(
        self,
        *,
        at_once: int,
        max_unfinished: int,
        defaults: Mapping[str, Any],
        by_tenant: Mapping[str, Mapping[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.at_once = at_once
        self.max_unfinished = max_unfinished
        self._default = TenantLimits(**defaults)
        self._by_tenant = {tenant: TenantLimits(**{**defaults, **limits}) for tenant, limits in by_tenant.items()}
        self._clock = clock
        self._requests: dict[str, tuple[float, float]] = {}
        """For each tenant: when it sent its last request, and how many more it could have sent then."""

    def for_tenant(self, tenant: str) -> TenantLimits:
        return self._by_tenant.get(tenant, self._default)

    def count_request(self, tenant: str) -> None:
        """Counts a request of the tenant. Raises an ApiError if the tenant has sent too many."""
        rate = self.for_tenant(tenant).requests_per_second
        now = self._clock()
        before, left = self._requests.get(tenant, (now, float(rate * _BURST_S)))
        left = min(rate * _BURST_S, left + (now - before) * rate)
        if left < 1:
            raise rate_limit_error("Too many requests of this tenant", "tenant", max(1, math.ceil((1 - left) / rate)))
        self._requests[tenant] = now, left - 1


def rate_limit_error(message: str, scope: Literal["tenant", "global"], retry_after_s: int = RETRY_AFTER_S) -> ApiError:
    details = {"scope": scope, "retryAfter": retry_after_s, "retryAfterMs": retry_after_s * 1000}
    headers = {"Retry-After": str(retry_after_s)}
    return ApiError(429, "rate_limited", f"{message}. Try again later", details, headers)


ReasonCode = Literal["disk_full", "database_unavailable", "draining"]

_REASON_MESSAGES: dict[ReasonCode, str] = {
    "disk_full": "There is no room on the disk. Runs wait until there is",
    "database_unavailable": "The database cannot be reached. Runs wait until it can",
    "draining": "The host is about to stop. Its unfinished runs continue after the start",
}


class NotReadyReason(Struct, frozen=True):
    """One reason why a host takes no new runs."""

    code: ReasonCode

    @property
    def message(self) -> str:
        return _REASON_MESSAGES[self.code]


class Readiness(Struct, frozen=True):
    """Why a host takes no new runs; it is ready if there is no reason."""

    reasons: tuple[NotReadyReason, ...] = ()

    @property
    def is_ready(self) -> bool:
        return not self.reasons


def is_disk_full_error(error: BaseException) -> bool:
    """Is this the error of a write for which the disk had no room?"""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def has_free_space(folder: Path, min_bytes: int) -> bool:
    """Does the disk of a folder have at least `min_bytes` free? A folder that cannot be examined counts as yes."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return True
    return disk.f_bavail * disk.f_frsize >= min_bytes


def not_ready_error(reason: NotReadyReason) -> ApiError:
    """The response of a host that takes no new runs: 507 if the disk is full, else 503."""
    status = 507 if reason.code == "disk_full" else 503
    details = {"reason": reason.code, "retryAfter": RETRY_AFTER_S}
    return ApiError(status, reason.code, reason.message, details, {"Retry-After": str(RETRY_AFTER_S)})


WATCH_INTERVAL_S = 1.0
"""How often a host looks in the store for waiting runs and cancellations, and whether a lost store is available again."""
REFRESH_INTERVAL_S = 5.0
"""How often a host reads the events of other hosts, in case a notification was lost."""


class RunError(Exception):
    """A run that cannot be completed. `message` holds no text of a suite or an agent."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RunEnd(Struct, frozen=True):
    """How a run ends: its status and last events. The run itself has its error, summary and metrics."""

    status: RunStatus
    events: tuple[EventDraft, ...]


RunFunction = Callable[[Run, RunLog, bytes | None, HostWork], Awaitable[RunEnd]]
"""Executes a run. The third argument is the inputs of the run; None if the run was started before a restart."""


class RunManager:
    """Executes the runs of this host. Runs that wait are rows of the store.

    Tenants take turns. `has_free_space` tells whether the disk has room for more runs.
    """

    def __init__(
        self,
        store: Store,
        logs: RunLogs,
        run_functions: Mapping[RunKind, RunFunction],
        limits: HostLimits,
        has_free_space: Callable[[], bool],
    ) -> None:
        self.store = store
        self.logs = logs
        self.limits = limits
        self.turns = TenantTurns()
        self.is_draining = False
        self.ended: Counter[tuple[RunKind, RunStatus]] = Counter()
        """How many runs ended here, by kind and status."""
        self._run_functions = run_functions
        self._has_free_space = has_free_space
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tenants: dict[str, str] = {}
        """The tenant of each run that executes here."""
        self._cancelled_by: dict[str, str] = {}
        self._interrupted: set[str] = set()
        """Runs that could not write to the store. They continue when the store is available again."""
        self._turns: dict[str, int] = {}
        """The number of the last turn of each tenant."""
        self._unavailable: ReasonCode | None = None
        self._available = asyncio.Event()
        self._available.set()
        self._is_closed = False
        self._watcher: asyncio.Task[None] | None = None
        self._next_renewal = 0.0
        self._next_refresh = 0.0
        self._no_claims_until = 0.0

    @property
    def running_count(self) -> int:
        return len(self._tasks)

    def readiness(self) -> Readiness:
        codes: list[ReasonCode] = ["draining"] if self.is_draining else []
        if self._unavailable is not None:
            codes.append(self._unavailable)
        elif not self._has_free_space():
            codes.append("disk_full")
        return Readiness(tuple(NotReadyReason(code) for code in codes))

    def check_capacity(self, tenant: str) -> None:
        """Raises an ApiError if the tenant cannot start another run now."""
        if reasons := self.readiness().reasons:
            raise not_ready_error(reasons[0])
        if self.store.count_unfinished(tenant) >= self.limits.for_tenant(tenant).max_unfinished:
            raise rate_limit_error("Too many unfinished runs of this tenant", "tenant")
        if self.store.count_unfinished() >= self.limits.max_unfinished:
            raise rate_limit_error("Too many unfinished runs", "global")

    def open(self) -> None:
        """Continues runs that were unfinished when the host stopped, and starts to watch the store."""
        loop = asyncio.get_running_loop()
        self.store.watch(lambda run, notice: loop.call_soon_threadsafe(self._read_remote_change, run, notice))
        self.start_waiting_runs()
        self._watcher = asyncio.create_task(self._watch_store(), name="watcher of the store")

    def start(self, run: Run) -> None:
        """Starts a new run, if it is the turn of its tenant; else the run waits."""
        if len(self._tasks) < self.limits.at_once or run.tenant not in self._tenants.values():
            self.start_waiting_runs()

    def start_waiting_runs(self) -> None:
        """Starts waiting runs, as many as the limits allow."""
        is_too_early = asyncio.get_running_loop().time() < self._no_claims_until
        if self._is_closed or is_too_early or not self.readiness().is_ready:
            return
        try:
            while (queue := self._choose_queue(self.store.list_queues())) is not None:
                self._turns[queue.tenant] = max(self._turns.values(), default=0) + 1
                if queue.next_run is not None and (claimed := self.store.claim_run(queue.next_run)) is not None:
                    self._start_claimed(claimed)
        except StoreUnavailable as error:
            self._pause_starts(error)

    def _choose_queue(self, queues: Iterable[TenantQueue]) -> TenantQueue | None:
        """The queue of the tenant that has waited longest for its turn. A tenant without a running run does not wait for others."""
        is_full = len(self._tasks) >= self.limits.at_once
        waiting = [
            queue
            for queue in queues
            if queue.next_run is not None
            and queue.next_run not in self._tasks
            and queue.running < self.limits.for_tenant(queue.tenant).at_once
            and (not is_full or queue.tenant not in self._tenants.values())
        ]
        return min(waiting, key=lambda queue: (self._turns.get(queue.tenant, 0), queue.tenant), default=None)

    def claim_and_start(self, run_id: str) -> bool:
        """Starts a waiting run, unless it is claimed already. Returns whether the run was started."""
        claimed = self.store.claim_run(run_id)
        if claimed is not None:
            self._start_claimed(claimed)
        return claimed is not None

    def _start_claimed(self, claimed: ClaimedRun) -> None:
        run = claimed.run
        task = asyncio.create_task(self._execute(claimed), name=run.id)
        self._tasks[run.id], self._tenants[run.id] = task, run.tenant
        task.add_done_callback(lambda _: self._remove_task(run.id))

    def _remove_task(self, run_id: str) -> None:
        del self._tasks[run_id], self._tenants[run_id]
        self._cancelled_by.pop(run_id, None)
        self.start_waiting_runs()

    async def wait_for_end(self, run: Run) -> Run:
        log = self.logs.open_log(run.id)
        while not log.is_finished:
            await log.change.wait()
        return self.store.find_run(run.id, run.tenant) or run

    def cancel(self, run: Run, cancelled_by: str) -> Run:
        """Cancels a run once: a second cancellation would interrupt its clean-up. A run of another host is cancelled by that host."""
        self.store.request_cancel(run.id, cancelled_by)
        if run.id in self._tasks:
            self._cancel_task(run.id, cancelled_by)
        elif (claimed := self.store.claim_run(run.id)) is not None:
            try:
                self.end(claimed.run, self.logs.open_log(run.id), "cancelled", [run_cancelled(cancelled_by)])
            finally:
                self.store.forget_lease(run.id)  # if nothing can be written now, whoever claims it later ends it
            return claimed.run
        run.status = "cancelling"
        return run

    def _cancel_task(self, run_id: str, cancelled_by: str) -> None:
        if run_id not in self._cancelled_by:
            self._cancelled_by[run_id] = cancelled_by
            _cancel_after_start(self._tasks[run_id])

    def drain(self) -> None:
        """Starts no more runs here; those that execute go on."""
        self.is_draining = True

    async def close(self) -> None:
        """Interrupts all runs. They are resumed when the host starts again, or by another host."""
        self._is_closed = True
        tasks = [*self._tasks.values(), *([self._watcher] if self._watcher else [])]
        for task in tasks:
            _cancel_after_start(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, run: Run, log: RunLog, status: RunStatus, drafts: Iterable[EventDraft]) -> None:
        """Saves the last events and the final state of a run in one transaction."""
        log.refresh()
        if log.is_finished:  # the connection broke after the database had stored the end
            self.store.forget_lease(run.id)
            return
        run.status = status
        run.completed_at = utc_timestamp()
        drafts = list(drafts)
        if not log.count:
            drafts = [run_started(run.workflow, run.tenant), *drafts]
            run.started_at = run.started_at or run.completed_at
        log.append(drafts, run)
        self.ended[run.kind, status] += 1
        self.store.forget_lease(run.id)

    async def _execute(self, claimed: ClaimedRun) -> None:
        run = claimed.run
        try:
            log = self.logs.open_log(run.id)
            with self.turns.work_for(run.tenant) as work:
                end = await self._run_to_end(claimed, log, work)
                await self._save_end(run, log, end)
        except asyncio.CancelledError:  # the host shuts down, or another one has the run
            self._release_lease(run)
        except (LeaseLost, SequenceTaken):
            self.store.forget_lease(run.id)  # another host executes the run
        except StoreUnavailable as error:
            self._interrupted.add(run.id)
            self._pause_starts(error)
        except Exception as error:  # a bug in one run must not end the host; the run is tried again when its lease ends
            log_error(f"run {run.id}", error)
            self.store.forget_lease(run.id)

    async def _run_to_end(self, claimed: ClaimedRun, log: RunLog, work: HostWork) -> RunEnd:
        run = claimed.run
        try:
            log.refresh()
            if claimed.cancelled_by is not None or run.status == "cancelling":
                return RunEnd("cancelled", (run_cancelled(claimed.cancelled_by or "system"),))
            if not log.count:
                run.status, run.started_at = "running", utc_timestamp()
                log.append([run_started(run.workflow, run.tenant)], run)
            return await self._run_functions[run.kind](run, log, claimed.inputs, work)
        except asyncio.CancelledError:
            cancelled_by = self._cancelled_by.get(run.id)
            if cancelled_by is None:
                raise
            return RunEnd("cancelled", (run_cancelled(cancelled_by),))
        except RunError as error:
            return _fail_run(run, error.code, error.message)
        except (LeaseLost, SequenceTaken, StoreUnavailable):
            raise
        except Exception as error:  # a bug in one run must not end the host
            if is_disk_full_error(error):
                raise StoreUnavailable("disk_full") from error
            log_error(f"run {run.id}", error)
            return _fail_run(run, "internal_error", "Internal error of the host")

    async def _save_end(self, run: Run, log: RunLog, end: RunEnd) -> None:
        """Saves the end of a run. If the store is unavailable it waits: the agent must not be called again."""
        while not log.is_finished:
            try:
                self.end(run, log, end.status, end.events)
            except StoreUnavailable as error:
                self._pause_starts(error)
                await self._available.wait()

    def _release_lease(self, run: Run) -> None:
        try:
            self.store.release_lease(run.id)
        except StoreUnavailable:
            self.store.forget_lease(run.id)

    # What happens outside of this host

    def _pause_starts(self, error: StoreUnavailable) -> None:
        """Starts no more runs until the store is available again."""
        self._unavailable = error.reason
        self._available.clear()

    async def _watch_store(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            try:
                if self._unavailable is not None:
                    await asyncio.to_thread(self.store.check)
                    self._renew_leases()
                    self._resume_interrupted()
                elif loop.time() >= self._next_renewal:
                    self._renew_leases()
                    self._next_renewal = loop.time() + self.store.lease_s / 3
                for run_id, cancelled_by in self.store.list_cancelled().items():
                    if run_id in self._tasks:
                        self._cancel_task(run_id, cancelled_by)
                if self.store.is_shared and loop.time() >= self._next_refresh:
                    self.logs.refresh_logs()
                    self._next_refresh = loop.time() + REFRESH_INTERVAL_S
                self.start_waiting_runs()
            except StoreUnavailable as error:
                self._pause_starts(error)
            except Exception as error:  # a bug here must not stop the watch over all runs
                log_error("watcher of the store", error)

    def _renew_leases(self) -> None:
        for run_id in self.store.renew_leases():
            if run_id in self._tasks:
                self._tasks[run_id].cancel()

    def _resume_interrupted(self) -> None:
        while self._interrupted:
            run_id = next(iter(self._interrupted))  # `set.pop` may take another one
            self.store.release_lease(run_id)
            self._interrupted.remove(run_id)
        self._unavailable = None
        self._available.set()
        if self.store.is_shared:  # first every host renews its leases, which may have ended meanwhile
            self._no_claims_until = asyncio.get_running_loop().time() + 3 * WATCH_INTERVAL_S

    def _read_remote_change(self, run_id: str, notice: bytes | None) -> None:
        """Reads what another host has written to the log of a run."""
        try:
            self.logs.read_remote_change(run_id, notice)
        except StoreUnavailable as error:
            self._pause_starts(error)


def _cancel_after_start(task: asyncio.Task[None]) -> None:
    """Cancels a task after its first step. Without that step it would neither end its run nor release the lease."""
    asyncio.get_running_loop().call_soon(task.cancel)


def _fail_run(run: Run, code: str, message: str) -> RunEnd:
    run.error = {"code": code, "message": message}
    return RunEnd("failed", (run_failed(code, message),))

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
    Claim,
    LeaseLost,
    Run,
    RunKind,
    RunStatus,
    SequenceTaken,
    Store,
    StoreUnavailable,
    TenantQueue,
)

RETRY_AFTER_S = 5
_BURST_S = 10
"""A tenant that was quiet may send the requests of so many seconds at once."""


class TenantLimits(Struct, frozen=True, kw_only=True):
    """`[serve.tenant_limits]`, or `[openwop.tenants.NAME.limits]` for one tenant."""

    at_once: int = 8
    """Runs at a time; others wait."""
    max_unfinished: int = 1000
    """Waiting and running runs; more are refused."""
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
        """For each tenant the time of its last request, and how many it might send then."""

    def of_tenant(self, tenant: str) -> TenantLimits:
        return self._by_tenant.get(tenant, self._default)

    def count_request(self, tenant: str) -> None:
        """Raises an ApiError if the tenant sends too many requests."""
        rate = self.of_tenant(tenant).requests_per_second
        now = self._clock()
        before, left = self._requests.get(tenant, (now, float(rate * _BURST_S)))
        left = min(rate * _BURST_S, left + (now - before) * rate)
        if left < 1:
            raise too_many("Too many requests of this tenant", "tenant", max(1, math.ceil((1 - left) / rate)))
        self._requests[tenant] = now, left - 1


def too_many(message: str, scope: Literal["tenant", "global"], retry_after_s: int = RETRY_AFTER_S) -> ApiError:
    details = {"scope": scope, "retryAfter": retry_after_s, "retryAfterMs": retry_after_s * 1000}
    headers = {"Retry-After": str(retry_after_s)}
    return ApiError(429, "rate_limited", f"{message}. Try again later", details, headers)


ReasonCode = Literal["disk_full", "database_unavailable", "draining"]

MESSAGES: dict[ReasonCode, str] = {
    "disk_full": "There is no room on the disk. Runs wait until there is",
    "database_unavailable": "The database cannot be reached. Runs wait until it can",
    "draining": "The host is about to stop. Its unfinished runs continue after the start",
}


class NotReadyReason(Struct, frozen=True):
    """One reason why a host takes no new runs."""

    code: ReasonCode

    @property
    def message(self) -> str:
        return MESSAGES[self.code]


class Readiness(Struct, frozen=True):
    """Why a host takes no new runs; it is ready if there is no reason."""

    reasons: tuple[NotReadyReason, ...] = ()

    @property
    def is_ready(self) -> bool:
        return not self.reasons


def is_disk_full(error: BaseException) -> bool:
    """Did a write fail because there was no room?"""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def has_free_space(folder: Path, min_bytes: int) -> bool:
    """Has the disk of a folder so much room? A folder that cannot be examined counts as one with room."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return True
    return disk.f_bavail * disk.f_frsize >= min_bytes


def not_ready(reason: NotReadyReason) -> ApiError:
    """507 if the disk is full, else 503."""
    status = 507 if reason.code == "disk_full" else 503
    details = {"reason": reason.code, "retryAfter": RETRY_AFTER_S}
    return ApiError(status, reason.code, reason.message, details, {"Retry-After": str(RETRY_AFTER_S)})


TICK_S = 1.0
"""How often a host looks for runs and cancellations of other hosts, and whether its store is back."""
REFRESH_S = 5.0
"""How often it looks for their events, in case a notification was lost."""


class RunError(Exception):
    """A run that cannot be completed. `message` holds no text of a suite or an agent."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RunEnding(Struct, frozen=True):
    """How a run ends: its status and last events. The run itself has its error, summary and metrics."""

    status: RunStatus
    events: tuple[EventDraft, ...]


RunFunction = Callable[[Run, RunLog, bytes | None], Awaitable[RunEnding]]
"""Executes a run. It gets the inputs of a run that starts; None after a restart."""


class RunManager:
    """The runs that this host executes. All others that are unfinished wait as rows of the store.

    Tenants take turns. `has_room` tells whether the disk has room for more.
    """

    def __init__(
        self,
        store: Store,
        logs: RunLogs,
        run_functions: Mapping[RunKind, RunFunction],
        limits: HostLimits,
        has_room: Callable[[], bool],
    ) -> None:
        self.store = store
        self.logs = logs
        self.limits = limits
        self.is_draining = False
        self.ended: Counter[tuple[RunKind, RunStatus]] = Counter()
        """How many runs ended here, by kind and status."""
        self._run_functions = run_functions
        self._has_room = has_room
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tenants: dict[str, str] = {}
        """The tenant of each run that executes here."""
        self._cancelled_by: dict[str, str] = {}
        self._interrupted: set[str] = set()
        """Runs that could not write to the store. They go on when it is back."""
        self._turns: dict[str, int] = {}
        """When each tenant had its last turn."""
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
        elif not self._has_room():
            codes.append("disk_full")
        return Readiness(tuple(NotReadyReason(code) for code in codes))

    def check_capacity(self, tenant: str) -> None:
        """Raises an ApiError if the tenant cannot start another run now."""
        if reasons := self.readiness().reasons:
            raise not_ready(reasons[0])
        if self.store.count_unfinished(tenant) >= self.limits.of_tenant(tenant).max_unfinished:
            raise too_many("Too many unfinished runs of this tenant", "tenant")
        if self.store.count_unfinished() >= self.limits.max_unfinished:
            raise too_many("Too many unfinished runs", "global")

    def open(self) -> None:
        """Continues the runs that were unfinished when the host stopped, and watches the store from then on."""
        loop = asyncio.get_running_loop()
        self.store.watch(lambda run, notice: loop.call_soon_threadsafe(self._note_change, run, notice))
        self.start_waiting()
        self._watcher = asyncio.create_task(self._watch(), name="watcher of the store")

    def start(self, run: Run) -> None:
        """Starts a new run, if it is its turn."""
        if len(self._tasks) < self.limits.at_once or run.tenant not in self._tenants.values():
            self.start_waiting()

    def start_waiting(self) -> None:
        """Starts as many waiting runs as there may be."""
        is_too_early = asyncio.get_running_loop().time() < self._no_claims_until
        if self._is_closed or is_too_early or not self.readiness().is_ready:
            return
        try:
            while (queue := self._choose_tenant(self.store.list_queues())) is not None:
                self._turns[queue.tenant] = max(self._turns.values(), default=0) + 1
                if queue.next_run is not None and (claim := self.store.claim_run(queue.next_run)) is not None:
                    self._start_claimed(claim)
        except StoreUnavailable as error:
            self._pause(error)

    def _choose_tenant(self, queues: Iterable[TenantQueue]) -> TenantQueue | None:
        """The tenant that has waited longest for its turn. One without a running run never waits for other tenants."""
        is_full = len(self._tasks) >= self.limits.at_once
        waiting = [
            queue
            for queue in queues
            if queue.next_run is not None
            and queue.next_run not in self._tasks
            and queue.running < self.limits.of_tenant(queue.tenant).at_once
            and (not is_full or queue.tenant not in self._tenants.values())
        ]
        return min(waiting, key=lambda queue: (self._turns.get(queue.tenant, 0), queue.tenant), default=None)

    def start_if_free(self, name: str) -> bool:
        """Starts a waiting run, unless another executor has claimed it. Returns whether this one did."""
        claim = self.store.claim_run(name)
        if claim is not None:
            self._start_claimed(claim)
        return claim is not None

    def _start_claimed(self, claim: Claim) -> None:
        run = claim.run
        task = asyncio.create_task(self._execute(claim), name=run.id)
        self._tasks[run.id], self._tenants[run.id] = task, run.tenant
        task.add_done_callback(lambda _: self._remove(run.id))

    def _remove(self, run: str) -> None:
        del self._tasks[run], self._tenants[run]
        self._cancelled_by.pop(run, None)
        self.start_waiting()

    async def wait_for_end(self, run: Run) -> Run:
        log = self.logs.open_log(run.id)
        while not log.is_finished:
            await log.change.wait()
        return self.store.find_run(run.id, run.tenant) or run

    def cancel(self, run: Run, cancelled_by: str) -> Run:
        """Cancels a run once: a second cancellation would interrupt its clean-up. Another host cancels its own runs."""
        self.store.request_cancel(run.id, cancelled_by)
        if run.id in self._tasks:
            self._cancel_task(run.id, cancelled_by)
        elif (claim := self.store.claim_run(run.id)) is not None:
            try:
                self.end(claim.run, self.logs.open_log(run.id), "cancelled", [run_cancelled(cancelled_by)])
            finally:
                self.store.forget_lease(run.id)  # if nothing can be written now, whoever claims it later ends it
            return claim.run
        run.status = "cancelling"
        return run

    def _cancel_task(self, run: str, cancelled_by: str) -> None:
        if run not in self._cancelled_by:
            self._cancelled_by[run] = cancelled_by
            self._tasks[run].cancel()

    def drain(self) -> None:
        """Starts no more runs here; those that execute go on."""
        self.is_draining = True

    async def close(self) -> None:
        """Interrupts all runs; the next start of the host, or another host, resumes them."""
        self._is_closed = True
        tasks = [*self._tasks.values(), *([self._watcher] if self._watcher else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, run: Run, log: RunLog, status: RunStatus, drafts: Iterable[EventDraft]) -> None:
        """Saves the last events and the final state of a run in one transaction."""
        log.refresh()
        if log.is_finished:  # the database was lost when it had stored the end, but not said so
            self.store.forget_lease(run.id)
            return
        run.status = status
        run.completed_at = utc_timestamp()
        drafts = list(drafts)
        if not log.events:
            drafts = [run_started(run.workflow, run.tenant), *drafts]
            run.started_at = run.started_at or run.completed_at
        log.append(drafts, run)
        self.ended[run.kind, status] += 1
        self.store.forget_lease(run.id)

    async def _execute(self, claim: Claim) -> None:
        run = claim.run
        try:
            log = self.logs.open_log(run.id)
            ending = await self._run_to_end(claim, log)
            await self._save_ending(run, log, ending)
        except asyncio.CancelledError:  # the host shuts down, or another one has the run
            self._give_back(run)
        except (LeaseLost, SequenceTaken):
            self.store.forget_lease(run.id)  # another host executes the run
        except StoreUnavailable as error:
            self._interrupted.add(run.id)
            self._pause(error)
        except Exception as error:  # a bug in one run must not end the host; the run is tried again when its lease ends
            log_error(f"run {run.id}", error)
            self.store.forget_lease(run.id)

    async def _run_to_end(self, claim: Claim, log: RunLog) -> RunEnding:
        run = claim.run
        try:
            log.refresh()
            if claim.cancelled_by is not None or run.status == "cancelling":
                return RunEnding("cancelled", (run_cancelled(claim.cancelled_by or "system"),))
            if not log.events:
                run.status, run.started_at = "running", utc_timestamp()
                log.append([run_started(run.workflow, run.tenant)], run)
            return await self._run_functions[run.kind](run, log, claim.inputs)
        except asyncio.CancelledError:
            cancelled_by = self._cancelled_by.get(run.id)
            if cancelled_by is None:
                raise
            return RunEnding("cancelled", (run_cancelled(cancelled_by),))
        except RunError as error:
            return _fail(run, error.code, error.message)
        except (LeaseLost, SequenceTaken, StoreUnavailable):
            raise
        except Exception as error:  # a bug in one run must not end the host
            if is_disk_full(error):
                raise StoreUnavailable("disk_full") from error
            log_error(f"run {run.id}", error)
            return _fail(run, "internal_error", "Internal error of the host")

    async def _save_ending(self, run: Run, log: RunLog, ending: RunEnding) -> None:
        """Saves the end of a run; waits for the store if need be, since an agent is not asked twice."""
        while not log.is_finished:
            try:
                self.end(run, log, ending.status, ending.events)
            except StoreUnavailable as error:
                self._pause(error)
                await self._available.wait()

    def _give_back(self, run: Run) -> None:
        try:
            self.store.release_run(run.id)
        except StoreUnavailable:
            self.store.forget_lease(run.id)

    # What happens outside of this host

    def _pause(self, error: StoreUnavailable) -> None:
        """Starts no more runs until the store is back."""
        self._unavailable = error.reason
        self._available.clear()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            try:
                if self._unavailable is not None:
                    await asyncio.to_thread(self.store.check)
                    self._renew_leases()
                    self._resume_interrupted()
                elif loop.time() >= self._next_renewal:
                    self._renew_leases()
                    self._next_renewal = loop.time() + self.store.lease_s / 3
                for run, cancelled_by in self.store.list_cancelled().items():
                    if run in self._tasks:
                        self._cancel_task(run, cancelled_by)
                if self.store.is_shared and loop.time() >= self._next_refresh:
                    self.logs.refresh_logs()
                    self._next_refresh = loop.time() + REFRESH_S
                self.start_waiting()
            except StoreUnavailable as error:
                self._pause(error)
            except Exception as error:  # a bug here must not stop the watch over all runs
                log_error("watcher of the store", error)

    def _renew_leases(self) -> None:
        for run in self.store.renew_leases():
            if run in self._tasks:
                self._tasks[run].cancel()

    def _resume_interrupted(self) -> None:
        while self._interrupted:
            self.store.release_run(next(iter(self._interrupted)))
            self._interrupted.pop()
        self._unavailable = None
        self._available.set()
        if self.store.is_shared:  # first every host renews its leases, which may have ended meanwhile
            self._no_claims_until = asyncio.get_running_loop().time() + 3 * TICK_S

    def _note_change(self, run: str, notice: bytes | None) -> None:
        """Another host has written to the log of a run."""
        try:
            self.logs.note_change(run, notice)
        except StoreUnavailable as error:
            self._pause(error)


def _fail(run: Run, code: str, message: str) -> RunEnding:
    run.error = {"code": code, "message": message}
    return RunEnding("failed", (run_failed(code, message),))

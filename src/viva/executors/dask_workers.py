"""Workers by Dask: a local cluster of processes (`--workers`), or an existing cluster (`--cluster`).

Each worker process has one actor. A request goes to the worker with the fewest running requests. If a worker ends, its requests
run again on other workers. A request that has lost its worker twice gets a worker of its own; if that ends twice too, the
request is the cause and fails.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from distributed import Client
from distributed.client import FutureCancelledError
from msgspec import Struct

from viva.errors import BadInput, RunStopped, WorkerCrashed
from viva.executors.dask_cluster import Cluster, connect, find_dashboard
from viva.executors.request_batches import RequestSender
from viva.executors.worker_load import WorkerLoad

_POLL_INTERVAL_S = 0.25
_NO_WORKER_TIMEOUT_S = 60.0
_CONTACT_TIMEOUT_S = 10.0
_START_CONTACT_TIMEOUT_S = 60.0
"""A scheduler does not respond while it imports Viva for the first actor."""
_PREPARE_TIMEOUT_S = 600.0
_CLOSE_TIMEOUT_S = 5.0
_LOSSES_BEFORE_ALONE = 2
_MAX_LOSSES_ALONE = 2
_MAX_LOST_PREPARATIONS = 3
_NO_SCHEDULER = "the scheduler of the cluster is gone"
_LOST_ACTOR = "Worker holding Actor was lost"
"""The message of the RuntimeError that Dask raises."""

CallActor = Callable[..., Awaitable[Any]]
"""Calls a method of a worker's actor. Arguments: the name of the method, then its arguments."""


class ActorSpec(Struct, frozen=True):
    """The actor of a worker: a class with async methods `exchange` (of a RequestQueue), `set_worker_count` and `close`.

    `prepare` makes a new actor ready and returns warnings. It raises BadInput if the worker cannot be used.
    """

    actor_type: type
    arguments: tuple[bytes, ...]
    prepare: Callable[[CallActor], Awaitable[Iterable[str]]]


@asynccontextmanager
async def open_dask_workers(cluster: Cluster, actor: ActorSpec, load: WorkerLoad) -> AsyncGenerator["DaskWorkers"]:
    """Start or connect to the cluster, and prepare every worker. Raises BadInput with the problems of all workers."""
    async with AsyncExitStack() as exits:
        client = await exits.enter_async_context(connect(cluster))
        workers = DaskWorkers(client, actor, load, dashboard=await find_dashboard(client, cluster))
        exits.push_async_callback(workers.close)
        await workers.start(minimum=cluster.worker_count or 1)
        yield workers


class _WorkerLostError(Exception):
    """The worker process of a call has ended."""


@contextmanager
def _detect_loss() -> Generator[None]:
    """Raises _WorkerLostError if the process of an actor has ended."""
    try:
        yield
    except OSError as error:  # of the connection: the actor turns its own into results
        raise _WorkerLostError from error
    except RuntimeError as error:
        if _LOST_ACTOR not in str(error):
            raise
        raise _WorkerLostError from error


async def _call_actor(actor: Any, method: str, *arguments: Any) -> Any:
    """Call a method of an actor. Raises _WorkerLostError if its process has ended."""
    with _detect_loss():
        return await getattr(actor, method)(*arguments)


class _Worker:
    """A worker process with its actor, and the requests that it is running. `on_lost` is called when its process has ended."""

    def __init__(self, address: str, actor: Any, on_lost: Callable[["_Worker"], None]) -> None:
        self.address = address
        self.actor = actor
        self.requests = RequestSender(self._exchange)
        self._on_lost = on_lost
        self.reserved_for: _PendingRequest | None = None
        self.is_lost = False

    async def _exchange(self, batch: bytes) -> bytes:
        try:
            return await _call_actor(self.actor, "exchange", batch)
        except _WorkerLostError:
            self._on_lost(self)
            raise


class _PendingRequest:
    """A request, and how many times its worker has ended."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.losses = 0
        self.losses_alone = 0

    @property
    def is_alone(self) -> bool:
        return self.losses >= _LOSSES_BEFORE_ALONE


class DaskWorkers:
    """The workers of a cluster. Workers that join the cluster later are used too."""

    def __init__(
        self, client: Client, actor: ActorSpec, load: WorkerLoad | None = None, *, dashboard: str | None = None
    ) -> None:
        self._client: Any = client
        self._actor = actor
        self._load = load or WorkerLoad()
        self.dashboard = dashboard
        self._warnings: list[str] = []
        self._workers: dict[str, _Worker] = {}
        self._known_folders: dict[str, str] = {}
        """The workers that are used, refused, or being prepared: by address the folder, which no other process has."""
        self._preparations: dict[str, asyncio.Task[None]] = {}
        """The workers that are being prepared, by address."""
        self._refusals: list[BadInput] = []
        """Why workers could not be used, before the start is complete."""
        self._is_started = False
        self._lost_preparations = 0
        """How many workers in a row have ended while they were being prepared."""
        self._last_worker = 0.0
        """When there was a worker, or one that was being prepared."""
        self._sharing_addresses: frozenset[str] = frozenset()
        self._changed = asyncio.Condition()
        self._waiting = 0
        """How many requests wait for a worker."""
        self._failure: RunStopped | None = None
        self._is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cancellations: set[asyncio.Task[None]] = set()
        self._cancelled_results: list[bytes] = []

    @property
    def count(self) -> int:
        return len(self._workers)

    async def start(self, minimum: int) -> None:
        """Wait for at least `minimum` workers, and prepare all that are there. Raises BadInput if one cannot be used."""
        watcher = self._run_in_background(self._watch_workers())
        watcher.add_done_callback(self._end_watching)
        last_change = time.monotonic()
        async with self._changed:
            while self._preparations or len(self._workers) < minimum:
                if self._failure is not None:
                    raise BadInput.of(self._failure.reason)
                if self._preparations:
                    last_change = time.monotonic()
                elif self._refusals:
                    break
                elif time.monotonic() - last_change > _NO_WORKER_TIMEOUT_S:
                    raise BadInput.of(
                        f"the cluster has {self.count} workers after {_NO_WORKER_TIMEOUT_S:.0f} s; start some first"
                    )
                await self._changed.wait()
        if self._refusals:
            raise BadInput(*dict.fromkeys(problem for each in self._refusals for problem in each.problems))
        await self._share_limits()
        self._is_started = True

    async def run(self, request: bytes) -> bytes:
        pending = _PendingRequest(request)
        while True:
            worker = await self._acquire_worker(pending)
            try:
                return await self._call(worker, request)
            except _WorkerLostError:
                if self._failure is not None:
                    raise self._failure from None
                pending.losses_alone += pending.is_alone
                pending.losses += 1
            finally:
                self._release_reservation(pending)
            if pending.losses_alone == _MAX_LOSSES_ALONE:
                raise WorkerCrashed

    def take_warnings(self) -> list[str]:
        warnings, self._warnings = self._warnings, []
        return warnings

    async def take_cancelled_results(self) -> list[bytes]:
        if self._cancellations:
            await asyncio.wait(self._cancellations, timeout=_CLOSE_TIMEOUT_S)
        results, self._cancelled_results = self._cancelled_results, []
        return results

    async def close(self) -> None:
        self._is_closed = True
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT_S)
        await self._call_all_actors("close")

    async def _call_all_actors(self, method: str, *arguments: Any) -> None:
        """Call a method of all actors. Actors that have ended, or do not respond in time, are ignored."""
        calls = [
            asyncio.ensure_future(_call_actor(worker.actor, method, *arguments)) for worker in self._workers.values()
        ]
        if calls:
            _, unfinished = await asyncio.wait(calls, timeout=_CLOSE_TIMEOUT_S)
            for call in unfinished:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _call(self, worker: _Worker, request: bytes) -> bytes:
        """Send a request to a worker and return its result. A cancelled request is cancelled in the worker too.

        Raises _WorkerLostError if the worker ended.
        """
        number, result = worker.requests.send(request)
        self._load.in_flight += 1
        try:
            content = await asyncio.shield(result)
        except asyncio.CancelledError:
            task = self._run_in_background(self._cancel_request(worker, number, result))
            self._cancellations.add(task)
            task.add_done_callback(self._cancellations.discard)
            raise
        except BaseException:
            self._load.in_flight -= 1
            raise
        self._load.in_flight -= 1
        return content

    async def _cancel_request(self, worker: _Worker, number: int, result: asyncio.Future[bytes]) -> None:
        """Cancel a request in its worker, and keep its result, which has the cost."""
        try:
            worker.requests.cancel(number)
            await asyncio.wait([result], timeout=_CLOSE_TIMEOUT_S)
        finally:
            worker.requests.forget(number)
            self._load.in_flight -= 1
            if not result.cancelled() and result.exception() is None:
                self._cancelled_results.append(result.result())
            await self._notify()

    async def _acquire_worker(self, request: _PendingRequest) -> _Worker:
        if (worker := self._choose_worker(request)) is not None:
            return worker
        self._waiting += 1
        try:
            async with self._changed:
                while (worker := self._choose_worker(request)) is None:
                    if self._failure is not None:
                        raise self._failure
                    await self._changed.wait()
                return worker
        except BaseException:
            self._release_reservation(request)
            raise
        finally:
            self._waiting -= 1

    def _choose_worker(self, request: _PendingRequest) -> _Worker | None:
        """Return the worker with the fewest calls. A worker that is reserved for a request gets no others, so that it becomes free."""
        workers = self._workers.values()
        worker = next((each for each in workers if each.reserved_for is request), None)
        if worker is None:
            free = (each for each in workers if each.reserved_for is None)
            worker = min(free, key=lambda each: len(each.requests), default=None)
        if worker is None or not request.is_alone:
            return worker
        worker.reserved_for = request
        return None if worker.requests else worker

    def _release_reservation(self, request: _PendingRequest) -> None:
        for worker in self._workers.values():
            if worker.reserved_for is request:
                worker.reserved_for = None
        if self._waiting:
            self._run_in_background(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _run_in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._remove_task)
        return task

    def _remove_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # what matters was handled inside

    def _lose_worker(self, worker: _Worker) -> None:
        if worker.is_lost:
            return
        del self._workers[worker.address]
        self._known_folders.pop(worker.address, None)
        self._load.workers -= 1
        self._last_worker = time.monotonic()  # it may have come and gone between two looks of `_watch_workers`
        worker.is_lost = True
        running = len(worker.requests)
        worker.requests.close(_WorkerLostError())
        if self._failure is not None:
            return
        self._load.lost += 1
        if running:
            self._warnings.append(
                f"worker {worker.address} ended with {running} trial{'s' if running != 1 else ''} in flight, which run again; "
                "their cost so far is not in the total"
            )

    async def _watch_workers(self) -> None:
        """Notice workers that come and go, and stop the run if none are left."""
        self._last_worker = time.monotonic()
        failing_since: float | None = None
        while self._failure is None and not self._is_closed:
            try:
                async with asyncio.timeout(_CONTACT_TIMEOUT_S):  # wait_for of Python 3.11 can lose a cancellation
                    folders = await self._list_folders()
            except (OSError, TimeoutError):
                # Not since the last contact: this process may have slept.
                failing_since = failing_since or time.monotonic()
                limit_s = _CONTACT_TIMEOUT_S if self._is_started else _START_CONTACT_TIMEOUT_S
                if time.monotonic() - failing_since > limit_s:
                    self._stop_run(_NO_SCHEDULER)
            else:
                failing_since = None
                self._update_workers(folders)
            await self._notify()
            await asyncio.sleep(_POLL_INTERVAL_S)

    def _update_workers(self, folders: Mapping[str, str]) -> None:
        """Give up workers that are gone, and prepare new ones. `folders` has the folder of each worker by address."""
        for address, folder in tuple(self._known_folders.items()):
            if folders.get(address) == folder:
                continue
            del self._known_folders[address]
            if address in self._workers:
                self._lose_worker(self._workers[address])
            elif (preparation := self._preparations.pop(address, None)) is not None:
                preparation.cancel()  # Dask would wait for another worker at this address
                self._lose_preparation(address)
        for address in folders.keys() - self._known_folders.keys():
            self._known_folders[address] = folders[address]
            self._preparations[address] = self._run_in_background(self._prepare_worker(address))
        if not self._is_started:
            return
        if self._workers:
            self._last_worker = time.monotonic()
        elif not self._preparations and time.monotonic() - self._last_worker > _NO_WORKER_TIMEOUT_S:
            self._stop_run(f"there has been no worker for {_NO_WORKER_TIMEOUT_S:.0f} s")
        if self._sharing_addresses != self._workers.keys():
            self._run_in_background(self._share_limits())

    def _end_watching(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stop_run(f"the workers can no longer be watched: {_describe_error(error)}")

    async def _share_limits(self) -> None:
        """Divide the limits of connectors again among all workers."""
        self._sharing_addresses = frozenset(self._workers)
        await self._call_all_actors("set_worker_count", len(self._sharing_addresses))

    def _stop_run(self, reason: str) -> None:
        """Stop every request. The run can be resumed."""
        self._failure = RunStopped(f"{reason}; continue with --resume" if self._is_started else reason)
        for worker in tuple(self._workers.values()):
            self._lose_worker(worker)
        self._run_in_background(self._notify())

    async def _prepare_worker(self, address: str) -> None:
        """Prepare a worker. If it cannot be used, the start of the run fails; a later one is left out with a warning."""
        try:
            await self._add_worker(address)
            self._lost_preparations = 0
        except _WorkerLostError:  # its successor has another address
            self._known_folders.pop(address, None)
            self._lose_preparation(address)
        except Exception as error:  # a worker that cannot be used must not end the run
            self._refuse_worker(address, error)
        finally:
            if self._preparations.get(address) is asyncio.current_task():
                del self._preparations[address]
            if self._lost_preparations <= _MAX_LOST_PREPARATIONS:  # else each successor may end like that, for ever
                self._last_worker = time.monotonic()
            await self._notify()

    def _lose_preparation(self, address: str) -> None:
        self._lost_preparations += 1
        if self._lost_preparations > _MAX_LOST_PREPARATIONS and not self._is_started:
            self._refuse_worker(address, _WorkerLostError())

    def _refuse_worker(self, address: str, error: Exception) -> None:
        if self._is_started:
            self._warnings.append(f"worker {address} is not used: {_describe_error(error)}")
        elif isinstance(error, BadInput):
            self._refusals.append(error)
        else:
            self._refusals.append(BadInput.of(f"worker {address} cannot run the trials: {_describe_error(error)}"))

    async def _add_worker(self, address: str) -> None:
        """Start the actor on a worker and use it from now on. Raises BadInput if the worker cannot run the trials."""
        spec = self._actor

        async def call_actor(method: str, *arguments: Any) -> Any:
            return await _call_actor(actor, method, *arguments)

        async with asyncio.timeout(_PREPARE_TIMEOUT_S):
            with _detect_loss():  # Dask ends a worker that is sent a class whose module it lacks
                await self._client.run(exec, f"import {spec.actor_type.__module__}", {}, workers=[address])
            with self._client.as_current():  # an actor takes the current client
                future = self._client.submit(
                    spec.actor_type, *spec.arguments, actor=True, workers=[address], pure=False
                )
                with _detect_loss():
                    actor = await future
            try:
                self._warnings += [f"worker {address}: {text}" for text in await spec.prepare(call_actor)]
            except BadInput:
                self._run_in_background(_call_actor(actor, "close"))
                raise
            await call_actor("set_worker_count", len(self._workers) + 1)  # before it gets requests: others use the rest
        self._workers[address] = _Worker(address, actor, self._lose_worker)
        self._load.workers += 1

    async def _list_folders(self) -> dict[str, str]:
        """The folder of each worker of the cluster, by address."""
        workers = (await self._client.scheduler.identity(n_workers=-1))["workers"]
        return {address: worker["local_directory"] for address, worker in workers.items()}


def _describe_error(error: BaseException) -> str:
    if isinstance(error, BadInput):
        return str(error)
    if isinstance(error, _WorkerLostError):
        return "its process ended while it prepared the run; does importing the agent end the process?"
    if isinstance(error, TimeoutError):
        return f"it was not ready after {_PREPARE_TIMEOUT_S:.0f} s"
    if isinstance(error, FutureCancelledError):
        return _NO_SCHEDULER
    missing = error.__cause__ or error  # Dask wraps what the scheduler cannot import
    if isinstance(missing, ModuleNotFoundError):
        return f"{missing}; the scheduler and the workers need the same packages as this process"
    return f"{type(error).__name__}: {error}"

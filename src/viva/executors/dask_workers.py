"""Workers by Dask: a local cluster of processes (`--workers`), or an existing cluster (`--cluster`).

Each worker process has one actor. A request goes to the worker with the fewest running ones. If a worker ends, its requests run
again elsewhere. A request that was running at two such losses runs alone; if it ends its worker twice then, it is to blame.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, cast

import dask.config
from distributed import Client, LocalCluster, Security
from msgspec import Struct

from viva.concurrency.threads import is_being_cancelled
from viva.errors import BadInput, RunStopped, WorkerCrashed

_POLL_S = 0.25
_NO_WORKER_S = 60.0
_CONNECT_S = 10
_PREPARE_S = 600.0
_CLOSE_S = 5.0
_LOSSES_BEFORE_ALONE = 2
_LOSSES_ALONE = 2
_LOST_ACTOR = "Worker holding Actor was lost"
"""What Dask says in a plain RuntimeError."""

CheckReport = Callable[[bytes], Iterable[str]]
"""Returns the warnings in the report of a new worker. Raises BadInput if the worker cannot be used."""


class Cluster(Struct, frozen=True):
    """Which cluster to use, and the actor of its workers: a class with async methods `prepare`, `run`, `cancel`,
    `set_worker_count` and `close`.
    """

    worker_count: int | None
    address: str | None
    actor_type: type
    actor_arguments: tuple[bytes, ...]


@asynccontextmanager
async def open_dask_workers(cluster: Cluster, check_report: CheckReport) -> AsyncGenerator["DaskWorkers"]:
    """Start or connect to the cluster and prepare every worker. Raises BadInput with the problems of all of them."""
    async with AsyncExitStack() as exits:
        exits.enter_context(_quiet_logs())
        client = await exits.enter_async_context(_connect(cluster))
        workers = DaskWorkers(client, cluster, check_report)
        exits.push_async_callback(workers.close)
        await workers.start(minimum=cluster.worker_count or 1)
        yield workers


@contextmanager
def _quiet_logs() -> Generator[None]:
    """Dask logs what Viva reports itself, such as a worker that ends."""
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@asynccontextmanager
async def _connect(cluster: Cluster) -> AsyncGenerator[Client]:
    if cluster.address is not None:
        client = Client(
            cluster.address, asynchronous=True, direct_to_workers=True, timeout=_CONNECT_S, set_as_default=False
        )
        try:
            await client
        except (OSError, ValueError, TypeError) as error:
            await cast("Any", client).close(timeout=1)  # a coroutine here, as the client is asynchronous
            raise BadInput.of(f"--cluster {cluster.address}: cannot be reached: {error}") from error
        async with client:
            yield client
        return
    async with (
        _start_local_cluster(cluster.worker_count or 1) as local,
        Client(
            local, asynchronous=True, direct_to_workers=True, security=local.security, set_as_default=False
        ) as client,
    ):
        yield client


@asynccontextmanager
async def _start_local_cluster(worker_count: int) -> AsyncGenerator[LocalCluster]:
    """A scheduler runs code of everybody who can reach it: loopback, TLS credentials of this run only, no web pages."""
    with dask.config.set({"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}):
        local = LocalCluster(
            n_workers=worker_count,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            protocol="tls",
            security=Security.temporary(),
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            asynchronous=True,
            silence_logs=logging.CRITICAL,
        )
        try:
            await local
        except RuntimeError as error:
            await cast("Any", local).close()
            raise BadInput.of(
                "--workers: the worker processes could not be started. In a script, put the call of viva.run below "
                f'`if __name__ == "__main__":` ({error})'
            ) from error
        async with local:
            yield local


class _WorkerLostError(Exception):
    """The worker process of a call has ended."""


async def _ask(actor: Any, method: str, *arguments: Any) -> Any:
    """Call a method of an actor. Raises _WorkerLostError if its process has ended."""
    try:
        return await getattr(actor, method)(*arguments)
    except OSError as error:  # of the connection: the actor turns its own into results
        raise _WorkerLostError from error
    except RuntimeError as error:
        if _LOST_ACTOR not in str(error):
            raise
        raise _WorkerLostError from error


class _Worker:
    """A worker process with its actor, and the requests that it is running."""

    def __init__(self, address: str, actor: Any) -> None:
        self.address = address
        self.actor = actor
        self.calls: set[asyncio.Future[bytes]] = set()
        self.reserved_for: _Request | None = None
        self.is_lost = False

    def lose(self) -> None:
        self.is_lost = True
        for call in self.calls:
            call.cancel()


class _Request:
    """A request and how often it has lost its worker."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.losses = 0
        self.losses_alone = 0

    @property
    def is_alone(self) -> bool:
        return self.losses >= _LOSSES_BEFORE_ALONE


class DaskWorkers:
    """The workers of a cluster. Those that come while it is open are used too."""

    def __init__(self, client: Client, cluster: Cluster, check_report: CheckReport) -> None:
        self._client: Any = client
        self._cluster = cluster
        self._check_report = check_report
        self._warnings: list[str] = []
        self._workers: dict[str, _Worker] = {}
        self._known: set[str] = set()
        """The addresses that are used, refused, or being prepared."""
        self._sharing: frozenset[str] = frozenset()
        self._changed = asyncio.Condition()
        self._failure: RunStopped | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def count(self) -> int:
        return len(self._workers)

    async def start(self, minimum: int) -> None:
        """Prepare all workers that are there, and at least `minimum` of them."""
        addresses = await self._wait_for_workers(minimum)
        self._known.update(addresses)
        results = await asyncio.gather(*map(self._add_worker, addresses), return_exceptions=True)
        problems = [problem for each in results if isinstance(each, BadInput) for problem in each.problems]
        if problems:
            raise BadInput(*dict.fromkeys(problems))
        for address, error in zip(addresses, results, strict=True):
            if error is not None:
                raise BadInput.of(f"worker {address} cannot run the trials: {_describe(error)}") from error
        await self._share_limits()
        watcher = self._run_in_background(self._watch())
        watcher.add_done_callback(self._end_watching)

    async def run(self, request: bytes) -> bytes:
        pending = _Request(request)
        while True:
            worker = await self._take_worker(pending)
            try:
                return await self._call(worker, request)
            except _WorkerLostError:
                if self._failure is not None:
                    raise self._failure from None
                pending.losses_alone += pending.is_alone
                pending.losses += 1
            finally:
                self._release(pending)
            if pending.losses_alone == _LOSSES_ALONE:
                raise WorkerCrashed

    def take_warnings(self) -> list[str]:
        warnings, self._warnings = self._warnings, []
        return warnings

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._ask_all("close")

    async def _ask_all(self, method: str, *arguments: Any) -> None:
        """Call a method of all actors. One that has just ended, or that an agent blocks, is left alone."""
        calls = [asyncio.ensure_future(_ask(worker.actor, method, *arguments)) for worker in self._workers.values()]
        if calls:
            _, late = await asyncio.wait(calls, timeout=_CLOSE_S)
            for call in late:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _call(self, worker: _Worker, request: bytes) -> bytes:
        """Raises _WorkerLostError if the worker ended. A cancelled request is cancelled in the worker too."""
        call = asyncio.ensure_future(_ask(worker.actor, "run", request))
        worker.calls.add(call)
        try:
            return await call
        except _WorkerLostError:
            self._lose_worker(worker)
            raise
        except asyncio.CancelledError:
            if not is_being_cancelled() and worker.is_lost:
                raise _WorkerLostError from None
            self._run_in_background(_ask(worker.actor, "cancel", request))
            raise
        finally:
            worker.calls.discard(call)

    async def _take_worker(self, request: _Request) -> _Worker:
        try:
            async with self._changed:
                while (worker := self._choose_worker(request)) is None:
                    if self._failure is not None:
                        raise self._failure
                    await self._changed.wait()
                return worker
        except BaseException:
            self._release(request)
            raise

    def _choose_worker(self, request: _Request) -> _Worker | None:
        """The worker with the fewest calls. One that a request reserves gets no others, so that it becomes free."""
        workers = self._workers.values()
        worker = next((each for each in workers if each.reserved_for is request), None)
        if worker is None:
            free = (each for each in workers if each.reserved_for is None)
            worker = min(free, key=lambda each: len(each.calls), default=None)
        if worker is None or not request.is_alone:
            return worker
        worker.reserved_for = request
        return None if worker.calls else worker

    def _release(self, request: _Request) -> None:
        for worker in self._workers.values():
            if worker.reserved_for is request:
                worker.reserved_for = None
        self._run_in_background(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _run_in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # what matters was handled inside

    def _lose_worker(self, worker: _Worker) -> None:
        if worker.is_lost:
            return
        del self._workers[worker.address]
        self._known.discard(worker.address)
        running = len(worker.calls)
        worker.lose()
        if running and self._failure is None:
            self._warnings.append(
                f"worker {worker.address} ended with {running} trial{'s' if running != 1 else ''} in flight"
            )

    async def _watch(self) -> None:
        """Notice workers that come and go, and stop the run if none are left."""
        last_contact = last_worker = time.monotonic()
        while self._failure is None:
            await asyncio.sleep(_POLL_S)
            try:
                addresses = await asyncio.wait_for(self._list_addresses(), _CONNECT_S)
                last_contact = time.monotonic()
            except (OSError, TimeoutError):
                if time.monotonic() - last_contact > _CONNECT_S:
                    self._fail("the scheduler of the cluster is gone")
                continue
            for address in set(self._workers) - set(addresses):
                self._lose_worker(self._workers[address])
            for address in set(addresses) - self._known:
                self._known.add(address)
                self._run_in_background(self._add_late_worker(address))
            if self._workers:
                last_worker = time.monotonic()
            elif time.monotonic() - last_worker > _NO_WORKER_S:
                self._fail(f"there has been no worker for {_NO_WORKER_S:.0f} s")
            if self._sharing != self._workers.keys():
                self._run_in_background(self._share_limits())
            await self._notify()

    def _end_watching(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(f"the workers can no longer be watched: {_describe(error)}")

    async def _share_limits(self) -> None:
        """Share the limits of connectors anew among all workers."""
        self._sharing = frozenset(self._workers)
        await self._ask_all("set_worker_count", len(self._sharing))

    def _fail(self, reason: str) -> None:
        """Stop every request. The run can be resumed."""
        self._failure = RunStopped(reason)
        for worker in tuple(self._workers.values()):
            self._lose_worker(worker)
        self._run_in_background(self._notify())

    async def _add_late_worker(self, address: str) -> None:
        try:
            await self._add_worker(address)
        except _WorkerLostError:  # it has gone again; its successor has another address
            self._known.discard(address)
        except Exception as error:  # a worker that cannot be used must not end the run
            self._warnings.append(f"worker {address} is not used: {_describe(error)}")

    async def _add_worker(self, address: str) -> None:
        """Raises BadInput if the worker cannot run the trials."""
        arguments = self._cluster.actor_arguments
        async with asyncio.timeout(_PREPARE_S):
            with self._client.as_current():  # an actor takes the current client
                future = self._client.submit(
                    self._cluster.actor_type, *arguments, actor=True, workers=[address], pure=False
                )
                actor = await future
            report = await _ask(actor, "prepare")
        try:
            self._warnings += [f"worker {address}: {text}" for text in self._check_report(report)]
        except BadInput:
            self._run_in_background(_ask(actor, "close"))
            raise
        self._workers[address] = _Worker(address, actor)

    async def _wait_for_workers(self, minimum: int) -> list[str]:
        deadline = time.monotonic() + _NO_WORKER_S
        while len(addresses := await self._list_addresses()) < minimum:
            if time.monotonic() > deadline:
                raise BadInput.of(
                    f"the cluster has {len(addresses)} workers after {_NO_WORKER_S:.0f} s; start some first"
                )
            await asyncio.sleep(_POLL_S)
        return addresses

    async def _list_addresses(self) -> list[str]:
        return list((await self._client.scheduler.identity(n_workers=-1))["workers"])


def _describe(error: BaseException) -> str:
    if isinstance(error, BadInput):
        return str(error)
    if isinstance(error, _WorkerLostError):
        return "its process ended while it prepared the run; does importing the agent end the process?"
    return f"{type(error).__name__}: {error}"

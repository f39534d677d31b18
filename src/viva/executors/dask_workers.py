"""Workers by Dask: a local cluster of processes (`--workers`), or an existing cluster (`--cluster`).

Each worker process has one actor. A request goes to the worker with the fewest running ones. If a worker ends, its requests run
again elsewhere. A request that was running at two such losses runs alone; if it ends its worker twice then, it is to blame.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, cast

import dask.config
from distributed import Client, LocalCluster, Security
from msgspec import Struct

from viva.concurrency.threads import is_being_cancelled
from viva.errors import BadInput, RunStopped, WorkerCrashed

_POLL_S = 0.25
_NO_WORKER_S = 60.0
_CONNECT_S = 10
_CLOSE_S = 5.0
_LOSSES_BEFORE_ALONE = 2
_LOSSES_ALONE = 2

CheckReport = Callable[[bytes], Iterable[str]]
"""Returns the warnings in the report of a new worker. Raises BadInput if the worker cannot be used."""


class Cluster(Struct, frozen=True):
    """Which cluster to use, and the actor of its workers: a class with async methods `prepare`, `run`,
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
        client = await exits.enter_async_context(_connect(cluster))
        workers = DaskWorkers(client, cluster, check_report)
        exits.push_async_callback(workers.close)
        await workers.start(minimum=cluster.worker_count or 1)
        yield workers


@asynccontextmanager
async def _connect(cluster: Cluster) -> AsyncGenerator[Client]:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
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
    # A scheduler runs code of everybody who can reach it: loopback, with TLS credentials of this run only.
    security = Security.temporary()
    dask.config.set({"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []})
    async with (
        LocalCluster(
            n_workers=cluster.worker_count,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            protocol="tls",
            security=security,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            asynchronous=True,
            silence_logs=logging.CRITICAL,
        ) as local,
        Client(local, asynchronous=True, direct_to_workers=True, security=security, set_as_default=False) as client,
    ):
        yield client


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
        self._refused: set[str] = set()
        self._changed = asyncio.Condition()
        self._sharing_count = 0
        self._failure: RunStopped | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self, minimum: int) -> None:
        """Prepare all workers that are there, and at least `minimum` of them."""
        addresses = await self._wait_for_workers(minimum)
        results = await asyncio.gather(*map(self._add_worker, addresses), return_exceptions=True)
        problems = [problem for each in results if isinstance(each, BadInput) for problem in each.problems]
        if problems:
            raise BadInput(*dict.fromkeys(problems))
        for error in results:
            if error is not None:
                raise error
        await self._share_limits()
        self._watcher = asyncio.create_task(self._watch())

    async def run(self, request: bytes) -> bytes:
        pending = _Request(request)
        while True:
            worker = await self._take_worker(pending)
            try:
                return await self._call(worker, request)
            except _WorkerLostError:
                pending.losses_alone += pending.is_alone
                pending.losses += 1
            finally:
                await self._release(worker, pending)
            if pending.losses_alone == _LOSSES_ALONE:
                raise WorkerCrashed

    def take_warnings(self) -> list[str]:
        warnings, self._warnings = self._warnings, []
        return warnings

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        closing = [worker.actor.close() for worker in self._workers.values()]
        with suppress(TimeoutError):  # an agent that blocks its worker ends with the cluster
            await asyncio.wait_for(asyncio.gather(*closing, return_exceptions=True), _CLOSE_S)

    async def _call(self, worker: _Worker, request: bytes) -> bytes:
        """Raises _WorkerLostError if the worker ended."""
        call = asyncio.ensure_future(worker.actor.run(request))
        worker.calls.add(call)
        try:
            return await call
        except OSError as error:  # of the connection: an actor of Viva raises none
            self._lose_worker(worker)
            raise _WorkerLostError from error
        except asyncio.CancelledError:
            if is_being_cancelled() or not worker.is_lost:
                raise
            raise _WorkerLostError from None
        finally:
            worker.calls.discard(call)

    async def _take_worker(self, request: _Request) -> _Worker:
        async with self._changed:
            while (worker := self._choose_worker(request)) is None:
                if self._failure is not None:
                    raise self._failure
                await self._changed.wait()
            if request.is_alone:
                worker.reserved_for = request
            return worker

    def _choose_worker(self, request: _Request) -> _Worker | None:
        free = [worker for worker in self._workers.values() if worker.reserved_for in (None, request)]
        worker = min(free, key=lambda worker: len(worker.calls), default=None)
        if worker is None or not request.is_alone:
            return worker
        worker.reserved_for = request  # it gets no others, so that it will be free
        return worker if not worker.calls else None

    async def _release(self, worker: _Worker, request: _Request) -> None:
        async with self._changed:
            if worker.reserved_for is request:
                worker.reserved_for = None
            self._changed.notify_all()

    def _lose_worker(self, worker: _Worker) -> None:
        if worker.is_lost:
            return
        del self._workers[worker.address]
        running = len(worker.calls)
        worker.lose()
        trials = f"{running} trial{'s' if running != 1 else ''}"
        self._warnings.append(f"worker {worker.address} ended; {trials} run again elsewhere")

    async def _watch(self) -> None:
        """Notice workers that come and go, and stop the run if none are left."""
        last_contact = last_worker = time.monotonic()
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                addresses = await asyncio.wait_for(self._list_addresses(), _CONNECT_S)
                last_contact = time.monotonic()
            except (OSError, TimeoutError):
                if time.monotonic() - last_contact > _CONNECT_S:
                    await self._fail("the scheduler of the cluster is gone")
                continue
            for address in set(self._workers) - set(addresses):
                self._lose_worker(self._workers[address])
            for address in set(addresses) - set(self._workers) - self._refused:
                await self._add_late_worker(address)
            if self._workers:
                last_worker = time.monotonic()
            elif time.monotonic() - last_worker > _NO_WORKER_S:
                await self._fail(f"there has been no worker for {_NO_WORKER_S:.0f} s")
            await self._share_limits()
            async with self._changed:
                self._changed.notify_all()

    async def _share_limits(self) -> None:
        """Share the limits of connectors anew if the number of workers has changed."""
        count = len(self._workers)
        if count and count != self._sharing_count:
            self._sharing_count = count
            sharing = [worker.actor.set_worker_count(count) for worker in self._workers.values()]
            await asyncio.gather(*sharing, return_exceptions=True)  # one that has just ended needs no share

    async def _fail(self, reason: str) -> None:
        """Stop every request. The run can be resumed."""
        self._failure = RunStopped(reason)
        for worker in tuple(self._workers.values()):
            self._lose_worker(worker)
        async with self._changed:
            self._changed.notify_all()

    async def _add_late_worker(self, address: str) -> None:
        try:
            await self._add_worker(address)
        except BadInput as error:
            self._refused.add(address)
            self._warnings.append(f"worker {address} is not used: {error}")
        except OSError:  # it has gone again
            pass

    async def _add_worker(self, address: str) -> None:
        """Raises BadInput if the worker cannot run the trials."""
        cluster = self._cluster
        arguments = cluster.actor_arguments
        with self._client.as_current():  # an actor takes the current client
            actor = await self._client.submit(cluster.actor_type, *arguments, actor=True, workers=[address], pure=False)
        self._warnings += [f"worker {address}: {text}" for text in self._check_report(await actor.prepare())]
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


class _WorkerLostError(Exception):
    """The worker of a call ended."""

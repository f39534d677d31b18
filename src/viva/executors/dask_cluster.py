"""The Dask cluster of a run: one that is started on this machine (`--workers`), or one that exists (`--cluster`)."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, cast
from urllib.parse import urljoin, urlsplit
from urllib.request import Request, urlopen

import dask.config
import psutil
from distributed import Client, LocalCluster, Security, get_worker
from distributed.comm.core import CommClosedError
from distributed.core import rpc
from distributed.utils import format_dashboard_link
from msgspec import Struct

from viva.errors import BadInput

_CONNECT_TIMEOUT_S = 10
_DASHBOARD_TIMEOUT_S = 3.0
_CLOSE_TIMEOUT_S = 20.0
_RESTART_TIMEOUT = "1 day"
"""After Dask's own 15 seconds, a worker that starts again on a busy machine would be given up for the rest of the run."""
_MEMORY_CHECK_INTERVAL = "500ms"
"""How often the memory of a worker is compared with its limit. Every 100 ms, as by default, takes 1.4 % of a core with two workers."""
_WITHOUT_DASHBOARD: dict[str, Any] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,  # only the pages show what these three measure
    "distributed.admin.tick.interval": "10s",
    "distributed.admin.system-monitor.interval": "10s",
}
_NO_SCHEDULER = "the server there is no Dask scheduler"
_MAX_MEMORY_SHARE = 0.95
"""The part of a worker's memory limit at which Dask ends a worker."""


class Cluster(Struct, frozen=True, kw_only=True):
    """Which cluster to use: `worker_count` new processes on this machine, or the workers of the scheduler at `address`."""

    worker_count: int | None
    address: str | None
    has_dashboard: bool = False
    """Serve Dask's dashboard on this machine while the run goes on?"""


@asynccontextmanager
async def connect(cluster: Cluster) -> AsyncGenerator[Client]:
    """Start the cluster, or connect to it. Raises BadInput if that fails."""
    with _silence_dask_logs():
        if cluster.address is not None:
            async with _connect_to(cluster.address) as client:
                yield client
            return
        async with (
            _start_local_cluster(cluster.worker_count or 1, has_dashboard=cluster.has_dashboard) as local,
            Client(
                local, asynchronous=True, direct_to_workers=True, security=local.security, set_as_default=False
            ) as client,
        ):
            yield client


@contextmanager
def _silence_dask_logs() -> Generator[None]:
    """Silence Dask's loggers inside the block: Viva itself reports, for example, a worker that ends."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    loggers = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in loggers:  # some have a level of their own
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in loggers.items():
            logger.setLevel(level)


@asynccontextmanager
async def _connect_to(address: str) -> AsyncGenerator[Client]:
    await _check_scheduler(address)
    async with Client(
        address, asynchronous=True, direct_to_workers=True, timeout=_CONNECT_TIMEOUT_S, set_as_default=False
    ) as client:
        yield client


async def _check_scheduler(address: str) -> None:
    """Raises BadInput if there is no scheduler. A client that cannot connect leaves tasks behind."""
    try:
        connection_args = Security().get_connection_args("client")
    except OSError as error:  # `ssl` does not say which file it is
        reason = f"the files of distributed.comm.tls in Dask's configuration cannot be used: {error}"
        raise BadInput.of(f"--cluster {address}: {reason}") from error
    scheduler: Any = rpc(address, timeout=_CONNECT_TIMEOUT_S, connection_args=connection_args, deserialize=False)
    try:
        async with asyncio.timeout(2 * _CONNECT_TIMEOUT_S):  # a server of another kind can stay silent forever
            await scheduler.identity(n_workers=0)
    except TypeError as error:  # how Dask says that it has no credentials
        reason = "needs credentials in Dask's configuration: distributed.comm.tls.ca-file, .client.cert and .client.key"
        raise BadInput.of(f"--cluster {address}: {reason}") from error
    except (OSError, ValueError) as error:
        raise BadInput.of(f"--cluster {address}: cannot be reached: {_explain_error(address, error)}") from error
    except Exception as error:  # Dask takes the bytes of any server for a message, with lengths that fit no memory
        is_refused_here = address.startswith("tcp:") and dask.config.get("distributed.comm.require-encryption")
        reason = "Dask's configuration requires encryption; use a tls:// address" if is_refused_here else _NO_SCHEDULER
        raise BadInput.of(f"--cluster {address}: cannot be reached: {reason}") from error
    finally:
        await scheduler.close_rpc()


def _explain_error(address: str, error: OSError | ValueError) -> str:
    """Of a connection that one side closed, or that cannot have TLS, Dask itself says nothing useful."""
    if not isinstance(error, CommClosedError | ValueError):
        return str(error) or _NO_SCHEDULER
    if address.startswith("tls:"):
        return "it has no TLS (then use a tcp:// address), or the credentials are not of its authority"
    return "it closed the connection; if it is a scheduler with TLS, use a tls:// address"


@asynccontextmanager
async def _start_local_cluster(worker_count: int, *, has_dashboard: bool) -> AsyncGenerator[LocalCluster]:
    """Start a local cluster. Whoever reaches a scheduler can run code in it, so it listens on loopback only, with TLS credentials
    of this run, and without web pages unless the dashboard is requested.
    """
    settings: dict[str, Any] = {
        "distributed.deploy.lost-worker-timeout": _RESTART_TIMEOUT,
        "distributed.worker.memory.monitor-interval": _MEMORY_CHECK_INTERVAL,
    }
    if not has_dashboard:
        settings |= _WITHOUT_DASHBOARD
    with dask.config.set(settings):
        local = LocalCluster(
            n_workers=worker_count,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            protocol="tls",
            security=Security.temporary(),
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": has_dashboard},
            asynchronous=True,
            silence_logs=logging.CRITICAL,
        )
        try:
            await local
        except RuntimeError as error:
            await cast("Any", local).close()
            raise BadInput.of(
                "--workers: a worker process ended while it started. In a script, put the call of viva.run below "
                f'`if __name__ == "__main__":`; else start the run again ({error})'
            ) from error
        try:
            yield local
        finally:
            await _close_local_cluster(local)


async def _close_local_cluster(local: LocalCluster) -> None:
    """Close the cluster, with a time limit: Dask would wait forever for a worker process that is restarting."""
    pids = [nanny.pid for nanny in local.workers.values()]
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await cast("Any", local).close()
    except TimeoutError:
        for pid in {*pids, *(nanny.pid for nanny in local.workers.values())} - {None}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def find_dashboard(client: Client, cluster: Cluster) -> str | None:
    """Return the address of the cluster's dashboard, if it has one."""
    if cluster.address is None and not cluster.has_dashboard:
        return None
    services: dict[str, int] = (await cast("Any", client).scheduler.identity(n_workers=0))["services"]
    if "dashboard" not in services:
        return None
    host = urlsplit(cluster.address or "//127.0.0.1").hostname
    link = format_dashboard_link(host, services["dashboard"])
    return link if await asyncio.to_thread(_serves_dashboard, link) else None


def _serves_dashboard(link: str) -> bool:
    """Does the web server of the scheduler have a dashboard? Each page of it needs this script of bokeh."""
    request = Request(urljoin(link, "static/js/bokeh.min.js"), method="HEAD")  # noqa: S310 -- the address is made by Dask
    try:
        with urlopen(request, timeout=_DASHBOARD_TIMEOUT_S) as response:  # noqa: S310 -- see above
            return response.status == HTTPStatus.OK
    except (OSError, ValueError, HTTPException):
        return False


def find_scratch_folder() -> Path:
    """Return the folder of the worker that runs this code. Dask removes it when the worker ends."""
    return Path(get_worker().local_directory)


def find_worker_number() -> int:
    """Return the number of the local worker that runs this code, from 0. A worker that starts again keeps its number."""
    return int(get_worker().name)


class ActorWatch:
    """Tells, in a worker, whether an actor is still in use and whether a process uses too much memory."""

    def __init__(self, actor: object) -> None:
        self._actor = actor
        self._worker = get_worker()

    def is_released(self) -> bool:
        """Has Dask released the actor, because the client that created it is gone?"""
        return all(each is not self._actor for each in self._worker.state.actors.values())

    def exceeds_memory(self, pid: int) -> bool:
        """Does the process use more memory than the limit at which Dask ends a worker?"""
        limit = self._worker.memory_manager.memory_limit
        try:
            return bool(limit) and psutil.Process(pid).memory_info().rss > limit * _MAX_MEMORY_SHARE
        except psutil.NoSuchProcess:
            return False

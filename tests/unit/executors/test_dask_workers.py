"""Workers that come, go and crash while requests run, on a real scheduler with real processes."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dask_processes import DaskProcesses, ObedientActor, open_processes
from viva.errors import BadInput, RunStopped
from viva.executors.dask_cluster import Cluster
from viva.executors.dask_workers import ActorSpec, CallActor, DaskWorkers, open_dask_workers
from viva.executors.worker_load import WorkerLoad

Shorten = Callable[[str, float], None]


@pytest.fixture
def dask(tmp_path: Path) -> Generator[DaskProcesses]:
    with open_processes(tmp_path) as processes:
        yield processes


class Log:
    """What the actors of a test wrote."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log"

    def read(self) -> list[tuple[int, str]]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [(int(pid), text) for pid, _, text in (line.partition(" ") for line in lines)]

    async def wait_for(self, text: str, times: int = 1) -> int:
        """The process that wrote a text so often."""
        while len(pids := [pid for pid, each in self.read() if each == text]) < times:
            await asyncio.sleep(0.02)
        return pids[-1]


async def _prepare(call_actor: CallActor) -> tuple[str, ...]:
    if await call_actor("prepare"):
        raise BadInput.of("it lacks a key")
    return ()


@asynccontextmanager
async def open_workers(dask: DaskProcesses, load: WorkerLoad | None = None) -> AsyncGenerator[DaskWorkers]:
    cluster = Cluster(worker_count=None, address=dask.address)
    spec = ActorSpec(ObedientActor, (str(dask.folder).encode(),), _prepare)
    async with asyncio.timeout(1200), open_dask_workers(cluster, spec, load or WorkerLoad()) as workers:
        yield workers


async def wait_until(is_true: Callable[[], object]) -> None:
    while not is_true():
        await asyncio.sleep(0.02)


def start(work: Awaitable[bytes]) -> "asyncio.Future[bytes]":
    return asyncio.ensure_future(work)


def test_late_workers_that_are_refused_or_killed_harm_nothing(dask: DaskProcesses) -> None:
    log = Log(dask.folder)

    async def run() -> None:
        load = WorkerLoad()
        async with open_workers(dask, load) as workers:
            dask.start_workers(env={"WORKER_IS_REFUSED": "1"})
            warnings: list[str] = []
            await wait_until(lambda: warnings.extend(workers.take_warnings()) or warnings)
            assert "is not used: it lacks a key" in warnings[0]
            joining = dask.start_workers(env={"WORKER_WAITS": "1"})
            pid = await log.wait_for("preparing")
            running = start(workers.run(b"wait first"))
            await log.wait_for("wait first")
            joining.send_signal(signal.SIGSTOP)  # its nanny would start another one
            os.kill(pid, signal.SIGKILL)
            assert (workers.count, load.describe()) == (1, "1 worker, 1 in flight")
            (dask.folder / "first").touch()
            assert int(await running) != pid
            joining.send_signal(signal.SIGCONT)
            (dask.folder / "prepared").touch()
            await wait_until(lambda: workers.count == 2)
            assert "count 2" in [text for _, text in log.read()]  # it never uses the whole limits of connectors
            await wait_until(lambda: len({pid for pid, text in log.read() if text == "count 2"}) == 2)
            assert (load.workers, load.in_flight, load.lost) == (2, 0, 0)

    dask.start_workers()
    asyncio.run(run())


def test_a_request_that_lost_two_workers_runs_alone_while_another_joins(dask: DaskProcesses) -> None:
    log = Log(dask.folder)

    async def run() -> None:
        load = WorkerLoad()
        async with open_workers(dask, load) as workers:
            suspect = start(workers.run(b"crash suspect"))
            await log.wait_for("crash suspect", times=2)
            (dask.folder / "suspect.safe").touch()
            pid = await log.wait_for("crash suspect", times=3)
            (dask.folder / "other").touch()
            other = start(workers.run(b"wait other"))
            await asyncio.wait([other], timeout=1)  # it could run at once, but the only worker is reserved
            assert not other.done()
            dask.start_workers()
            assert int(await other) != pid
            assert not suspect.done()
            (dask.folder / "suspect").touch()
            assert int(await suspect) == pid
            assert load.lost == 2
            warnings = workers.take_warnings()
            assert len(warnings) == 2
            assert "ended with 1 trial in flight, which run again" in warnings[0]

    dask.start_workers()
    asyncio.run(run())


def test_a_cancelled_request_returns_what_it_cost(dask: DaskProcesses) -> None:
    log = Log(dask.folder)

    async def run() -> None:
        load = WorkerLoad()
        async with open_workers(dask, load) as workers:
            running = start(workers.run(b"wait forever"))
            await log.wait_for("wait forever")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await workers.take_cancelled_results() == [b"cancelled"]
            assert await workers.take_cancelled_results() == []
            assert load.in_flight == 0
        assert log.read()[-1][1] == "closed"

    dask.start_workers()
    asyncio.run(run())


@pytest.mark.parametrize("ended", ["workers", "scheduler"])
def test_without_workers_or_scheduler_every_request_stops(dask: DaskProcesses, shorten: Shorten, ended: str) -> None:
    log = Log(dask.folder)
    nanny = dask.start_workers()

    async def run() -> None:
        async with open_workers(dask) as workers:
            running = start(workers.run(b"wait forever"))
            waiting = start(workers.run(b"wait for ever"))
            await log.wait_for("wait for ever")
            shorten("viva.executors.dask_workers._NO_WORKER_TIMEOUT_S", 0.5)
            shorten("viva.executors.dask_workers._CONTACT_TIMEOUT_S", 1.0)
            (nanny if ended == "workers" else dask.scheduler).kill()
            if ended == "workers":
                os.kill(await log.wait_for("wait for ever"), signal.SIGKILL)
            for each in (running, waiting):
                with pytest.raises(RunStopped) as stopped:
                    await each
                assert ("no worker" if ended == "workers" else "scheduler") in stopped.value.reason
            with pytest.raises(RunStopped):
                await workers.run(b"wait no more")

    asyncio.run(run())


def test_a_worker_that_is_being_prepared_is_waited_for(dask: DaskProcesses, shorten: Shorten) -> None:
    """Building the plan can take longer than a run waits for a worker."""
    log = Log(dask.folder)
    nanny = dask.start_workers()

    async def run() -> None:
        async with open_workers(dask) as workers:
            running = start(workers.run(b"wait first"))
            pid = await log.wait_for("wait first")
            dask.start_workers(env={"WORKER_WAITS": "1"})
            await log.wait_for("preparing")
            shorten("viva.executors.dask_workers._NO_WORKER_TIMEOUT_S", 0.3)
            nanny.kill()
            os.kill(pid, signal.SIGKILL)
            await asyncio.wait([running], timeout=2)
            assert (workers.count, running.done()) == (0, False)
            for name in ("prepared", "first"):
                (dask.folder / name).touch()
            assert int(await running) != pid

    asyncio.run(run())


def test_workers_that_always_crash_while_they_are_prepared_are_not_waited_for(
    dask: DaskProcesses, shorten: Shorten
) -> None:
    """Their nanny starts them again and again."""
    log = Log(dask.folder)
    nanny = dask.start_workers()

    async def run() -> None:
        async with open_workers(dask) as workers:
            running = start(workers.run(b"wait first"))
            pid = await log.wait_for("wait first")
            dask.start_workers(env={"WORKER_CRASHES": "1"})
            await log.wait_for("crashing")
            shorten("viva.executors.dask_workers._NO_WORKER_TIMEOUT_S", 10.0)
            nanny.kill()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(RunStopped, match="no worker"):
                await asyncio.wait_for(running, 120)

    asyncio.run(run())


def test_a_worker_that_ends_before_the_run_has_started_is_replaced(dask: DaskProcesses, shorten: Shorten) -> None:
    """Dask waits for a worker at the same address, and its successor has another one."""
    log = Log(dask.folder)
    shorten("viva.executors.dask_workers._PREPARE_TIMEOUT_S", 60.0)
    dask.start_workers(env={"WORKER_CREATES_SLOWLY": "1"})

    async def kill_first() -> int:
        pid = await log.wait_for("creating")
        os.kill(pid, signal.SIGKILL)
        await log.wait_for("creating", times=2)
        for name in ("created", "first"):
            (dask.folder / name).touch()
        return pid

    async def run() -> None:
        killing = asyncio.create_task(kill_first())
        async with open_workers(dask) as workers:
            assert int(await workers.run(b"wait first")) != await killing

    asyncio.run(run())


def test_workers_that_always_crash_before_the_run_has_started_are_refused(dask: DaskProcesses) -> None:
    dask.start_workers(env={"WORKER_CRASHES": "1"})

    async def run() -> None:
        async with open_workers(dask):
            raise AssertionError

    with pytest.raises(BadInput, match="cannot run the trials: its process ended while it prepared the run"):
        asyncio.run(run())


def test_a_scheduler_that_ends_before_the_run_has_started_is_named(dask: DaskProcesses, shorten: Shorten) -> None:
    for name in ("_CONTACT_TIMEOUT_S", "_START_CONTACT_TIMEOUT_S"):
        shorten(f"viva.executors.dask_workers.{name}", 1.0)
    dask.start_workers(env={"WORKER_WAITS": "1"})

    async def run() -> None:
        async def kill_scheduler() -> None:
            await Log(dask.folder).wait_for("preparing")
            dask.scheduler.kill()

        killing = asyncio.create_task(kill_scheduler())
        async with open_workers(dask):
            await killing
            raise AssertionError

    with pytest.raises(BadInput, match="the scheduler of the cluster is gone"):
        asyncio.run(run())


def test_a_cluster_without_workers_is_refused(dask: DaskProcesses, shorten: Shorten) -> None:
    shorten("viva.executors.dask_workers._NO_WORKER_TIMEOUT_S", 0.3)

    async def run() -> None:
        async with open_workers(dask):
            raise AssertionError

    with pytest.raises(BadInput, match="has 0 workers"):
        asyncio.run(run())


WITHOUT_PACKAGE = """\
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "dask_processes":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def test_a_worker_without_the_packages_is_refused_and_lives_on(dask: DaskProcesses, tmp_path: Path) -> None:  # 17
    """It is not ours: Dask would end a worker that cannot load a class."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "sitecustomize.py").write_text(WITHOUT_PACKAGE)
    worker = dask.start_workers(path=tmp_path / "packages")

    async def run() -> None:
        async with open_workers(dask):
            raise AssertionError

    for _ in range(2):
        with pytest.raises(BadInput) as refused:
            asyncio.run(run())
        assert "No module named 'dask_processes'; the scheduler and the workers need" in str(refused.value)
        assert worker.poll() is None


def test_a_scheduler_without_the_packages_is_refused(tmp_path: Path) -> None:
    async def run(dask: DaskProcesses) -> None:
        async with open_workers(dask):
            raise AssertionError

    with open_processes(tmp_path, has_actor=False) as dask:
        dask.start_workers()
        with pytest.raises(BadInput) as refused:
            asyncio.run(run(dask))
    assert "No module named 'dask_processes'; the scheduler and the workers need" in str(refused.value)

"""Dask actors that pass the calls of the coordinator to a TrialWorker."""

import asyncio
import shutil
import signal
from pathlib import Path

from msgspec import structs

from viva.executors.dask_cluster import ActorWatch, find_scratch_folder, find_worker_number
from viva.model import codec
from viva.session.loop import LoopThread
from viva.session.workers.process import WorkerProcess
from viva.session.workers.project_archive import ArchiveCache, unpack_project
from viva.session.workers.worker import TrialWorker, WorkerReport, WorkerSetup, report_os_error

_WATCH_INTERVAL_S = 0.5


class ThreadActor:
    """A worker that belongs to the run (`--workers`): trials run on an event loop in a thread of its own, so that the loop
    of the process stays free for heartbeats.
    """

    def __init__(self, setup: bytes) -> None:
        decoded = codec.decode_own(setup, type=WorkerSetup)
        self._worker = TrialWorker(decoded)
        self._loop = LoopThread(decoded.cores[find_worker_number() :][:1])

    async def prepare(self, _archive: bytes) -> bytes:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the coordinator handles it
        return await self._loop.bridge.run_async(self._worker.prepare(b""))

    async def exchange(self, batch: bytes) -> bytes:
        return await self._loop.bridge.run_async(self._worker.exchange(batch))

    async def set_worker_count(self, count: int) -> None:
        await self._loop.bridge.run_async(self._worker.set_worker_count(b"%d" % count))

    async def close(self) -> None:
        await self._loop.bridge.run_async(self._worker.close(b""))
        await asyncio.to_thread(self._loop.close)


class ProcessActor:
    """A worker of an existing cluster (`--cluster`): trials run in a process that exists for this run only.

    Other runs use the cluster's process too, at the same time or later, and their Python files may have the same names. The
    process and the files of the run end with the coordinator, however that ends.
    """

    def __init__(self, setup: bytes) -> None:
        self._setup = codec.decode_own(setup, type=WorkerSetup)
        self._scratch = find_scratch_folder()
        self._archives = ArchiveCache(self._scratch)
        self._folder: Path | None = None
        self._process: WorkerProcess | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def prepare(self, archive: bytes) -> bytes:
        """Build the plan, with the archive of the project unless the worker has it. Returns a WorkerReport."""
        setup = self._setup
        try:
            if not setup.folder:
                stored = archive or await asyncio.to_thread(self._archives.get, setup.archive_digest)
                if stored is None:
                    return codec.encode(WorkerReport(needs_archive=True))
                if archive:
                    await asyncio.to_thread(self._archives.add, archive)
                self._folder = await asyncio.to_thread(unpack_project, stored, self._scratch)
                setup = structs.replace(setup, folder=str(self._folder))
            self._process = await WorkerProcess.start(codec.encode(setup))
        except OSError as error:
            return codec.encode(report_os_error(error))
        self._watcher = asyncio.create_task(self._watch_process(self._process))
        return await self._process.call("prepare")

    async def exchange(self, batch: bytes) -> bytes:
        return await self._require_process().call("exchange", batch)

    async def set_worker_count(self, count: int) -> None:
        await self._require_process().call("set_worker_count", b"%d" % count)

    async def close(self) -> None:
        if self._process is not None:
            await self._process.close()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _require_process(self) -> WorkerProcess:
        if self._process is None:
            raise RuntimeError("the worker is not prepared")
        return self._process

    async def _watch_process(self, process: WorkerProcess) -> None:
        """End the process when the coordinator has ended, or when the process uses too much memory."""
        actor = ActorWatch(self)
        while not actor.is_released():
            if actor.exceeds_memory(process.pid):
                process.kill()
            await asyncio.sleep(_WATCH_INTERVAL_S)
        await self.close()

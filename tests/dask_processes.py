"""A Dask scheduler and workers, each a process of its own, and an actor for them that obeys files."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from viva.executors.request_batches import RequestQueue


class DaskProcesses:
    """Starts processes of a cluster, and ends them."""

    def __init__(self, folder: Path, *, has_actor: bool = True, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._contact = folder / "scheduler.json"
        self._processes: list[subprocess.Popen[bytes]] = []
        env = _search(None) if has_actor else {}
        self.scheduler = self._start("distributed.cli.dask_scheduler", "--port", "0", *options, env=env)
        while (address := self._read_address()) is None:
            assert self.scheduler.poll() is None
            time.sleep(0.05)
        self.address = address

    def _read_address(self) -> str | None:
        try:
            return json.loads(self._contact.read_text())["address"]
        except (OSError, ValueError):  # not there yet, or half written
            return None

    def start_workers(
        self,
        count: int = 1,
        *,
        env: Mapping[str, str] | None = None,
        path: Path | None = None,
        before: tuple[str, ...] = (),
        scratch: Path | None = None,
        options: tuple[str, ...] = (),
    ) -> subprocess.Popen[bytes]:
        """Start workers. One that is killed is started again by its nanny, which is the process that is returned.

        `path` is a folder whose packages they find first; `before` goes before the command; `scratch` is for their files.
        """
        folder = ("--local-directory", str(scratch or self.folder))
        count_options = ("--nworkers", str(count), "--nthreads", "1")
        command = ("distributed.cli.dask_worker", *count_options, *folder, *options)
        return self._start(*command, env=dict(env or {}) | _search(path), before=before)

    def _start(
        self, *command: str, env: Mapping[str, str] | None = None, before: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        options = ["--scheduler-file", str(self._contact), "--host", "127.0.0.1", "--no-dashboard"]
        environ = os.environ | {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical"} | dict(env or {})
        process = subprocess.Popen(
            [*before, sys.executable, "-m", *command, *options], cwd=self.folder, env=environ, stderr=subprocess.DEVNULL
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in reversed(self._processes):
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for child in children:
                if child.is_running():
                    child.kill()


def _search(path: Path | None) -> dict[str, str]:
    tests = os.path.dirname(__file__)
    return {"PYTHONPATH": f"{path}:{tests}" if path else tests}


@contextmanager
def open_processes(folder: Path, *, has_actor: bool = True, options: tuple[str, ...] = ()) -> Generator[DaskProcesses]:
    """Starts a separate scheduler, with more `options`. Without `has_actor` it cannot import the module of the actor."""
    processes = DaskProcesses(folder, has_actor=has_actor, options=options)
    try:
        yield processes
    finally:
        processes.close()


class ObedientActor:
    """Runs requests as the files of a folder say, and writes what happens to `log`.

    `wait NAME` waits for the file NAME; so does `crash NAME`, which ends the process unless there is a file NAME.safe.
    """

    def __init__(self, folder: bytes) -> None:
        self._folder = Path(folder.decode())
        self._requests = RequestQueue(self._run)
        if os.environ.get("WORKER_CREATES_SLOWLY"):
            self._log(b"creating")
            while not (self._folder / "created").exists():
                time.sleep(0.02)

    async def prepare(self) -> bytes:
        if os.environ.get("WORKER_IS_REFUSED"):
            return b"refused"
        if os.environ.get("WORKER_WAITS"):
            self._log(b"preparing")
            await self._wait_for("prepared")
        if os.environ.get("WORKER_CRASHES"):
            self._log(b"crashing")
            os.kill(os.getpid(), signal.SIGKILL)
        return b""

    async def exchange(self, batch: bytes) -> bytes:
        return await self._requests.exchange(batch)

    async def _run(self, request: bytes) -> bytes:
        self._log(request)
        action, _, name = request.decode().partition(" ")
        if action == "crash" and not (self._folder / f"{name}.safe").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            await self._wait_for(name)
        except asyncio.CancelledError:
            return b"cancelled"
        return str(os.getpid()).encode()

    async def set_worker_count(self, count: int) -> None:
        self._log(f"count {count}".encode())

    async def close(self) -> None:
        self._log(b"closed")

    async def _wait_for(self, name: str) -> None:
        while not (self._folder / name).exists():
            await asyncio.sleep(0.02)

    def _log(self, text: bytes) -> None:
        with (self._folder / "log").open("ab") as log:
            log.write(b"%d %s\n" % (os.getpid(), text))

"""A PostgreSQL server of Debian's packages for tests, on a socket of its own; installs it where the system lets us."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from system_packages import install_packages

SYSTEM_USER = "postgres"
"""PostgreSQL refuses to run as root; Debian's package has a user for it."""


def find_binaries() -> Path | None:
    """The folder with `initdb` and `postgres`, of the newest version."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    folders = [*(Path(found).parent for found in [shutil.which("initdb")] if found), *versions]
    return next((folder for folder in reversed(folders) if (folder / "postgres").exists()), None)


def works() -> bool:
    return find_binaries() is not None and (os.geteuid() != 0 or _find_user() is not None)


def say_not_run(what: str) -> None:
    print(f"\nNOT RUN: {what}: there is no PostgreSQL server here", file=sys.stderr, flush=True)


def install() -> None:
    """Installs PostgreSQL from Debian's packages, without the cluster that Debian creates by default."""
    with suppress(OSError):
        Path("/etc/postgresql-common").mkdir(exist_ok=True)
        config = Path("/etc/postgresql-common/createcluster.conf")
        if not config.exists():
            config.write_text("create_main_cluster = false\n")
    install_packages("postgresql")


def _find_user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        return None


class Server:
    """A server with one empty database. `restart` breaks all connections."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[Any] | None = None
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            entry = _find_user()
            assert entry is not None
            os.chown(folder, entry.pw_uid, entry.pw_gid)
            self._user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        binaries = find_binaries()
        assert binaries is not None
        self._binaries = binaries
        self._run("initdb", "-D", str(folder / "data"), "-U", "viva", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(self._binaries / name), *arguments]
        subprocess.run(command, cwd=self._folder, check=True, capture_output=True, **self._user)

    @property
    def url(self) -> str:
        return f"postgresql://viva@/postgres?host={self._folder}"

    def create_database(self, name: str) -> str:
        """The URL of a new database."""
        self._run("createdb", "-h", str(self._folder), "-U", "viva", name)
        return f"postgresql://viva@/{name}?host={self._folder}"

    def start(self) -> None:
        options = ["-k", str(self._folder), "-c", "listen_addresses=", *self._options]
        command = [str(self._binaries / "postgres"), "-D", str(self._folder / "data"), *options]
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=log, **self._user)
        self._process = process
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", str(self._folder), "-U", "viva", "-t", "1"]
        for _ in range(600):
            if subprocess.run(ready, check=False).returncode == 0:
                return
            if process.poll() is not None:
                break
            time.sleep(0.1)
        self.stop()
        raise AssertionError((self._folder / "log").read_text())

    def stop(self, stop_signal: int = signal.SIGINT) -> None:
        """Stops the server: SIGINT closes connections first, SIGQUIT stops at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(stop_signal)
            self._process.wait(300)
            self._process = None

    @contextmanager
    def frozen(self) -> Generator[None]:
        """In this block the server neither answers nor closes connections, like a machine that was cut off."""
        assert self._process is not None
        first = self._process.pid
        os.kill(first, signal.SIGSTOP)  # it starts no more processes
        stopped = [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]
        for process in stopped[1:]:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in reversed(stopped):
                os.kill(process, signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()


@contextmanager
def run_server(*options: str) -> Generator[Server]:
    """A server in a folder that its user can reach. `options` are those of `postgres`."""
    entry = _find_user() if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="viva-", dir=entry.pw_dir if entry else None))
    server = None
    try:
        server = Server(folder, *options)
        yield server
    finally:
        if server is not None:
            server.stop(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if not works():
        install()
    sys.exit(0 if works() else "PostgreSQL is not here: the tests of hosts that share a database will not run")

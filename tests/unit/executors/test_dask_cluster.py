"""How a cluster is reached: who may, which page shows its workers, and what is said if it cannot be reached."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask.config
import psutil
import pytest
from distributed import Security

from dask_processes import DaskProcesses, open_processes
from viva.errors import BadInput
from viva.executors.dask_cluster import Cluster, connect, find_dashboard
from viva.testing import HttpServer
from viva.testing.http_server import ReceivedRequest, StubResponse


class SchedulerClient:
    """The part of a Dask client that says where the web server of the scheduler is."""

    def __init__(self, port: int) -> None:
        self.scheduler = self
        self._port = port

    async def identity(self, n_workers: int) -> dict[str, Any]:
        return {"services": {"dashboard": self._port}, "workers": {}, "n_workers": n_workers}


def answer(request: ReceivedRequest) -> StubResponse:
    has_script = (request.method, request.path) == ("HEAD", "/static/js/bokeh.min.js")
    return StubResponse(status=200 if has_script else 404)


@pytest.mark.parametrize("has_dashboard", [True, False])
def test_a_dashboard_is_named_if_the_scheduler_has_one(has_dashboard: bool) -> None:
    with HttpServer(answer if has_dashboard else lambda _request: StubResponse(status=404)) as server:
        port = urlsplit(server.url).port or 0
        client: Any = SchedulerClient(port)
        found = asyncio.run(find_dashboard(client, Cluster(worker_count=None, address="tls://127.0.0.1:8786")))
        assert found == (f"http://127.0.0.1:{port}/status" if has_dashboard else None)
        # One of this run has a page only if it was asked for.
        assert asyncio.run(find_dashboard(client, Cluster(worker_count=2, address=None))) is None
    assert asyncio.run(find_dashboard(client, Cluster(worker_count=None, address="tcp://127.0.0.1:8786"))) is None


class Credentials:
    """The credentials of one authority, in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made: Any = Security.temporary()
        texts = {"ca": made.tls_ca_file, "cert": made.tls_client_cert, "key": made.tls_client_key}
        self.files = {name: str(folder / f"{name}.pem") for name in texts}
        for name, text in texts.items():
            Path(self.files[name]).write_text(text)

    @property
    def scheduler_options(self) -> tuple[str, ...]:
        files = ("--tls-ca-file", self.files["ca"], "--tls-cert", self.files["cert"], "--tls-key", self.files["key"])
        return ("--protocol", "tls", *files)

    @property
    def client_settings(self) -> dict[str, str]:
        files = {"ca-file": "ca", "client.cert": "cert", "client.key": "key"}
        return {f"distributed.comm.tls.{setting}": self.files[name] for setting, name in files.items()}


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> list[Credentials]:
    return [Credentials(tmp_path_factory.mktemp("credentials")) for _ in range(2)]


@pytest.fixture(scope="module")
def schedulers(
    authorities: list[Credentials], tmp_path_factory: pytest.TempPathFactory
) -> Generator[dict[str, DaskProcesses]]:
    """One with credentials of the first authority, and one without TLS."""
    folders = [tmp_path_factory.mktemp("scheduler") for _ in range(2)]
    with (
        open_processes(folders[0], options=authorities[0].scheduler_options) as encrypted,
        open_processes(folders[1]) as plain,
    ):
        yield {"tls": encrypted, "tcp": plain}


def connect_to(address: str, credentials: Credentials) -> None:
    async def run() -> None:
        async with connect(Cluster(worker_count=None, address=address)):
            pass

    with dask.config.set(credentials.client_settings):
        asyncio.run(run())


def test_a_cluster_with_tls_is_reached_with_dasks_own_settings(
    schedulers: dict[str, DaskProcesses], authorities: list[Credentials]
) -> None:  # 17
    assert schedulers["tls"].address.startswith("tls://")
    connect_to(schedulers["tls"].address, authorities[0])


NO_TLS = "it has no TLS (then use a tcp:// address), or the credentials are not of its authority"


@pytest.mark.parametrize(
    ("kind", "protocol", "authority", "message"),
    [
        ("tls", "tcp", 0, "it closed the connection; if it is a scheduler with TLS, use a tls:// address"),
        ("tcp", "tls", 0, NO_TLS),
        ("tls", "tls", 1, NO_TLS),
    ],
)
def test_the_wrong_kind_of_connection_is_explained(  # 17
    schedulers: dict[str, DaskProcesses],
    authorities: list[Credentials],
    kind: str,
    protocol: str,
    authority: int,
    message: str,
) -> None:
    address = schedulers[kind].address.replace(f"{kind}:", f"{protocol}:")
    with pytest.raises(BadInput) as refused:
        connect_to(address, authorities[authority])
    assert str(refused.value) == f"--cluster {address}: cannot be reached: {message}"


def test_the_processes_of_a_run_listen_on_this_machine_only_and_need_its_credentials() -> None:  # 17
    """Whoever reaches a scheduler can run code in it."""

    async def run() -> None:
        before = list_listening_addresses()
        async with connect(Cluster(worker_count=1, address=None)):
            addresses = list_listening_addresses() - before
            assert {host for host, _ in addresses} == {"127.0.0.1"}
            statuses = {address: await ask_for_health(*address) for address in addresses}
            others = [f"tcp://{host}:{port}" for (host, port), status in statuses.items() if not status]
            await asyncio.gather(*map(expect_no_scheduler, others))  # the scheduler, the nanny and the worker
            assert len(others) >= 3
            assert set(statuses.values()) <= {"", "404"}  # no pages

    asyncio.run(run())


async def expect_no_scheduler(address: str) -> None:
    with pytest.raises(BadInput, match="cannot be reached"):
        async with connect(Cluster(worker_count=None, address=address)):
            raise AssertionError


def list_listening_addresses() -> set[tuple[str, int]]:
    """Where this process and its descendants wait for connections."""
    process = psutil.Process()
    connections = [each for one in (process, *process.children(recursive=True)) for each in one.net_connections("inet")]
    waiting = [each for each in connections if each.laddr and each.status == psutil.CONN_LISTEN]
    return {(each.laddr.ip, each.laddr.port) for each in waiting}


async def ask_for_health(host: str, port: int) -> str:
    """The status with which a web server there answers; nothing if there is none."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(30):
            answer = await reader.read(4096)
    except OSError:
        return ""
    finally:
        writer.close()
    return answer.split()[1].decode() if answer.startswith(b"HTTP/") else ""

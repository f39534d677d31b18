"""Which page shows the workers of a cluster."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from viva.executors.dask_cluster import Cluster, find_dashboard
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

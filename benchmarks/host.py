"""`viva serve` under load: `python benchmarks/host.py [--quick] [--store sqlite|postgres] [--only PART]`.

For each store: creates a second, events a second, the response time of other requests while 500 readers follow event
streams, and the memory of the host as runs end, also of mixed ones in the number of an hour. PostgreSQL is a server of Debian's packages on a socket of its own, with
its default settings; without it, that part says NOT RUN. The client runs on the same machine and takes its share of it.
"""

import argparse
import asyncio
import http.client
import importlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import aiohttp

HERE = Path(__file__).parent
TOKEN = "benchmark-token-0123456789"
AGENT = "local.viva.echo"
AGENTS = """
import asyncio

def echo(messages, options):
    return messages[-1]["content"]

async def slow(messages, options):
    await asyncio.sleep(0.2)
    return messages[-1]["content"]

async def hang(messages, options):
    await asyncio.Event().wait()
"""
CONFIG = """
[agents.echo]
use = "python:./agents.py:echo"
[agents.slow]
use = "python:./agents.py:slow"
[agents.hang]
use = "python:./agents.py:hang"
[openwop]
suites = ["one.json", "twenty.json", "large.json"]
[openwop.tenants.bench]
tokens = ["{token}"]
[serve]
max_unfinished = 100000
{store}
[serve.tenant_limits]
max_unfinished = 100000
requests_per_second = 100000
at_once = 16
"""
Figures = dict[str, Any]


def write_project(folder: Path, store_url: str | None) -> None:
    (folder / "agents.py").write_text(AGENTS)
    store = f'store = "{store_url}"' if store_url else ""
    (folder / "viva.toml").write_text(CONFIG.replace("{token}", TOKEN).replace("{store}", store))
    for name, count in (("one", 1), ("twenty", 20), ("large", 3000)):
        tasks = [
            {
                "taskId": f"task-{number}",
                "input": f"say {number} {'x' * 100}",
                "expected": {"kind": "golden", "match": {"strategy": "contains", "value": f"say {number}"}},
            }
            for number in range(count)
        ]
        suite = {"suiteId": f"bench.evals.{name}", "version": "1.0.0", "modes": ["golden"], "tasks": tasks}
        (folder / f"{name}.json").write_text(json.dumps(suite))


class Host:
    """A host in a process of its own, and a client for it."""

    def __init__(self, url: str, process: int, http: aiohttp.ClientSession) -> None:
        self.url = url
        self.process = process
        self.http = http

    async def create(self, body: dict[str, Any]) -> str:
        async with self.http.post(f"{self.url}/v1/runs", json=body) as response:
            assert response.status == 201, await response.text()
            return (await response.json())["runId"]

    async def create_eval(self, suite: str, agent: str = "echo") -> str:
        ref = f"bench.evals.{suite}@1.0.0"
        return await self.create({"mode": "eval", "evalSuiteRef": ref, "agentId": f"local.viva.{agent}"})

    async def create_noop(self) -> str:
        return await self.create({"workflowId": "conformance-noop"})

    async def count_events(self, run: str) -> int:
        """Follows the stream of a run to its end."""
        count = 0
        async with self.http.get(f"{self.url}/v1/runs/{run}/events?streamMode=debug") as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                count += line.startswith(b"data: ")
        return count

    @contextmanager
    def probe(self, path: str) -> Generator[list[float]]:
        """Response times in ms of one request after the other, from a process of its own. They are there at the end."""
        times: list[float] = []
        command = [sys.executable, __file__, "--probe", self.url, path]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()  # its first request is done
        try:
            yield times
        finally:
            times += json.loads(process.communicate("")[0])

    @property
    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process}/status").read_text()
        return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


def start_process(folder: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "viva", "serve", "--port", "0"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


@asynccontextmanager
async def start_host(store_url: str | None) -> AsyncGenerator[Host]:
    with tempfile.TemporaryDirectory(prefix="viva-bench-") as name:
        write_project(Path(name), store_url)
        process = start_process(name)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split(";")[0].split()[-1]
            # A connection that is idle is closed here before the host closes it.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5)
            timeout = aiohttp.ClientTimeout(total=1200)
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as http:
                yield Host(url, process.pid, http)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


async def run_at_once(calls: Iterable[Callable[[], Awaitable[Any]]], at_once: int) -> list[Any]:
    slots = asyncio.Semaphore(at_once)

    async def run(call: Callable[[], Awaitable[Any]]) -> Any:
        async with slots:
            return await call()

    return await asyncio.gather(*(run(call) for call in calls))


def probe_until_told(url: str, path: str) -> list[float]:
    """Response times in ms, until standard input ends."""
    times: list[float] = []
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    while not times or not select.select([sys.stdin], [], [], 0.005)[0]:
        began = time.perf_counter()
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        connection.getresponse().read()
        times.append((time.perf_counter() - began) * 1e3)
        if len(times) == 1:
            print("ready", flush=True)
    return times


def describe_times(times: list[float]) -> Figures:
    ordered = sorted(times)
    return {
        "requests": len(ordered),
        "p50 ms": round(statistics.median(ordered), 1),
        "p99 ms": round(ordered[int(len(ordered) * 0.99)], 1),
    }


async def measure_creates(host: Host, count: int) -> Figures:
    """Creates evals of one task as fast as possible, while they execute, and measures both rates."""
    await host.create_eval("one")
    began = time.perf_counter()
    runs = await run_at_once([lambda: host.create_eval("one")] * count, 20)
    created = time.perf_counter() - began
    await run_at_once([lambda run=run: host.count_events(run) for run in runs], 100)
    return {"evals": count, "creates/s": round(count / created), "runs/s": round(count / (time.perf_counter() - began))}


async def measure_readers(host: Host, readers: int, evals: int) -> Figures:
    """Readers follow evals whose agent takes 0.2 s; other requests are timed meanwhile."""
    runs = await run_at_once([lambda: host.create_eval("twenty", "slow")] * evals, 20)
    with host.probe(f"/v1/runs/{runs[0]}") as times:
        began = time.perf_counter()
        counts = await asyncio.gather(*(host.count_events(runs[number % evals]) for number in range(readers)))
        took = time.perf_counter() - began
    return {"readers": readers, "events/s to readers": round(sum(counts) / took), **describe_times(times)}


async def measure_events(host: Host, evals: int) -> Figures:
    """Evals of 20 tasks with an agent that replies at once: how fast events are written."""
    began = time.perf_counter()
    runs = await run_at_once([lambda: host.create_eval("twenty")] * evals, 20)
    counts = await run_at_once([lambda run=run: host.count_events(run) for run in runs], 100)
    took = time.perf_counter() - began
    return {"evals": evals, "events": sum(counts), "events/s": round(sum(counts) / took)}


async def measure_memory(host: Host, count: int) -> Figures:
    """The memory of the host as runs end: it must not grow with them."""
    figures: Figures = {"at the start MB": host.memory_mb}
    for part in range(1, 5):
        runs = await run_at_once([host.create_noop] * (count // 4), 20)
        await host.count_events(runs[-1])
        figures[f"after {count * part // 4} runs MB"] = host.memory_mb
    return figures


async def measure_soak(host: Host, minutes: int) -> Figures:
    """What a team does in a minute, again and again: evals, calls, refused requests, cancelled runs and readers that leave."""
    figures: Figures = {}
    call = {"workflowId": "viva.agent", "agentId": AGENT, "inputs": {"input": "x" * 1000}}
    hanging = {**call, "agentId": "local.viva.hang"}

    async def leave_early() -> None:
        run = await host.create(hanging)
        async with host.http.get(f"{host.url}/v1/runs/{run}/events?streamMode=debug") as response:
            await response.content.readline()
        async with host.http.post(f"{host.url}/v1/runs/{run}/cancel", json={}) as response:
            assert response.status == 200, await response.text()

    async def be_refused() -> None:
        async with host.http.post(f"{host.url}/v1/runs", data=b'{"mode": "eval", "mode": 1}') as response:
            assert response.status == 400, await response.text()

    async def annotate(run: str) -> None:
        body = {"signal": {"kind": "rating", "rating": 4}, "note": "x" * 100}
        key = {"Idempotency-Key": f"note-{run}"}
        async with host.http.post(f"{host.url}/v1/runs/{run}/annotations", json=body, headers=key) as response:
            assert response.status == 201, await response.text()

    for minute in range(1, minutes + 1):
        evals = await run_at_once([lambda: host.create_eval("twenty")] * 30, 20)
        calls = await run_at_once([lambda: host.create(call)] * 30, 20)
        await run_at_once([leave_early] * 5 + [be_refused] * 20, 20)
        await run_at_once([lambda run=run: host.count_events(run) for run in [*evals, *calls]], 60)
        await run_at_once([lambda run=run: annotate(run) for run in evals], 20)
        if minute % max(1, minutes // 6) == 0:
            figures[f"after {minute} minutes MB"] = host.memory_mb
    return figures


async def measure_waiting(host: Host, count: int) -> Figures:
    """Evals of 3,000 tasks that wait behind calls that do not end, and discovery meanwhile."""
    call = {"workflowId": "viva.agent", "agentId": "local.viva.hang", "inputs": {"input": "x"}}
    await run_at_once([lambda: host.create(call)] * 16, 16)
    with host.probe("/.well-known/openwop") as times:
        began = time.perf_counter()
        await run_at_once([lambda: host.create_eval("large")] * count, 4)
        took = time.perf_counter() - began
    rate = round(count / took)
    return {"waiting evals": count, "MB": host.memory_mb, "creates/s": rate, "discovery": describe_times(times)}


async def measure(store: str, store_url: str | None, *, is_quick: bool, only: str | None) -> None:
    share = 10 if is_quick else 1
    parts: dict[str, Callable[[Host], Awaitable[Figures]]] = {
        "creates": lambda host: measure_creates(host, 1000 // share),
        "events": lambda host: measure_events(host, 100 // share),
        "readers": lambda host: measure_readers(host, 500 // share, 50 // share),
        "memory": lambda host: measure_memory(host, 10_000 // share),
        "soak": lambda host: measure_soak(host, 60 // share),
        "waiting": lambda host: measure_waiting(host, 1000 // share),
    }
    for name, part in parts.items():
        if only in (None, name):
            async with start_host(store_url) as host:
                print(f"{store}, {name}: {json.dumps(await part(host))}", flush=True)


@contextmanager
def start_postgres() -> Generator[Any]:
    """A PostgreSQL server, or None."""
    sys.path.insert(0, str(HERE.parent / "tests"))  # where the server for tests is
    postgres: Any = importlib.import_module("postgres")
    with postgres.run_server() if postgres.works() else nullcontext() as server:
        yield server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--store", choices=("sqlite", "postgres"), help="only this one")
    parser.add_argument("--only", metavar="PART", help="creates, events, readers, memory, soak or waiting")
    parser.add_argument("--probe", nargs=2, metavar=("URL", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.probe:
        print(json.dumps(probe_until_told(*arguments.probe)))
        return
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    if arguments.store != "postgres":
        asyncio.run(measure("SQLite", None, is_quick=arguments.quick, only=arguments.only))
    if arguments.store != "sqlite":
        with start_postgres() as server:
            if server is None:
                print("NOT RUN: PostgreSQL: there is no server here")
                return
            asyncio.run(measure("PostgreSQL", server.url, is_quick=arguments.quick, only=arguments.only))


if __name__ == "__main__":
    main()

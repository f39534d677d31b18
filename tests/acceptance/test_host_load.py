"""Many parallel runs and readers: nothing is lost, and order is stored. Prints the time."""

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from running_host import ACME, ECHO, build_suite, free_port, golden_task, start_host, write_project

RUNS, READERS, TASKS = 200, 500, 5
HEADERS = {"Authorization": f"Bearer {ACME}"}


@pytest.mark.soak
def test_200_parallel_evals_and_500_readers(tmp_path: Path):
    tasks = [golden_task(f"task-{number}", f"say {number}", f"say {number}") for number in range(TASKS)]
    write_project(tmp_path, build_suite("load", *tasks))
    with start_host(tmp_path, free_port()) as (client, process):
        figures = asyncio.run(_check_runs(client.port))
        figures["host CPU s"] = _cpu_s(process.pid)
    print(f"\n{json.dumps(figures, indent=1)}", file=sys.stderr, flush=True)


def _cpu_s(process: int) -> float | None:
    """The CPU time of a process; None if unknown."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return None
    fields = stat.read_text().rpartition(")")[2].split()
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)


async def _check_runs(port: int) -> dict[str, Any]:
    url = f"http://127.0.0.1:{port}"
    body = {"mode": "eval", "evalSuiteRef": "acme.evals.load@1.0.0", "agentId": ECHO}
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=HEADERS, timeout=timeout) as http:

        async def create() -> tuple[str, float]:
            began = time.perf_counter()
            async with http.post(f"{url}/v1/runs", json=body) as response:
                assert response.status == 201, await response.text()
                return (await response.json())["runId"], time.perf_counter() - began

        async def read(run: str) -> tuple[str, list[dict[str, Any]], float]:
            async with http.get(f"{url}/v1/runs/{run}/events?streamMode=debug") as response:
                assert response.status == 200
                events = [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: ")]
            return run, events, time.perf_counter()

        began = time.perf_counter()
        created = await asyncio.gather(*(create() for _ in range(RUNS)))
        all_created = time.perf_counter()
        runs = [run for run, _ in created]
        assert len(set(runs)) == RUNS
        read_by = await asyncio.gather(*(read(runs[at % RUNS]) for at in range(READERS)))
        ended = time.perf_counter()
        for run, events, _ in read_by:
            assert [event["sequence"] for event in events] == list(range(len(events)))
            assert {event["runId"] for event in events} == {run}
            scored = [event["payload"]["taskId"] for event in events if event["type"] == "eval.scored"]
            assert scored == [f"task-{number}" for number in range(TASKS)]
            assert events[-1]["type"] == "run.completed"
        async with http.get(f"{url}/v1/runs/{runs[-1]}/eval-summary") as response:
            assert (await response.json())["passedCount"] == TASKS
    events = sum(len(each) for _, each, _ in read_by)
    return {
        "runs": RUNS,
        "tasks": RUNS * TASKS,
        "readers": READERS,
        "events read": events,
        "created in s": round(all_created - began, 2),
        "create p50 ms": round(statistics.median(each for _, each in created) * 1e3),
        "all read to the end after s": round(ended - began, 2),
        "tasks a second": round(RUNS * TASKS / (ended - began)),
        "events a second to readers": round(events / (ended - all_created)),
    }

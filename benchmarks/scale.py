"""Memory and CPU of every command on many cases: `python benchmarks/scale.py [SIZE ...]` (10,000 and 100,000 by default).

Runs a suite of three turns a case against the server of the benchmark, then reads the run with every command. Prints one
table: peak memory and CPU at each size. `--extremes` adds a conversation of 10,000 turns, a case of 30 MB and a suite of
200 MB.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "bench"))
os.environ.setdefault("BENCH_SERVER_PY", sys.executable)

import harness
import viva_run

VIVA = [sys.executable, "-m", "viva"]
REPORTS = ("jsonl", "json", "xml", "html", "md")


class Cost(NamedTuple):
    rss_mb: float
    cpu_s: float
    wall_s: float

    def __str__(self) -> str:
        return f"{self.rss_mb:.0f} MB, {self.cpu_s:.1f} s"


def run(*arguments: str, folder: Path, code: int = 0) -> Cost:
    """One command of Viva in a process of its own."""
    start = time.perf_counter()
    with (folder / "console.txt").open("w") as out:
        process = subprocess.Popen([*VIVA, *arguments], cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != code:
        sys.exit(
            f"viva {' '.join(arguments)}: exit {process.returncode}\n{(folder / 'console.txt').read_text()[-2000:]}"
        )
    return Cost(used.ru_maxrss / 1024, used.ru_utime + used.ru_stime, time.perf_counter() - start)


def open_page(folder: Path) -> Cost:
    """The first page of `viva view` with the newest run, as a browser gets it."""
    process = subprocess.Popen(
        [*VIVA, "view", "--no-open"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    start = time.perf_counter()
    address = next(found for line in process.stdout if (found := re.search(r"(http://[^/\s]+)/?(\S*)", line)))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())
    for path in (f"/{address[2]}", "/api/runs", "/api/runs/latest"):
        with opener.open(address[1] + path, timeout=600) as answer:
            answer.read()
    wall = time.perf_counter() - start
    status = Path(f"/proc/{process.pid}/status").read_text()
    process.terminate()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return Cost(int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024, used.ru_utime + used.ru_stime, wall)


def measure_size(url: str, size: int) -> dict[str, Cost]:
    with tempfile.TemporaryDirectory(prefix="viva-scale-") as name:
        folder = Path(name)
        viva_run.write_project(folder, url, map(viva_run.static, range(size)))
        commands = {
            "viva check": ["check", "suite.jsonl"],
            "viva test": ["test", "suite.jsonl", "-n", "bench", "--parallel", "32", "-q"],
            "viva runs show latest": ["runs", "show", "latest"],
            "viva runs show latest CASE": ["runs", "show", "latest", f"c{size - 1}"],
            "viva compare latest latest": ["compare", "latest", "latest"],
            **{
                f"-o report.{ending}": ["test", "--resume", "latest", "-q", "-o", f"report.{ending}"]
                for ending in REPORTS
            },
        }
        costs: dict[str, Cost] = {}
        for label, arguments in commands.items():
            costs[label] = run(*arguments, folder=folder)
            print(f"{size:,} cases: {label}: {costs[label]}", file=sys.stderr, flush=True)
        costs["viva view, first page"] = open_page(folder)
        return costs


def measure_extremes(url: str) -> None:
    """Each at a tenth of the size and at the whole one: time and memory should grow tenfold at most."""
    print("\n| | a tenth | the whole |\n| --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="viva-scale-") as name:
        folder = Path(name)
        viva_run.write_project(folder, url, [])
        text = "Where is my order? " * 50

        def turns(count: int) -> dict[str, Any]:
            return {"id": "long", "turns": [{"input": f"{text[:60]} {at}"} for at in range(count)], "timeout": "1h"}

        def large(megabytes: int) -> dict[str, Any]:
            return {
                "id": "large",
                "input": text * (megabytes * 1_000_000 // len(text)),
                "assertions": [{"type": "contains", "value": "ok"}],
            }

        def many(megabytes: int) -> Iterable[dict[str, Any]]:
            return ({**viva_run.static(at), "description": text} for at in range(megabytes * 1_000_000 // 1450))

        # A chat model gets the whole history with each call, which is quadratic whoever sends it: this agent keeps its own.
        (folder / "echo.py").write_text("def reply(message):\n    return 'ok'\n")
        suites = {
            "a conversation of 10,000 turns, viva test": (lambda part: [turns(10_000 // part)], "python:echo.py:reply"),
            "a case of 30 MB, viva test": (lambda part: [large(30 // part)], "bench"),
            "a suite of 200 MB, viva check": (lambda part: many(200 // part), None),
        }
        for label, (make, agent) in suites.items():
            costs: list[Cost] = []
            for part in (10, 1):
                viva_run.write_suite(folder / "suite.jsonl", make(part))
                command = ["test", "suite.jsonl", "-n", agent, "-q"] if agent else ["check", "suite.jsonl"]
                code = 5 if "turns" in label else 0  # nothing is checked there
                costs.append(run(*command, folder=folder, code=code))
            print(f"| {label} | {costs[0]} | {costs[1]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--extremes", action="store_true", help="also very long conversations, cases and suites")
    a = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = "x"
    with harness.Server() as server:
        measured = {size: measure_size(f"{server.url}/v1", size) for size in a.sizes}
        print(f"| | {' | '.join(f'{size:,} cases' for size in measured)} |\n|{' --- |' * (len(measured) + 1)}")
        for label in next(iter(measured.values())):
            print(f"| {label} | {' | '.join(str(costs[label]) for costs in measured.values())} |")
        if a.extremes:
            measure_extremes(f"{server.url}/v1")


if __name__ == "__main__":
    main()

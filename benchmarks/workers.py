"""Worker processes: `python benchmarks/workers.py [--quick] [--many] [--langgraph PYTHON]`. Prints the tables of RESULTS.md.

An agent that computes for 50 ms of CPU a turn, in one process and on 1, 2 and 4 workers. `--langgraph` is a Python that has
LangGraph, langchain_openai and Dask: a LangGraph agent that calls one tool a turn, with the framework's OpenAI client and a
stand-in server in a process of its own, and the same graph with a model inside its process. `--many` runs 100,000 cases on 2
workers. Rounds alternate, and the fastest of each counts: other work on the machine can only slow a run down.

CPU is that of all processes of a run, for one more conversation: the difference of a long and a short run. It says what a busy
machine would give if it were idle: the CPU of one process, divided by what each core has to do with two workers.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "bench"))
from harness import Server

from viva.engine import scheduler

ROOT = Path(__file__).parents[1]
COMPUTING = """\
import time

def agent(messages, options):
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    return "done"
"""
LANGGRAPH = """\
import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


agent = create_agent(ChatOpenAI(model="caller", base_url=os.environ["STAND_IN_URL"], api_key="k", max_retries=0), [add])
"""
LANGGRAPH_IN_PROCESS = """\
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult


def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


class StandInModel(BaseChatModel):
    @property
    def _llm_type(self):
        return "stand-in"

    def bind_tools(self, tools, **options):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **options):
        last = messages[-1]
        if last.type == "tool":
            reply = AIMessage(f"done: {last.content}")
        else:
            call = {"name": "add", "args": {"a": 1, "b": 2}, "id": str(len(messages)), "type": "tool_call"}
            reply = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])


agent = create_agent(StandInModel(), [add])
"""
ECHO = "def agent(messages, options):\n    return 'done'\n"
MODES = {
    "one process": (),
    "1 worker": ("--workers", "1"),
    "2 workers": ("--workers", "2"),
    "4 workers": ("--workers", "4"),
}


class Measurement:
    """The seconds of a run, without the start of the workers, the CPU time of its processes, and its peak memory.

    The memory is that of the process that used most of it.
    """

    def __init__(self, seconds: float, cpu_s: float, rss_mb: float) -> None:
        self.seconds = seconds
        self.cpu_s = cpu_s
        self.rss_mb = rss_mb


def write_project(folder: Path, code: str, cases: int) -> None:
    (folder / "agent.py").write_text(code)
    turns = [{"input": text, "assertions": [{"type": "contains", "value": "done"}]} for text in ("first", "second")]
    lines = (json.dumps({"id": f"case{number}", "turns": turns}) + "\n" for number in range(cases))
    with (folder / "cases.jsonl").open("w") as out:
        out.writelines(lines)


def run(folder: Path, python: str, flags: tuple[str, ...]) -> Measurement:
    command = [python, "-m", "viva", "test", "-i", "cases.jsonl", "-n", "python:./agent.py:agent", "-q", *flags]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    with (folder / "console.txt").open("w") as out:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    console = (folder / "console.txt").read_text()
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit {process.returncode}\n{console[-2000:]}")
    journal = max((folder / ".viva" / "runs").glob("*/journal.jsonl"), key=lambda path: path.stat().st_mtime)
    end = journal.read_bytes().splitlines()[-1]
    seconds = float(re.search(rb'"duration_ms":([0-9.]+)', end)[1]) / 1000  # type: ignore[index]
    return Measurement(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def measure(code: str, cases: int, python: str, rounds: int) -> dict[str, tuple[float, float]]:
    """The wall time and CPU time of a run by mode, each the minimum of all rounds."""
    best: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_project(folder, code, cases)
        for _ in range(rounds):
            for mode, flags in MODES.items():
                measured = run(folder, python, flags)
                seconds, cpu_s = best.get(mode, (measured.seconds, measured.cpu_s))
                best[mode] = min(seconds, measured.seconds), min(cpu_s, measured.cpu_s)
    return best


def compare(title: str, code: str, cases: int, python: str, rounds: int, server: Server | None = None) -> None:
    few = cases // 8
    short = measure(code, few, python, rounds)
    if server is not None:
        server.get("reset")
    long = measure(code, cases, python, rounds)
    server_ms = server.get("stats")["server_cpu_s"] * 1000 / (cases * rounds * len(MODES)) if server else 0.0
    cpu_ms = {mode: (long[mode][1] - short[mode][1]) * 1000 / (cases - few) for mode in MODES}
    one_s, one_ms = long["one process"][0], cpu_ms["one process"]
    print(
        f"\n{title}: {cases} cases of two turns, the fastest of {rounds}; the server takes {server_ms:.1f} ms a conversation\n"
    )
    print("| processes | seconds | times one process | CPU, ms a conversation | times one process, by CPU on 2 cores |")
    print("| --- | --- | --- | --- | --- |")
    for mode, (seconds, _) in long.items():
        cores = 1 if mode in ("one process", "1 worker") else 2
        by_cpu = one_ms * cores / (cpu_ms[mode] + (server_ms if cores == 2 else 0.0))
        print(f"| {mode} | {seconds:.1f} | {one_s / seconds:.2f} | {cpu_ms[mode]:.1f} | {by_cpu:.2f} |")


def run_many(cases: int) -> None:
    print(f"\n{cases:,} cases of two turns, an agent that answers at once\n")
    print("| processes | seconds | cases a second | coordinator's peak memory |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_project(folder, ECHO, cases)
        for mode in ("one process", "2 workers"):
            measured = run(folder, sys.executable, MODES[mode])
            print(f"| {mode} | {measured.seconds:.1f} | {cases / measured.seconds:.0f} | {measured.rss_mb:.0f} MB |")


def measure_seam(count: int) -> None:
    """What the executor of this process adds to a trial: the same call with and without it."""

    async def run_nothing(*_arguments: object) -> None:
        return None

    async def repeat(call: Callable[..., Awaitable[Any]], *arguments: object) -> float:
        start = time.perf_counter()
        for _ in range(count):
            await call(*arguments)
        return (time.perf_counter() - start) / count * 1e6

    scheduler.run_trial = run_nothing  # type: ignore[assignment]
    executor = scheduler.LocalExecutor(None)  # type: ignore[arg-type]
    direct, by_executor = (
        min(asyncio.run(repeat(call, *arguments)) for _ in range(5))
        for call, arguments in ((run_nothing, (1, 2, 3, 4)), (executor.run_attempt, (1, 2, 3)))
    )
    print(f"\nThe seam in one process: {by_executor - direct:.2f} microseconds a trial")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few cases, one round")
    parser.add_argument("--many", action="store_true", help="100,000 cases on 2 workers")
    parser.add_argument("--langgraph", metavar="PYTHON", help="a Python that has LangGraph and Dask")
    options = parser.parse_args()
    rounds = 1 if options.quick else 3
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if options.many:
        run_many(1000 if options.quick else 100_000)
        return
    if options.langgraph:
        python = os.path.abspath(options.langgraph)  # not resolved: it is a link of its environment
        cases = 80 if options.quick else 1200
        os.environ.setdefault("BENCH_SERVER_CORE", "0,1")  # workers use all cores
        with Server() as server:
            os.environ["STAND_IN_URL"] = f"{server.url}/v1"
            compare("LangGraph, model server on a socket", LANGGRAPH, cases, python, rounds, server)
        compare("LangGraph, model in the process", LANGGRAPH_IN_PROCESS, cases, python, rounds)
        return
    measure_seam(20_000 if options.quick else 200_000)
    compare("50 ms of CPU a turn", COMPUTING, 20 if options.quick else 200, sys.executable, rounds)


if __name__ == "__main__":
    main()

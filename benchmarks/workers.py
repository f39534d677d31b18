"""Worker processes: `python benchmarks/workers.py [PART ...] [--quick]`. Prints the tables of RESULTS.md.

    computing   an agent that computes for 50 ms of CPU a turn                                              5 minutes
    light       a LangGraph agent, two turns with one tool call each                                        5 minutes
    typical     a LangGraph agent with five tools, four turns with three tool calls each                    6 minutes
    many        100,000 cases with an agent that answers at once, with progress; only if it is named        1 minute

The minutes are those of an idle machine with two cores. The first three run in one process and on 1, 2 and 4 workers. The model
of the LangGraph agents is a stand-in server in a process of its own, which the framework's OpenAI client calls. It needs
`make frameworks`. Rounds alternate, and the best of each mode counts: other work on the machine can only slow a run down. A run lasts
half a minute, so that its first second (imports) and its last (one worker has ended) hardly count.

What limits the gain is measured too. `Two runs` are two commands at the same time with half of the cases each, which send each
other nothing: what the machine can give. CPU is that of a conversation while the run goes on, without its start and its end: of
the processes that run trials, of the coordinator with its scheduler, and of the model server. `By CPU` is the gain if no core
ever waited: cores x CPU of one process / CPU of all processes. It depends little on other work on the machine. `Cores idle` is
the part of that time in which none of these processes used them.
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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent
ROOT = BENCHMARKS.parent
sys.path[:0] = [str(BENCHMARKS / "bench"), str(ROOT / "tests")]
from harness import Server

import real_frameworks
from viva.engine import scheduler

COMPUTING = """\
import time

def agent(messages, options):
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    return "done"
"""
LIGHT = """\
import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


agent = create_agent(ChatOpenAI(model="caller", base_url=os.environ["STAND_IN_URL"], api_key="k", max_retries=0), [add])
"""
TYPICAL = """\
import json
import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def find_customer(email: str) -> str:
    "Find a customer by email address."
    return json.dumps({"customer_id": "c-1", "email": email, "name": "Ada Brown", "since": "2021-03-04", "open_cases": 2})


def list_orders(customer_id: str, limit: int = 5) -> str:
    "List the newest orders of a customer."
    return json.dumps([{"order_id": f"o-{n}", "status": "shipped", "total_cents": 100 * n} for n in range(max(limit, 5))])


def get_order(order_id: str) -> str:
    "Get the items and the state of an order."
    items = [{"sku": f"sku-{n}", "quantity": 1, "price_cents": 995} for n in range(4)]
    return json.dumps({"order_id": order_id, "items": items, "carrier": "DHL", "tracking": "DE123456"})


def check_refund_policy(order_id: str, reason: str) -> str:
    "Check whether an order can be refunded for this reason."
    return json.dumps({"order_id": order_id, "reason": reason, "is_refundable": True, "until": "2026-12-24"})


def refund_order(order_id: str, amount_cents: int, note: str = "") -> str:
    "Refund an amount of an order to the customer."
    return json.dumps({"order_id": order_id, "refunded_cents": amount_cents, "note": note})


agent = create_agent(
    ChatOpenAI(model="caller-3", base_url=os.environ["STAND_IN_URL"], api_key="k", max_retries=0),
    [find_customer, list_orders, get_order, check_refund_policy, refund_order],
    system_prompt="You support customers of a shop. Look facts up before you answer, and refund only what the policy allows.",
)
"""
ECHO = "def agent(messages, options):\n    return 'done'\n"
MODES = {
    "one process": (),
    "1 worker": ("--workers", "1"),
    "2 workers": ("--workers", "2"),
    "4 workers": ("--workers", "4"),
    "two runs": (),
}
CORES = os.cpu_count() or 1
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
SAMPLE_S = 0.25
PROGRESS_S = 10.0


@dataclass(frozen=True)
class Part:
    """An agent that is measured: its code, and how many conversations of how many turns it has."""

    title: str
    code: str
    cases: int
    turns: int
    has_model: bool = True


PARTS = {
    "computing": Part("50 ms of CPU a turn", COMPUTING, 400, 2, has_model=False),
    "light": Part("LangGraph, light", LIGHT, 2400, 2),
    "typical": Part("LangGraph, typical", TYPICAL, 480, 4),
}


@dataclass(frozen=True)
class Usage:
    """The wall time of a run without the start of its processes, its CPU time by case, the idle share of the cores, and the command's memory."""

    seconds: float
    trials_ms: float
    coordinator_ms: float
    server_ms: float
    idle_share: float
    peak_mb: float

    def best_of(self, other: "Usage | None") -> "Usage":
        """The least of each."""
        return Usage(*map(min, astuple(self), astuple(other))) if other else self

    @property
    def cpu_ms(self) -> float:
        return self.trials_ms + self.coordinator_ms + self.server_ms


@dataclass(frozen=True)
class Sample:
    """The state of a run at a time: how many cases have ended, and the CPU seconds so far."""

    at: float
    ended: int
    own_s: float
    children_s: float
    server_s: float


class Command:
    """A `viva test` in a folder. Its workers are its child processes."""

    def __init__(self, folder: Path, suite: str, flags: Sequence[str], env: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "viva", "test", "-i", suite, "-n", "python:./agent.py:agent", "-q", *flags]
        self._console = folder / f"{suite}.txt"
        with self._console.open("w") as out:
            self._process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)

    def is_running(self) -> bool:
        if self._process.poll():
            sys.exit(f"viva test: exit {self._process.returncode}\n{self._console.read_text()[-2000:]}")
        return self._process.poll() is None

    def read_peak_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(peak[1]) / 1024 if peak else 0.0  # it has just ended

    def read_cpu_s(self) -> tuple[float, float]:
        """The CPU seconds of the process, and of all its children."""
        own_s, ended_children_s = read_cpu_s(self._process.pid)
        return own_s, ended_children_s + sum(sum(read_cpu_s(pid)) for pid in find_children(self._process.pid))


def read_cpu_s(pid: int) -> tuple[float, float]:
    """The CPU seconds of a process, and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0, 0.0
    user, system, children_user, children_system = (int(field) / TICKS_A_SECOND for field in fields[11:15])
    return user + system, children_user + children_system


def find_children(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread has ended
            for child in map(int, path.read_text().split()):
                yield child
                yield from find_children(child)


class EndedCases:
    """Counts the cases of a run that have ended, by the lines of its journals."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._earlier = find_journals(folder)
        self._offsets: dict[Path, int] = {}
        self._lines = 0

    @property
    def journals(self) -> set[Path]:
        return find_journals(self._folder) - self._earlier

    def count(self) -> int:
        """The number of lines so far. Each case has one; a run has few others, at its start and its end."""
        for journal in self.journals:
            with journal.open("rb") as file:
                file.seek(self._offsets.get(journal, 0))
                self._lines += file.read().count(b"\n")
                self._offsets[journal] = file.tell()
        return self._lines


def write_project(folder: Path, code: str, cases: int, turns: int) -> None:
    """Write the agent, all cases, and each half of them."""
    (folder / "agent.py").write_text(code)
    messages = [
        {"input": f"message {turn}", "assertions": [{"type": "contains", "value": "done"}]} for turn in range(turns)
    ]
    lines = [json.dumps({"id": f"case{number}", "turns": messages}) + "\n" for number in range(cases)]
    for suite, part in (("all", lines), ("first", lines[: cases // 2]), ("second", lines[cases // 2 :])):
        (folder / f"{suite}.jsonl").write_text("".join(part))


def prepare_environment(server: Server | None) -> dict[str, str]:
    """The environment of commands: with this Viva and, if there is a model server, with LangGraph."""
    paths = [str(ROOT / "src")]
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    if server is not None:
        python = real_frameworks.find_python("langgraph")
        if python is None:
            sys.exit("the agents of LangGraph need it: make frameworks")
        paths += map(str, (python.parents[1] / "lib").glob("python3*/site-packages"))
        env["STAND_IN_URL"] = f"{server.url}/v1"
    return env | {"PYTHONPATH": os.pathsep.join(paths)}


def find_journals(folder: Path) -> set[Path]:
    return set((folder / ".viva" / "runs").glob("*/journal.jsonl"))


def run(folder: Path, mode: str, cases: int, server: Server | None = None, *, shows_progress: bool = False) -> Usage:
    ended = EndedCases(folder)
    suites = ("first.jsonl", "second.jsonl") if mode == "two runs" else ("all.jsonl",)
    commands = [Command(folder, suite, MODES[mode], prepare_environment(server)) for suite in suites]
    start, peak_mb, next_progress_s = time.monotonic(), 0.0, PROGRESS_S
    samples: list[Sample] = []
    while running := [command for command in commands if command.is_running()]:
        cpu_s = [command.read_cpu_s() for command in running]
        if len(running) == len(commands):
            own_s, children_s = (sum(each) for each in zip(*cpu_s, strict=True))
            server_s = read_cpu_s(server.p.pid)[0] if server else 0.0
            samples.append(Sample(time.monotonic(), ended.count(), own_s, children_s, server_s))
        peak_mb = max(peak_mb, *(command.read_peak_mb() for command in running))
        if shows_progress and (passed_s := time.monotonic() - start) >= next_progress_s:
            next_progress_s += PROGRESS_S
            text = f"{passed_s:5.0f} s: {samples[-1].ended:,} of {cases:,} cases, {peak_mb:.0f} MB"
            print(text, file=sys.stderr, flush=True)
        time.sleep(SAMPLE_S)
    ends = [journal.read_bytes().splitlines()[-1] for journal in ended.journals]
    seconds = max(float(re.search(rb'"duration_ms":([0-9.]+)', end)[1]) / 1000 for end in ends)  # type: ignore[index]
    return summarize(samples, seconds, peak_mb, cases, has_workers="--workers" in MODES[mode])


def summarize(samples: Sequence[Sample], seconds: float, peak_mb: float, cases: int, *, has_workers: bool) -> Usage:
    """The usage between the first quarter of the cases and the last case: each process is slower at first."""
    during = [sample for sample in samples if cases / 4 <= sample.ended < cases]
    first, last = during[0], during[-1]
    more = last.ended - first.ended
    own_ms, children_ms, server_ms = (
        (getattr(last, name) - getattr(first, name)) * 1000 / more for name in ("own_s", "children_s", "server_s")
    )
    trials_ms, coordinator_ms = (children_ms, own_ms) if has_workers else (own_ms + children_ms, 0.0)
    idle_share = 1 - (own_ms + children_ms + server_ms) * more / 1000 / (CORES * (last.at - first.at))
    return Usage(seconds, trials_ms, coordinator_ms, server_ms, idle_share, peak_mb)


def compare(part: Part, cases: int, rounds: int, server: Server | None) -> Iterator[str]:
    """The lines of a table."""
    best: dict[str, Usage] = {}
    with tempfile.TemporaryDirectory() as name:
        write_project(Path(name), part.code, cases, part.turns)
        for _ in range(rounds):
            for mode in MODES:
                best[mode] = run(Path(name), mode, cases, server).best_of(best.get(mode))
    one = best["one process"]
    title = f"{part.title}: {cases} conversations of {part.turns} turns, {one.trials_ms:.1f} ms of CPU each"
    yield f"\n{title}, the best of {rounds}\n"
    yield "| processes | seconds | times one process | CPU, ms a conversation: trials | coordinator | model server | by CPU | cores idle |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for mode, usage in best.items():
        processes = 1 if mode in ("one process", "1 worker") else 2
        by_cpu = min(CORES * one.trials_ms / usage.cpu_ms, processes * one.trials_ms / usage.trials_ms)
        yield (
            f"| {mode} | {usage.seconds:.1f} | {one.seconds / usage.seconds:.2f} | {usage.trials_ms:.1f} "
            f"| {usage.coordinator_ms:.1f} | {usage.server_ms:.1f} | {by_cpu:.2f} | {usage.idle_share:.0%} |"
        )


def measure_part(part: Part, *, is_quick: bool) -> None:
    os.environ.setdefault("BENCH_SERVER_CORE", ",".join(map(str, range(CORES))))  # workers use all cores
    cases, rounds = (part.cases // 10, 1) if is_quick else (part.cases, 2)
    with Server() if part.has_model else nullcontext() as server:
        for line in compare(part, cases, rounds, server):
            print(line, flush=True)


def measure_many(cases: int) -> None:
    print(f"\n{cases:,} cases of two turns, an agent that answers at once\n")
    print(
        "| processes | seconds | cases a second | CPU, ms a case: trials | coordinator | peak memory of the command |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_project(folder, ECHO, cases, turns=2)
        for mode in ("one process", "2 workers"):
            usage = run(folder, mode, cases, shows_progress=True)
            print(
                f"| {mode} | {usage.seconds:.1f} | {cases / usage.seconds:.0f} | {usage.trials_ms:.2f} "
                f"| {usage.coordinator_ms:.2f} | {usage.peak_mb:.0f} MB |",
                flush=True,
            )


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
    parser.add_argument("parts", nargs="*", metavar="PART", help="the parts to measure; all but `many` by default")
    parser.add_argument("--quick", action="store_true", help="few cases, one round")
    options = parser.parse_args()
    if unknown := set(options.parts) - {*PARTS, "many"}:
        parser.error(f"no such part: {', '.join(unknown)}")
    print(f"{CORES} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    for name in options.parts or PARTS:
        start = time.monotonic()
        if name == "many":
            measure_many(2000 if options.quick else 100_000)
        else:
            measure_part(PARTS[name], is_quick=options.quick)
        print(f"\n{name} took {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
    if not options.parts:
        measure_seam(20_000 if options.quick else 200_000)


if __name__ == "__main__":
    main()

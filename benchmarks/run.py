"""The benchmark in one command: `make bench`, or `python benchmarks/run.py [--quick] [--only PART] [--peers]`.

Viva beside the bare loop, in alternating rounds, so that noise is shared. Other guests of the machine can only add to CPU
time, so minima are compared. Instructions (user mode, counted by valgrind) have no noise, but leave out the kernel.
Standard library only, but for Viva itself and aiohttp, which the bare loop uses.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "bench")]
os.environ.setdefault("BENCH_SERVER_PY", sys.executable)

import harness
import viva_run

Measured = dict[str, Any]
Marginal = dict[str, list[float]]

PEER_PACKAGES = ["pydantic-evals==2.62.0", "openai==3.49.0"]
BARE = "bare aiohttp + JSONL"


class BenchmarkError(Exception):
    """A command of the benchmark ended with an error, or took too long."""


def viva(variant: str) -> list[str]:
    return [sys.executable, str(HERE / "viva_run.py"), "--variant", variant]


WHO = {
    BARE: [sys.executable, str(HERE / "bench" / "bare.py"), "--variant", "aiohttp+log"],
    "viva.run": viva("api"),
    "viva test": viva("cli"),
}
KEEPING = {"nothing kept": viva("unkept"), "journal and history": viva("api"), "and a cassette": viva("kept")}
CALLS = {"static": 3, "dynamic": 11}


def table(title: str, *heads: str) -> None:
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}", flush=True)


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} [{min(values):.3f}-{max(values):.3f}]"


write_workload = cache(viva_run.write_workload)


def run_once(
    server: harness.Server, who: str, command: list[str], workload: str, n: int, *sizes: Any, **options: Any
) -> Measured:
    write_workload(workload, n)
    result: Measured = harness.measure(server, who, command, workload, n, *sizes, **options)
    if "error" in result:
        raise BenchmarkError(harness.line(result))
    return result


def measure_rounds(
    server: harness.Server, commands: dict[str, list[str]], workload: str, n: int, rounds: int
) -> tuple[Marginal, dict[str, list[Measured]]]:
    """CPU ms a call of each without start-up, (CPU at n cases - CPU at one) / (calls - calls of one), and the runs of one case."""
    marginal: Marginal = {who: [] for who in commands}
    ones: dict[str, list[Measured]] = {who: [] for who in commands}
    for number in range(rounds):
        for who, command in list(commands.items())[:: -1 if number % 2 else 1]:
            one = run_once(server, who, command, workload, 1, 32)
            many = run_once(server, who, command, workload, n, 32)
            marginal[who].append(1e3 * (many["cpu_s"] - one["cpu_s"]) / (many["requests"] - one["requests"]))
            ones[who].append({**one, "most_rss_mb": many["rss_mb"]})
    return marginal, ones


def show_cpu(server: harness.Server, workload: str, n: int, rounds: int, commands: dict[str, list[str]]) -> None:
    marginal, ones = measure_rounds(server, commands, workload, n, rounds)
    first = next(iter(commands))
    title = f"{workload}, {n} cases, 32 at once, server answers at once, {rounds} rounds in turn"
    table(
        title, "", "CPU ms a call, least", "median and range", f"x {first}, of the least", "one case, wall s", "RSS MB"
    )
    for who, own in marginal.items():
        wall = min(one["wall_s"] for one in ones[who])
        rss = max(one["most_rss_mb"] for one in ones[who])
        ratio = min(own) / min(marginal[first])
        row(who, f"{min(own):.3f}", spread(own), f"{ratio:.2f}", f"{wall:.2f}", f"{rss:.0f}")


def count_instructions(server: harness.Server, who: str, command: list[str], workload: str, n: int) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile("r", dir=harness.TMP) as log:
        valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", f"--log-file={log.name}"]  # fmt: skip
        result = run_once(
            server, who, [*valgrind, *command], workload, n, 32, env={"PYTHONHASHSEED": "0"}, timeout=1500
        )
        found = re.search(r"I\s+refs:\s+([\d,]+)", log.read())
    assert found is not None
    return int(found[1].replace(",", "")), result["requests"]


def show_instructions(server: harness.Server, workload: str, few: int, many: int) -> None:
    if shutil.which("valgrind") is None:
        print("\nvalgrind is not installed: no instructions are counted")
        return
    table(f"{workload}: user instructions a call, marginal from {few} to {many} cases", "", "thousands", f"x {BARE}")
    bare = 0.0
    commands = {BARE: WHO[BARE], "viva.run": WHO["viva.run"], "viva.run with a cassette": KEEPING["and a cassette"]}
    for who, command in commands.items():
        run_once(server, who, command, workload, 1, 32)  # the first run after a change also compiles the source
        low, high = (count_instructions(server, who, command, workload, n) for n in (few, many))
        each = (high[0] - low[0]) / (high[1] - low[1]) / 1e3
        bare = bare or each
        row(who, f"{each:.0f}", f"{each / bare:.2f}")


def show_efficiency(server: harness.Server, workload: str, n: int, at_once: int, rounds: int) -> None:
    ideal = -(-n // at_once) * CALLS[workload] * 0.2
    title = f"{workload}, {n} cases, {at_once} at once, 200 ms a call: ideal {ideal:.1f} s"
    table(title, "", "run s, least", "efficiency", "CPU s of it", "most in flight", "connections")
    for who in (BARE, "viva.run"):
        runs = [run_once(server, who, WHO[who], workload, n, at_once, 200) for _ in range(rounds)]
        best = min(runs, key=lambda run: run["run_s"])
        share = f"{ideal / best['run_s']:.0%}"
        row(
            who,
            f"{best['run_s']:.2f}",
            share,
            f"{best['run_cpu_s']:.2f}",
            best["max_inflight"],
            best["connections"] - 1,
        )


def show_lag(server: harness.Server, n: int, at_once: int, rounds: int) -> None:
    title = (
        f"longest stretch of CPU in which the loop served nobody else, ms; {n} cases, {at_once} at once, 20 ms a call, "
        f"a report of each format, least of {rounds}"
    )
    table(title, "", "while conversations run", "while the run ends and writes its reports")
    for workload in CALLS:
        runs = [run_once(server, "lag", viva("lag"), workload, n, at_once, 20) for _ in range(rounds)]
        row(workload, *(f"{min(run[name] for run in runs):.1f}" for name in ("lag_ms", "end_lag_ms")))


def show_memory(server: harness.Server, sizes: list[int]) -> None:
    table("static, memory of viva.run", "cases", "RSS MB", "CPU ms a call, whole run")
    for n in sizes:
        result = run_once(server, "viva.run", WHO["viva.run"], "static", n, 32)
        row(n, f"{result['rss_mb']:.0f}", f"{1e3 * result['run_cpu_s'] / result['requests']:.3f}")


FIRST_RUN = """
import time; start = time.perf_counter()
import viva; result = viva.run("suite.jsonl", "bench")
print(time.perf_counter() - start); raise SystemExit(result.exit_code)
"""


def show_start_up(server: harness.Server, rounds: int) -> None:
    table("start-up", "command", "wall s")
    commands = {
        "python -c pass": ["-c", "pass"],
        "viva --help": ["-m", "viva", "--help"],
        "viva test, one case of a chat agent, three turns": ["-m", "viva", "test", "suite.jsonl", "-n", "bench"],
        "import viva and the first viva.run of it, in a process that runs": ["-c", FIRST_RUN],
    }
    with tempfile.TemporaryDirectory(prefix="viva-start-") as name:
        folder = Path(name)
        viva_run.write_project(folder, f"{server.url}/v1", [viva_run.static(0)])
        environment = {**os.environ, "OPENAI_API_KEY": viva_run.KEY, "HOME": name, "NO_COLOR": "1"}
        for label, command in commands.items():
            walls: list[float] = []
            for _ in range(rounds + 1):
                start = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=True
                )
                walls.append(float(done.stdout) if FIRST_RUN in command else time.perf_counter() - start)
            row(label, spread(walls[1:]))  # the first one may have compiled the source


def run_script(name: str, *arguments: str) -> None:
    """A benchmark of its own, as a part of all."""
    print(f"\n{name} {' '.join(arguments)}\n", flush=True)
    subprocess.run([sys.executable, str(HERE / name), *arguments], check=True)


def make_peers() -> dict[str, list[str]]:
    """Commands of the peers; their packages are in an environment of their own below BENCH_TMP."""
    folder = Path(harness.TMP) / "venvs" / "+".join(PEER_PACKAGES)
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True)
        if subprocess.run([python, "-m", "pip", "install", "-q", "aiohttp", *PEER_PACKAGES], check=False).returncode:
            print("\nthe peer cannot be installed: it is left out")
            return {}
        (folder / "installed").touch()
    script = str(HERE / "bench" / "peer_pydantic_evals.py")
    return {
        f"{PEER_PACKAGES[0].replace('==', ' ')}, openai SDK in the task": [str(python), script],
        f"{PEER_PACKAGES[0].replace('==', ' ')}, aiohttp in the task": [str(python), script, "--variant", "aiohttp"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, small sizes: does it work at all?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="one part: " + ", ".join(PARTS))
    a = parser.parse_args()
    rounds, scale = (1, 10) if a.quick else (a.rounds, 1)
    if a.only not in (None, *PARTS):
        parser.error(f"there is no part {a.only!r}; parts: {', '.join(PARTS)}")
    chosen = [name for name in PARTS if a.only in (None, name)]
    failed: list[str] = []
    began = time.perf_counter()
    for at, name in enumerate(chosen, 1):
        start = time.perf_counter()
        print(f"\n## {name} ({at} of {len(chosen)})", flush=True)
        try:
            with harness.Server() as server:
                PARTS[name](server, rounds, scale)
        except Exception as error:  # whatever failed: the other parts can still be measured
            print(f"\nnot measured: {type(error).__name__}: {error}", flush=True)
            failed.append(name)
        print(f"\n({name}: {time.perf_counter() - start:.0f} s; load {os.getloadavg()[0]:.1f})", flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s in all")
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


PARTS: dict[str, Any] = {
    "start": lambda server, rounds, _scale: show_start_up(server, rounds),
    "cpu": lambda server, rounds, scale: [
        show_cpu(server, workload, n // scale, rounds, WHO) for workload, n in (("static", 1000), ("dynamic", 330))
    ],
    "keeping": lambda server, rounds, scale: [
        show_cpu(server, workload, n // scale, min(rounds, 2), KEEPING)
        for workload, n in (("static", 1000), ("dynamic", 330))
    ],
    "instructions": lambda server, _rounds, scale: [
        show_instructions(server, "static", 200, 200 + 300 // scale),
        show_instructions(server, "dynamic", 20, 20 + 50 // scale),
    ],
    "efficiency": lambda server, rounds, scale: [
        show_efficiency(server, "static", 2000 // scale, 200 // scale, min(rounds, 2)),
        show_efficiency(server, "static", 5000 // scale, 1000 // scale, min(rounds, 2)),
        show_efficiency(server, "static", 5000 // scale, 5000 // scale, 1),
    ],
    "lag": lambda server, rounds, scale: show_lag(server, 1000 // scale, 200 // scale, min(rounds, 3)),
    "memory": lambda server, _rounds, scale: show_memory(server, [1000 // scale, 10000 // scale]),
    "peers": lambda server, rounds, scale: [
        show_cpu(
            server, workload, n // scale, min(rounds, 2), {BARE: WHO[BARE], "viva.run": WHO["viva.run"], **make_peers()}
        )
        for workload, n in (("static", 600), ("dynamic", 200))
    ],
    "pacing": lambda _server, _rounds, scale: run_script(
        "pacing.py", "--together", "--seconds", "60" if scale == 1 else "12"
    ),
    "scale": lambda _server, _rounds, scale: run_script(
        "scale.py", *(["10000", "100000", "--extremes"] if scale == 1 else ["1000"])
    ),
}
"""The parts of the benchmark, each with the rounds and what to divide sizes by."""


if __name__ == "__main__":
    main()

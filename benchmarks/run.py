"""The benchmark in one command: `make bench`, or `python benchmarks/run.py [--quick]`.

Viva beside the bare loop, in rounds, so that noise is shared; prints a table and the ratio of CPU a call. Standard
library only, but for Viva itself and aiohttp, which the bare loop uses.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "bench"))
os.environ.setdefault("BENCH_SERVER_PY", sys.executable)

import harness

Measured = dict[str, Any]

BARE = [sys.executable, str(HERE / "bench" / "bare.py"), "--variant", "aiohttp+log"]
API = [sys.executable, str(HERE / "viva_run.py"), "--variant", "api"]
CLI = [sys.executable, str(HERE / "viva_run.py"), "--variant", "cli"]
UNKEPT = [sys.executable, str(HERE / "viva_run.py"), "--variant", "unkept"]
KEPT = [sys.executable, str(HERE / "viva_run.py"), "--variant", "kept"]
WHO = {"bare aiohttp + JSONL": BARE, "viva.run": API, "viva test": CLI}


def marginal(one: list[Measured], many: list[Measured]) -> list[float]:
    """CPU ms a call without start-up: (CPU at N cases - CPU at one) / (calls - calls of one), round by round."""
    return [1e3 * (b["cpu_s"] - a["cpu_s"]) / (b["requests"] - a["requests"]) for a, b in zip(one, many, strict=True)]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} [{min(values):.3f}-{max(values):.3f}]"


def quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4) if len(values) > 1 else values * 3


def spread_of(values: list[float]) -> str:
    low, middle, high = quartiles(values)
    return f"{middle:.3f} [{low:.3f}-{high:.3f}]"


def measured(
    server: harness.Server, all_of_them: dict[str, list[str]], workload: str, n: int, rounds: int
) -> dict[str, tuple[list[Measured], list[Measured]]]:
    """Each at one case and at n, in rounds; who comes first takes turns."""
    runs: dict[str, tuple[list[Measured], list[Measured]]] = {who: ([], []) for who in all_of_them}
    for number in range(rounds):
        for who, command in list(all_of_them.items())[:: -1 if number % 2 else 1]:
            for size, kept in zip((1, n), runs[who], strict=True):
                result: Measured = harness.measure(server, who, command, workload, size, 32)
                if "error" in result:
                    sys.exit(harness.line(result))
                kept.append(result)
    return runs


def keeping(server: harness.Server, workload: str, n: int, rounds: int) -> None:
    """What journal, history and cassette cost together. The difference is smaller than the noise of one round, so there are
    many, and quartiles are compared: other guests of the machine can only add to them.
    """
    runs = measured(server, {"without": UNKEPT, "with": KEPT}, workload, n, rounds)
    without, with_all = marginal(*runs["without"]), marginal(*runs["with"])
    low, middle = (quartiles(with_all)[at] / quartiles(without)[at] for at in (0, 1))
    print(f"\n{workload}, {n} cases, {rounds} rounds: journal, history and cassette; medians with quartiles\n")
    print("| CPU ms a call without | with | ratio of the medians | of the lower quartiles |\n| --- | --- | --- | --- |")
    print(f"| {spread_of(without)} | {spread_of(with_all)} | {middle:.2f} | {low:.2f} |", flush=True)


def overhead(server: harness.Server, workload: str, n: int, rounds: int) -> None:
    runs = measured(server, WHO, workload, n, rounds)
    bare = marginal(*runs["bare aiohttp + JSONL"])
    print(f"\n{workload}, {n} cases, 32 at once, server answers at once, {rounds} rounds\n")
    print("| | CPU ms a call, marginal | x bare | one case, wall s | RSS MB |\n| --- | --- | --- | --- | --- |")
    for who, (one, many) in runs.items():
        own = marginal(one, many)
        ratio = [a / b for a, b in zip(own, bare, strict=True)]
        wall = statistics.median(r["wall_s"] for r in one)
        print(f"| {who} | {spread(own)} | {spread(ratio)} | {wall:.2f} | {max(r['rss_mb'] for r in many):.0f} |")


def efficiency(server: harness.Server, workload: str, n: int, at_once: int, rounds: int) -> None:
    calls = 3 if workload == "static" else 11
    ideal = -(-n // at_once) * calls * 0.2
    print(f"\n{workload}, {n} cases, {at_once} at once, 200 ms a call: ideal {ideal:.1f} s\n")
    print("| | run s | efficiency | most in flight |\n| --- | --- | --- | --- |")
    for who in ("bare aiohttp + JSONL", "viva.run"):
        results: list[Measured] = [
            harness.measure(server, who, WHO[who], workload, n, at_once, 200) for _ in range(rounds)
        ]
        seconds = [r["run_s"] for r in results]
        share = [ideal / s for s in seconds]
        print(
            f"| {who} | {spread(seconds)} | {statistics.median(share):.0%} | {results[-1]['max_inflight']} |",
            flush=True,
        )


def memory(server: harness.Server, sizes: list[int]) -> None:
    print("\nstatic, memory of viva.run\n\n| cases | RSS MB | CPU ms a call, whole run |\n| --- | --- | --- |")
    for n in sizes:
        r: Measured = harness.measure(server, "viva.run", API, "static", n, 32)
        print(f"| {n} | {r['rss_mb']:.0f} | {1e3 * r['run_cpu_s'] / r['requests']:.3f} |", flush=True)


def start_up(server: harness.Server, rounds: int) -> None:
    print("\nstart-up\n\n| command | wall s |\n| --- | --- |")
    for label, command in (
        ("viva --help", [sys.executable, "-m", "viva", "--help"]),
        ("python -c pass", [sys.executable, "-c", "pass"]),
    ):
        walls: list[Any] = [harness.measure(server, label, command, raw=True)["wall_s"] for _ in range(rounds)]
        print(f"| {label} | {spread(walls)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, small sizes: does it work at all?")
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    rounds = 1 if a.quick else a.rounds
    n = 100 if a.quick else 1000
    with harness.Server() as server:
        start_up(server, rounds)
        overhead(server, "static", n, rounds)
        overhead(server, "dynamic", n // 3, rounds)
        keeping(server, "static", n, 1 if a.quick else 4 * rounds)
        keeping(server, "dynamic", n // 3, 1 if a.quick else 4 * rounds)
        efficiency(server, "static", 40 if a.quick else 400, 20 if a.quick else 200, rounds)
        efficiency(server, "dynamic", 20 if a.quick else 200, 20 if a.quick else 200, rounds)
        memory(server, [100, 200] if a.quick else [1000, 10000])


if __name__ == "__main__":
    main()

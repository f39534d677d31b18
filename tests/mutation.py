"""Mutation testing: changes one small thing in the code and sees whether a test fails. `make mutate` runs this.

It draws a seeded sample of mutants from each package. One run of the tests under coverage tells which tests execute which
line. Each mutant is run against these tests only, the fastest first, until one fails. A mutant that no test notices is printed.

The tests run in bubblewrap: they can write nothing but temporary files, have no network but the loopback, and their processes
end with the mutant. The checkout is never changed: in the sandbox, a copy of `src` lies over it. A process that has collected
all tests is forked for each mutant, and the code of the changed function is replaced. What runs at import (default values,
class bodies, constants) needs a new process.
"""

import argparse
import compileall
import contextlib
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import bubblewrap
from mutants import ROOT, Mutant, draw

TESTS = ("tests/unit", "tests/properties", "tests/contract")
WORKERS = 2
START_LIMIT = 300.0  # seconds to import and to collect
MEASURE_LIMIT = 60.0  # seconds for a test under coverage


class Sandbox:
    """A server in bubblewrap. It has the copy of `src` in place of the real one."""

    def __init__(self, copy: Path, tests: Sequence[str]) -> None:
        command = ["bwrap", "--die-with-parent", "--unshare-pid", "--as-pid-1", "--unshare-net", "--unshare-ipc"]
        command += ["--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        command += ["--size", str(2 << 30), "--tmpfs", "/tmp"]
        for place in (str(ROOT), sys.prefix):  # these may lie in /tmp
            command += ["--ro-bind", place, place]
        command += ["--ro-bind", str(copy), str(ROOT / "src"), "--dir", "/tmp/start", "--chdir", "/tmp/start"]
        command += [sys.executable, str(ROOT / "tests/mutation_server.py"), "-c", str(ROOT / "pyproject.toml")]
        command += [str(ROOT / test) for test in tests]
        environment = {**os.environ, "TMPDIR": "/tmp/mutant", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.ready = self.read(START_LIMIT)

    def read(self, limit: float = 3600.0) -> dict[str, Any] | None:
        """The next answer of the server; None if the server died or did not answer in time."""
        assert self.process.stdout is not None
        timer = threading.Timer(limit, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        return json.loads(line) if line else None

    def ask(self, limits: dict[str, float], changed: str = "", folders: Sequence[str] = ()) -> dict[str, Any]:
        assert self.process.stdin is not None
        job = {"limits": limits, "changed": changed, "folders": list(folders)}
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        if (answer := self.read()) is None:
            raise RuntimeError("the sandbox died")
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Known:
    """The results of the test run under coverage: which tests execute which lines, and how long each test takes."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    unfit: list[str] = field(default_factory=list[str])
    lines: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))

    def measure(self, sandbox: Sandbox, tests: list[str], folders: list[str]) -> None:
        """Runs the tests under coverage and stores the results. A test that fails or hangs is left out, and the others run again."""
        while tests:
            answer = sandbox.ask(dict.fromkeys(tests, MEASURE_LIMIT), folders=folders)
            if answer["result"] == "survived":
                self.seconds.update(answer["seconds"])
                for file, lines in answer["lines"].items():
                    for line, executing in lines.items():
                        self.lines[file][int(line)].update(filter(None, executing))
                return
            if answer["test"] not in tests:
                raise RuntimeError(f"the tests cannot be measured: {answer}")
            self.unfit.append(answer["test"])
            tests = [test for test in tests if test != answer["test"]]

    def limits(self, mutant: Mutant) -> dict[str, float]:
        """The tests that execute the changed lines, the fastest first, and how long each may take."""
        lines = self.lines[str(ROOT / mutant.file)]
        for first, last in mutant.lines:
            tests = set[str]().union(*(tests for line, tests in lines.items() if first <= line <= last))
            if tests:
                fastest = sorted(tests, key=lambda test: (self.seconds[test], test))
                return {test: 20 + 5 * self.seconds[test] for test in fastest}
        return {}


class Worker:
    """A copy of `src` and a sandbox that sees it."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        # By the hash: a changed file may have the time and the size of the last one.
        compileall.compile_dir(copy, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        self.sandbox = Sandbox(copy, [folder for folder in TESTS if (ROOT / folder).exists()])
        if self.sandbox.ready is None or self.sandbox.ready["errors"]:
            sys.exit("mutation: the tests cannot be collected; run them with pytest first")
        self.tests: list[str] = self.sandbox.ready["tests"]

    def run(self, mutant: Mutant, limits: dict[str, float]) -> dict[str, Any]:
        if not limits:
            return {"result": "not covered", "test": ""}
        file = self.copy / Path(mutant.file).relative_to("src")
        original = (ROOT / mutant.file).read_bytes()
        file.write_bytes(mutant.apply(original))
        try:
            answer: dict[str, Any] = {"result": "new process"}
            if not mutant.at_import:
                answer = self.sandbox.ask(limits, changed=str(ROOT / mutant.file))
            return self.run_anew(limits) if answer["result"] == "new process" else answer
        finally:
            file.write_bytes(original)

    def run_anew(self, limits: dict[str, float]) -> dict[str, Any]:
        fresh = Sandbox(self.copy, sorted({test.partition("::")[0] for test in limits}))
        try:
            if fresh.ready is None or fresh.ready["errors"]:
                return {"result": "killed", "test": "the tests cannot be imported"}
            return fresh.ask(limits)
        finally:
            fresh.close()


def describe(mutant: Mutant) -> dict[str, Any]:
    before = (ROOT / mutant.file).read_bytes()
    after = mutant.apply(before)
    first, last = before.count(b"\n", 0, mutant.start), before.count(b"\n", 0, mutant.end) + 1
    texts = [" ".join(b"\n".join(text.split(b"\n")[first:last]).decode().split()) for text in (before, after)]
    short = [text if len(text) <= 120 else text[:117] + "..." for text in texts]
    place = {"package": mutant.package, "file": mutant.file, "line": first + 1, "kind": mutant.kind}
    return {**place, "before": short[0], "after": short[1]}


def run_all(mutants: Sequence[Mutant]) -> tuple[Known, list[dict[str, Any]]]:
    """Runs all mutants. Ctrl-C ends it early, with the results so far."""
    known, results, free = Known(), list[dict[str, Any]](), queue.SimpleQueue[Worker]()
    folders = sorted({str(ROOT / "src/viva" / mutant.package) for mutant in mutants})

    def measure(tests: list[str]) -> None:
        with borrowed(free) as worker:
            known.measure(worker.sandbox, tests, folders)
        show_progress(f"tests measured: {len(known.seconds)}, left out: {len(known.unfit)}")

    def run(mutant: Mutant) -> None:
        began = time.monotonic()
        with borrowed(free) as worker:
            answer = worker.run(mutant, known.limits(mutant))
        outcome = {"result": answer["result"], "test": answer["test"], "seconds": round(time.monotonic() - began, 2)}
        results.append({**describe(mutant), **outcome})
        counts = Counter(done["result"] for done in results)
        show_progress(
            f"{len(results)} of {len(mutants)}: " + ", ".join(f"{counts[key]} {key}" for key in sorted(counts))
        )

    with tempfile.TemporaryDirectory() as base, ThreadPoolExecutor(WORKERS) as pool:
        workers = list(pool.map(Worker, [Path(base) / str(number) for number in range(WORKERS)]))
        try:
            for worker in workers:
                free.put(worker)
            files = itertools.groupby(workers[0].tests, lambda test: test.partition("::")[0])
            list(pool.map(measure, [list(tests) for _, tests in files]))
            list(pool.map(run, mutants))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
        finally:
            for worker in workers:
                worker.sandbox.close()
    return known, sorted(results, key=lambda result: (result["file"], result["line"], result["after"]))


@contextlib.contextmanager
def borrowed(free: queue.SimpleQueue[Worker]) -> Generator[Worker]:
    worker = free.get()
    try:
        yield worker
    finally:
        free.put(worker)


def show_progress(text: str) -> None:
    print(f"\rmutation: {text}\033[K", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="Mutants for each package (300).")
    parser.add_argument("--seed", type=int, default=1, help="Another seed draws other mutants (1).")
    parser.add_argument("--packages", nargs="+", default=["engine", "checks", "stats"], help="Folders of src/viva.")
    parser.add_argument("--json", type=Path, metavar="OUT", help="Write every mutant and its result to this file.")
    options = parser.parse_args()
    if missing := [name for name in options.packages if not (ROOT / "src/viva" / name).is_dir()]:
        sys.exit(f"mutation: no folder src/viva/{missing[0]}")
    if not bubblewrap.works():
        sys.exit("mutation: bubblewrap does not work here, and mutants do not run without it (make sandbox)")
    drawn = [draw(package, options.sample, options.seed) for package in options.packages]
    # The packages take turns.
    mutants = [mutant for group in itertools.zip_longest(*drawn) for mutant in group if mutant is not None]
    known, results = run_all(mutants)
    print(file=sys.stderr)
    for test in known.unfit:
        print(f"left out, since it fails in the sandbox or under coverage: {test}")
    for found in results:
        if found["result"] in {"survived", "not covered"}:
            print(f"{found['file']}:{found['line']}: {found['before']} -> {found['after']} ({found['result']})")
    packages: dict[str, dict[str, int]] = {}
    for package in options.packages:
        counts = Counter(found["result"] for found in results if found["package"] == package)
        killed = counts["killed"] + counts["timeout"]
        print(
            f"{package}: {killed} of {counts.total()} killed ({killed / max(1, counts.total()):.1%}), {counts['timeout']} of "
            f"them by the time limit; {counts['survived']} survived, {counts['not covered']} not covered"
        )
        packages[package] = dict(counts)
    if options.json:
        told = {"seed": options.seed, "tests": len(known.seconds), "left_out": known.unfit, "packages": packages}
        options.json.write_text(json.dumps({**told, "mutants": results}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Runs the whole test suite on a loaded machine: eight busy processes beside it, three times. `make soak-load` runs this.

A test that depends on time shows up here. Exit code 0 if every run passes.
"""

import argparse
import multiprocessing
import signal
import subprocess
import sys
import time


def spin() -> None:
    while True:
        sum(range(10_000))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: tests/under_load.py --runs 1 tests/unit")
    parser.add_argument("--runs", type=int, default=3, help="How often (3).")
    parser.add_argument("--busy", type=int, default=8, help="How many busy processes beside it (8).")
    parser.add_argument("--processes", type=int, default=2, help="How many processes run tests (2).")
    parser.add_argument("paths", nargs="*", help="What to run; without any, everything.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the busy processes end, too
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(arguments.busy)]
    for process in busy:
        process.start()
    failed = 0
    try:
        for number in range(1, arguments.runs + 1):
            began = time.monotonic()
            pytest = [
                sys.executable,
                "-m",
                "pytest",
                "-n",
                str(arguments.processes),
                "--dist",
                "worksteal",
                *arguments.paths,
            ]
            code = subprocess.run(pytest, check=False).returncode
            print(
                f"under load: run {number} of {arguments.runs}: exit code {code}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            failed += code != 0
    finally:
        for process in busy:
            process.kill()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

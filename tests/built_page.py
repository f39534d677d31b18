"""The page of `report.html` and `viva view`, built from its sources with the Node of this environment.

Run as a program, it installs the build dependencies; with `--write` it also builds the page (`make page`).
"""

import shutil
import subprocess
import sys
from pathlib import Path

from real_clis import NPM, node

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "viva" / "viewer" / "ui"
SHIPPED = ROOT / "src" / "viva" / "reporters" / "page.html"
WORKSHOP = Path(sys.prefix) / "page"
PINNED = ("package.json", "package-lock.json", ".npmrc")


def installed() -> bool:
    """Are all packages of the lock file installed?"""
    lock, there = SOURCES / "package-lock.json", WORKSHOP / "package-lock.json"
    modules = WORKSHOP / "node_modules" / ".package-lock.json"
    return node() is not None and modules.is_file() and there.read_bytes() == lock.read_bytes()


def install() -> bool:
    programs = node()
    if programs is None:
        return False
    WORKSHOP.mkdir(exist_ok=True)
    for name in PINNED:
        shutil.copy(SOURCES / name, WORKSHOP)
    npm = programs.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return subprocess.run([programs / "node", npm, *NPM], cwd=WORKSHOP, check=False).returncode == 0


def build() -> bytes:
    """Type-checks and builds a copy of the sources."""
    programs = node()
    assert programs is not None
    for name in ("src", "out"):
        shutil.rmtree(WORKSHOP / name, ignore_errors=True)
    for name in ("index.html", "tsconfig.json", "vite.config.js"):
        shutil.copy(SOURCES / name, WORKSHOP)
    shutil.copytree(SOURCES / "src", WORKSHOP / "src")
    modules = WORKSHOP / "node_modules"
    for command in (
        [modules / "typescript" / "bin" / "tsc", "--noEmit"],
        [modules / "vite" / "bin" / "vite.js", "build", "--outDir", "out", "--logLevel", "warn"],
    ):
        done = subprocess.run([programs / "node", *command], cwd=WORKSHOP, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return (WORKSHOP / "out" / "page.html").read_bytes()


if __name__ == "__main__":
    if not installed() and not install():
        print("NOT RUN: the build of the page: npm cannot install its packages", file=sys.stderr)
        sys.exit(1)
    if "--write" in sys.argv:
        SHIPPED.write_bytes(build())

"""Builds the wheel, installs it by itself in a fresh environment, and runs Viva and its demo from there.

`make wheel` runs this. What works only in the source tree (a file that was left out, a dependency that nothing
declared) shows up here. Exit code 0 if all of it works.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BELONGS = (
    "viva/py.typed",
    "viva/schemas/native.schema.json",
    "viva/schemas/config.schema.json",
    "viva/awaiting/words/languages.txt",
    "viva/awaiting/words/english.txt",
    "viva/reporters/page.html",
    "viva/cli/main.py",
)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="viva-wheel-") as name:
        folder = Path(name)
        wheel = build(folder / "dist")
        check_contents(wheel)
        python = install(wheel, folder / "venv")
        command = python.with_name("viva")
        run([command, "--version"], folder)
        run([command, "schema", "native"], folder, quiet=True)
        run([command, "init", "project"], folder)
        run([command, "test", "-i", "tests/"], folder / "project")
        # A copy, so that nothing of the source tree is in reach.
        examples = shutil.copytree(
            ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__", ".viva")
        )
        run([python, examples / "demo.py"], folder, quiet=True)
    print("wheel: it works by itself", flush=True)
    return 0


def build(into: Path) -> Path:
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", into, ROOT], ROOT, quiet=True)
    (wheel,) = into.glob("*.whl")
    print(f"wheel: {wheel.name}, {wheel.stat().st_size // 1024} kB", flush=True)
    return wheel


def check_contents(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in BELONGS if name not in names]
    foreign = [name for name in names if not name.startswith("viva/") and ".dist-info/" not in name]
    foreign += [name for name in names if name.startswith("viva/viewer/ui/")]
    if missing or foreign:
        sys.exit(f"wheel: missing {missing}, does not belong: {foreign}")


def install(wheel: Path, folder: Path) -> Path:
    print("wheel: installing it in a fresh environment", flush=True)
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel], folder)
    run([python, "-m", "pip", "check", "--disable-pip-version-check"], folder)
    return python


def run(command: list[str | Path], folder: Path, *, quiet: bool = False) -> None:
    """Runs a command that must succeed, in an environment without the source tree."""
    print(f"$ {' '.join(map(str, command))}", flush=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=env, capture_output=quiet, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout or ''}{done.stderr or ''}wheel: exit code {done.returncode} of {command[0]}")


if __name__ == "__main__":
    sys.exit(main())

"""The agent frameworks whose adapters are tested for real: their environments, and how they get there.

`python tests/real_frameworks.py` installs those of every run into environments of their own below this one; with `--all`
also the others, which `make soak` runs.
"""

import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).parent / "frameworks"
INSTALLED = Path(sys.prefix) / "frameworks"
EVERY_RUN = ("langgraph", "openai_agents", "pydantic_ai")
ENVIRONMENTS = {
    **dict.fromkeys(EVERY_RUN, "main"),
    **{name: name for name in ("adk", "strands", "llama_index", "autogen", "smolagents", "crewai")},
}
"""Which environment has a framework. Frameworks that do not fit together have one each."""


def find_python(framework: str) -> Path | None:
    """The Python of the environment that has this framework; None where it is not installed."""
    environment = INSTALLED / ENVIRONMENTS[framework]
    is_complete = _mark(environment).is_file() and _mark(environment).read_text() == _pins(environment.name).read_text()
    return environment / "bin" / "python" if is_complete else None


def _pins(environment: str) -> Path:
    return FOLDER / "pinned" / f"{environment}.txt"


def _mark(environment: Path) -> Path:
    """The marker file with the installed versions, which is written at the end of the installation."""
    return environment / "pinned.txt"


def add_viva(environment: Path) -> None:
    """Makes Viva's sources and its command available in the environment."""
    packages = next((environment / "lib").glob("python3*")) / "site-packages"
    (packages / "viva.pth").write_text(str(FOLDER.parents[1] / "src"))
    command = environment / "bin" / "viva"
    command.write_text(f"#!{environment / 'bin' / 'python'}\nfrom viva.cli.main import main\n\nmain()\n")
    command.chmod(0o755)


def _install(environment: Path) -> bool:
    venv.create(environment, clear=True, with_pip=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if subprocess.run([*pip, "-r", _pins(environment.name)], check=False).returncode:
        return False
    add_viva(environment)
    _mark(environment).write_text(_pins(environment.name).read_text())
    return True


def main() -> int:
    wanted = ENVIRONMENTS if "--all" in sys.argv else EVERY_RUN
    failed: list[str] = []
    for name in dict.fromkeys(ENVIRONMENTS[each] for each in wanted):
        missing = [each for each in wanted if ENVIRONMENTS[each] == name and find_python(each) is None]
        if missing and not _install(INSTALLED / name):
            failed += missing
    if failed:
        print(f"NOT RUN: the tests with {', '.join(failed)}: pip cannot install them", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

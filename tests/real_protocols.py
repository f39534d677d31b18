"""The protocol SDKs that agents are tested against for real: their environment, the server in it, and how they get there.

`python tests/real_protocols.py` installs them into an environment of their own below this one.
"""

import subprocess
import sys
import venv
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parent / "protocols"
INSTALLED = Path(sys.prefix) / "protocols"
_PINS = FOLDER / "pinned.txt"
_MARK = INSTALLED / "pinned.txt"
"""The marker file with the installed versions, which is written at the end of the installation."""


def find_python() -> Path | None:
    """The Python of the environment; None where it is not installed."""
    is_complete = _MARK.is_file() and _MARK.read_text() == _PINS.read_text()
    return INSTALLED / "bin" / "python" if is_complete else None


@contextmanager
def run_server() -> Generator[str]:
    """The server of `protocols/server.py` with agents of both protocols; its address."""
    python = find_python()
    assert python is not None
    with subprocess.Popen([python, FOLDER / "server.py"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def main() -> int:
    if find_python() is not None:
        return 0
    venv.create(INSTALLED, clear=True, with_pip=True)
    pip = [INSTALLED / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if code := subprocess.run([*pip, "-r", _PINS], check=False).returncode:
        print("NOT RUN: the tests with the SDKs of A2A, AG-UI and MCP: pip cannot install them", file=sys.stderr)
        return code
    _MARK.write_text(_PINS.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())

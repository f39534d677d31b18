"""The command line as a process of its own."""

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from browsing import CHROMIUM
from project import Ended, Project
from real_clis import search_path

collect_ignore_glob = [] if CHROMIUM else ["test_viewer_pages*.py", "test_report_page*.py"]
collect_ignore_glob += [
    f"test_{name}_cli*.py" for name in ("gemini", "qwen", "opencode", "codex") if not search_path(name)
]
"""Without a browser or the CLIs they cannot be run; `tests/conftest.py` says so."""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def interrupted(project: Project) -> Callable[..., Ended]:
    """Runs a command until it has printed some text, and then sends it Ctrl-C."""

    def run(until: str, *arguments: str, times: int = 1, number: int = signal.SIGINT) -> Ended:
        process = project.start("test", *arguments)
        assert process.stdout is not None
        seen = ""
        while until not in seen:
            line = process.stdout.readline()
            assert line, f"it ended before {until!r}: {seen}"
            seen += line
        process.send_signal(number)
        for _ in range(times - 1):
            with suppress(subprocess.TimeoutExpired):  # one that comes too soon after another is not heard
                process.wait(timeout=0.3)
            process.send_signal(number)
        try:
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
        return Ended(process.returncode, seen + out, err)

    return run

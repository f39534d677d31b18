"""Fixtures of the acceptance tests: `viva` runs in this process, for tests marked `process` as a real one."""

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from browser import CHROMIUM
from project import Ended, InProcessProject, Project
from real_clis import search_path

collect_ignore_glob = [] if CHROMIUM else ["test_viewer_pages*.py", "test_report_page*.py", "test_docs_site.py"]
collect_ignore_glob += [
    f"test_{name}_cli*.py" for name in ("gemini", "qwen", "opencode", "codex", "claude") if not search_path(name)
]
"""They need a browser or the CLIs; `tests/conftest.py` reports if these are missing."""


@pytest.fixture
def project(tmp_path: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Project:
    """A project that runs `viva` in this process, or as a real process if the test is marked `process`."""
    return Project(tmp_path) if request.node.get_closest_marker("process") else InProcessProject(tmp_path, capfd)


@pytest.fixture
def interrupted(project: Project) -> Callable[..., Ended]:
    """Run a command until it prints some text, then send it Ctrl-C."""

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
            with suppress(subprocess.TimeoutExpired):  # a signal too soon after another one is lost
                process.wait(timeout=0.3)
            process.send_signal(number)
        try:
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
        return Ended(process.returncode, seen + out, err)

    return run

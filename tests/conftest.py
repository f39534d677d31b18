"""What could not be tested here is said at the end of every run, in a line of its own."""

import pytest

import bubblewrap
from browsing import CHROMIUM
from real_clis import search_path
from real_frameworks import EVERY_RUN, find_python


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if CHROMIUM is None:
        terminalreporter.write_line("NOT RUN: the browser tests: there is no chromium here", red=True, bold=True)
    if missing := [name for name in ("gemini", "qwen", "opencode") if search_path(name) is None]:
        told = f"NOT RUN: the tests with the real {', '.join(missing)}: not installed (make clis)"
        terminalreporter.write_line(told, red=True, bold=True)
    if missing := [name for name in EVERY_RUN if find_python(name) is None]:
        told = f"NOT RUN: the tests with the real {', '.join(missing)}: not installed (make frameworks)"
        terminalreporter.write_line(told, red=True, bold=True)
    if not bubblewrap.works():
        told = "NOT RUN: the tests in a sandbox: bubblewrap is not installed, or cannot make one here (make sandbox)"
        terminalreporter.write_line(told, red=True, bold=True)

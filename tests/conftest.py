"""The end of a test run names what could not be tested here. `shorten` is for tests that wait for a time limit."""

import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

import bubblewrap
import real_protocols
from browser import CHROMIUM
from real_clis import search_path
from real_frameworks import ENVIRONMENTS, EVERY_RUN, find_python
from viva import catalog

# Examples may take their time: a busy machine is no counterexample.
settings.register_profile("viva", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("viva")
_leaks: list[str] = []
"""Connections and processes that were still open when their event loop was closed."""


@pytest.fixture(autouse=True)
def imports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Restores the import path and unloads modules of agents: later tests must not find them."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    folder = str(tmp_path_factory.getbasetemp())
    files = [getattr(sys.modules[name], "__file__", None) or "" for name in sys.modules.keys() - modules]
    if any(file.startswith(folder) for file in files):
        catalog.forget_modules(folder)


@pytest.fixture(autouse=True, scope="session")
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Puts kept workspaces and other temporary files below pytest's own folder, apart from tests in other processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("t", numbered=False)))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture
def shorten(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Sets a time limit of the code under test, by the name of its constant, for one test."""
    return monkeypatch.setattr


def pytest_sessionstart() -> None:
    """Gives signals their usual effect, for this process and those that tests start: a background job of a shell and `nohup`
    ignore some of them.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_finish() -> None:
    """Switches off compiled files of imported modules: a test may write a module twice within a second."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def pytest_warning_recorded(warning_message: warnings.WarningMessage, nodeid: str) -> None:
    if "unclosed resource" in str(warning_message.message):
        _leaks.append(f"{nodeid}: {warning_message.message}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _leaks and session.exitstatus == 0:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for leak in _leaks:
        terminalreporter.write_line(f"LEFT OPEN: {leak}", red=True, bold=True)
    if CHROMIUM is None:
        terminalreporter.write_line("NOT RUN: the browser tests: there is no chromium here", red=True, bold=True)
    is_soak = terminalreporter.config.getoption("markexpr") == "soak"
    clis = ("codex", "claude") if is_soak else ("gemini", "qwen", "opencode")
    if missing := [name for name in clis if search_path(name) is None]:
        told = f"NOT RUN: the tests with the real {', '.join(missing)}: not installed (make {'large-' * is_soak}clis)"
        terminalreporter.write_line(told, red=True, bold=True)
    if real_protocols.find_python() is None:
        told = "NOT RUN: the tests with the SDKs of A2A, AG-UI and MCP: not installed (make protocols)"
        terminalreporter.write_line(told, red=True, bold=True)
    if missing := [name for name in (ENVIRONMENTS if is_soak else EVERY_RUN) if find_python(name) is None]:
        told = (
            f"NOT RUN: the tests with the real {', '.join(missing)}: not installed (make {'all-' * is_soak}frameworks)"
        )
        terminalreporter.write_line(told, red=True, bold=True)
    if not bubblewrap.works():
        told = "NOT RUN: the tests in a sandbox: bubblewrap is not installed, or cannot make one here (make sandbox)"
        terminalreporter.write_line(told, red=True, bold=True)

"""What can run on workers, and what is refused in one sentence before any process starts."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import viva
from project import InProcessProject, Project, case
from viva.errors import BadInput

AGENT = "python:./agent.py:agent"


@pytest.fixture
def project(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Project:
    return InProcessProject(tmp_path, capfd)


def passed(*_arguments: Any) -> str:
    return "x"


class Live:
    def reply(self, _messages: Any) -> str:
        return "x"


CASE = {"id": "one", "input": "x"}


@pytest.mark.parametrize("flags", [{"workers": 2}, {"cluster": "tcp://127.0.0.1:9"}])
@pytest.mark.parametrize(
    ("definition", "agent", "more", "message"),
    [
        (CASE, lambda messages: "x", {}, "The agent is a Python object of this process"),  # pyright: ignore[reportUnknownLambdaType]
        (CASE, Live(), {}, "The agent is a Python object of this process"),
        (CASE, {"named": passed}, {}, "The agent is a Python object of this process"),
        (CASE, AGENT, {"simulator": passed}, "The simulator is a Python object of this process"),
        (CASE, AGENT, {"evaluator": Live()}, "The evaluator is a Python object of this process"),
        (CASE, AGENT, {"before": passed}, "The before is a Python object of this process"),
        (CASE | {"assertions": [passed]}, AGENT, {}, "The cases hold Python functions of this process"),
        (CASE | {"before": passed}, AGENT, {}, "The cases hold Python functions of this process"),
    ],
)
def test_what_has_no_name_is_refused(  # 17
    project: Project, flags: dict[str, Any], definition: Any, agent: Any, more: dict[str, Any], message: str
) -> None:
    keywords = {name: value for name, value in more.items() if name == "simulator"}
    options = viva.RunOptions(
        **flags, folder=project.folder, **{name: each for name, each in more.items() if name not in keywords}
    )
    with pytest.raises(BadInput) as refused:
        viva.run([definition], agent, history=False, options=options, **keywords)
    assert message in str(refused.value)
    assert "workers cannot get" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_reporter_stays_in_this_process(project: Project, shorten: Callable[[str, float], None]) -> None:  # 17
    """Workers neither have it nor miss it."""
    project.write("reporter.py", "def agent(messages, options):\n    return 'written by the reporter'\n")
    project.suite(case("one"))
    ended = project.test("--workers", "1", "-r", "python:./reporter.py:agent", "-o", "report.md")
    assert ended.code == 0, ended
    assert "written by the reporter" in (project.folder / "report.md").read_text()
    shorten("viva.executors.dask_cluster._CONNECT_TIMEOUT_S", 0.3)
    options = viva.RunOptions(cluster="tcp://127.0.0.1:9", folder=project.folder, reporter=passed)
    with pytest.raises(BadInput, match="cannot be reached"):  # and not: it is a Python object
        viva.run([CASE], AGENT, history=False, options=options)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("-n", "https://me:hidden@127.0.0.1:9/"), "-n https://***@127.0.0.1:9/: secrets are not sent to a cluster"),
        (
            ("--update-snapshots",),
            "--update-snapshots: the workers write to a copy of the project; pass --cluster-folder",
        ),
    ],
)
def test_what_a_cluster_cannot_do_is_refused(project: Project, flags: tuple[str, ...], message: str) -> None:  # 17
    project.suite(case("one"))
    ended = project.test("--cluster", "tcp://127.0.0.1:9", *flags)
    assert ended.code == 4, ended
    assert ended.err.startswith(message)
    assert "hidden" not in ended.err


@pytest.mark.parametrize("flags", [["--workers", "2"], ["--cluster", "tcp://127.0.0.1:9"]])
def test_without_dask_the_message_says_what_to_install(project: Project, flags: list[str]) -> None:  # 17
    """In a process that cannot import it, as where the extra is not installed."""
    project.suite(case("one"))
    arguments = ["test", "-i", "suite.jsonl", "-n", AGENT, *flags]
    code = f"import sys; sys.modules['distributed'] = None\nfrom viva.cli.main import main; main({arguments!r})"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=project.folder, env=project.env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 4, ended
    assert ended.stderr == f"{flags[0]} needs Dask; install it with: pip install 'viva-eval[cluster]'\n"


def test_a_script_that_starts_itself_again_is_told_why(project: Project) -> None:  # 17
    """Each worker process imports the script, which would start workers of its own."""
    project.write("script.py", f"import viva\nviva.run('hello', {AGENT!r}, options=viva.RunOptions(workers=1))\n")
    command = [sys.executable, "script.py"]
    ended = subprocess.run(
        command, cwd=project.folder, env=project.env, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 1, ended
    assert 'put the call of viva.run below `if __name__ == "__main__":`' in ended.stderr.splitlines()[-1]

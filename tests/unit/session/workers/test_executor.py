"""What can run on workers, and what is refused in one sentence before any process starts."""

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

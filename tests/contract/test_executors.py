"""What every executor promises: trials in this process and trials on workers give the same reports."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from project import InProcessProject, Project, case, contains

AGENT = """\
import os
from pathlib import Path

ATTEMPTS = Path(__file__).parent / "attempts"

def agent(messages, options):
    text = messages[-1]["content"]
    if text == "flaky":
        ATTEMPTS.mkdir(exist_ok=True)
        (ATTEMPTS / f"{os.getpid()}-{len(list(ATTEMPTS.iterdir()))}").touch()
        if len(list(ATTEMPTS.iterdir())) == 1:
            raise ConnectionRefusedError("refused")
    if text == "expensive":
        return {"content": text, "usage": {"input_tokens": 10, "output_tokens": 10, "cost_usd": 0.4}}
    return text
"""
_TIMES = {"duration_ms", "started_at", "session_id"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A scheduler and two workers, each a process of its own."""
    folder = tmp_path_factory.mktemp("cluster")
    contact = folder / "scheduler.json"
    env = os.environ | {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "error"}

    def start(*command: str) -> subprocess.Popen[bytes]:
        options = ["--scheduler-file", str(contact), "--host", "127.0.0.1", "--no-dashboard"]
        return subprocess.Popen(
            [sys.executable, "-m", *command, *options], cwd=folder, env=env, stderr=subprocess.DEVNULL
        )

    processes = [start("distributed.cli.dask_scheduler", "--port", "0")]
    try:
        while not contact.exists():
            assert processes[0].poll() is None
            time.sleep(0.05)
        processes.append(start("distributed.cli.dask_worker", "--nworkers", "2", "--nthreads", "1"))
        yield json.loads(contact.read_text())["address"]
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture
def project(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Project:
    project = InProcessProject(tmp_path, capfd)
    project.write("agent.py", AGENT)
    return project


@pytest.fixture(params=["local", "cluster"])
def flags(request: pytest.FixtureRequest, tmp_path: Path) -> Sequence[str]:
    """The flags of each executor."""
    if request.param == "local":
        return ()
    return ("--cluster", request.getfixturevalue("cluster"), "--cluster-folder", str(tmp_path))


def remove_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: remove_times(item) for key, item in value.items() if key not in _TIMES}
    return [remove_times(item) for item in value] if isinstance(value, list) else value


def test_reports_are_equal_and_in_input_order(project: Project, flags: Sequence[str]) -> None:
    project.suite(*(case(f"case{n}", f"hello {n}") for n in range(9)), case("wrong", assertions=[contains("bye")]))
    ended, records = project.report("--parallel", "4", "--runs", "2", *flags)
    assert ended.code == 1, ended
    _, expected = project.report("--parallel", "1", "--runs", "2")
    assert [(each["id"], each["trial"]) for each in records] == [(each["id"], each["trial"]) for each in expected]
    assert remove_times(records) == remove_times(expected)


def test_fail_fast_stops_the_run(project: Project, flags: Sequence[str]) -> None:
    project.suite(case("wrong", assertions=[contains("bye")]), *(case(f"case{n}") for n in range(40)))
    ended, records = project.report("--parallel", "1", "--fail-fast", *flags)
    assert ended.code == 1
    assert [each["id"] for each in records] == ["wrong"]


def test_the_budget_stops_the_run(project: Project, flags: Sequence[str]) -> None:
    project.suite(*(case(f"case{n}", "expensive") for n in range(10)))
    ended, records = project.report("--parallel", "1", "--max-cost", "1", *flags)
    assert ended.code == 1, ended
    assert "budget of $1 is spent ($1.2000)" in ended.out
    assert len(records) <= 3


def test_an_error_of_the_provider_is_retried(project: Project, flags: Sequence[str]) -> None:  # N17
    project.suite(case("flaky", "flaky"))
    ended, records = project.report(*flags)
    assert ended.code == 0, ended
    assert records[0]["status"] == "passed"


def test_cases_run_until_they_are_decided(project: Project, flags: Sequence[str]) -> None:  # N37
    project.suite(case("good"), case("bad", assertions=[contains("bye")]))
    ended, records = project.report(
        "--until-decided", "--min-pass", "0.9", "--max-runs", "30", "--parallel", "1", *flags
    )
    _, expected = project.report("--until-decided", "--min-pass", "0.9", "--max-runs", "30", "--parallel", "1")
    assert ended.code == 1
    assert [(each["id"], each["trial"]) for each in records] == [(each["id"], each["trial"]) for each in expected]


def test_hooks_of_the_run_and_of_a_case(project: Project, flags: Sequence[str]) -> None:
    project.write(
        "hooks.py",
        "def set_up(ctx, cases):\n    return {'word': f'{len(cases)} cases'}\n"
        "def before(ctx, case):\n    return {'other': case.id}\n",
    )
    project.suite(
        {"id": "one", "input": "{{word}} {{other}}", "before": "hooks:before", "assertions": [contains("1 cases one")]}
    )
    ended, _ = project.report("--before", "hooks:set_up", *flags)
    assert ended.code == 0, ended


def test_a_cassette_of_workers_replays_anywhere(project: Project, flags: Sequence[str]) -> None:
    project.suite(*(case(f"case{n}", f"hello {n}") for n in range(6)))
    ended, recorded = project.report("--record", "talk.cassette", *flags)
    assert ended.code == 0, ended
    ended, replayed = project.report("--replay", "talk.cassette", *flags)
    assert ended.code == 0, ended
    assert remove_times(replayed) == remove_times(recorded)
    ended, replayed_here = project.report("--replay", "talk.cassette")
    assert ended.code == 0, ended
    assert remove_times(replayed_here) == remove_times(recorded)


def test_a_stopped_run_is_resumed_with_another_executor(project: Project, flags: Sequence[str]) -> None:
    project.suite(case("wrong", assertions=[contains("bye")]), *(case(f"case{n}") for n in range(8)))
    _, records = project.report("--parallel", "1", "--fail-fast", *flags)
    assert len(records) == 1
    ended = project.viva("test", "--resume", "latest", "-o", "report.jsonl")
    assert ended.code == 1, ended
    assert [each["id"] for each in project.records()] == ["wrong", *(f"case{n}" for n in range(8))]


def test_cases_from_standard_input(project: Project, flags: Sequence[str]) -> None:
    ended, records = project.report("-i", "-", *flags, input=json.dumps(case("piped")) + "\n")
    assert ended.code == 0, ended
    assert [each["id"] for each in records] == ["piped"]


def test_workers_without_the_folder_get_the_project(project: Project, cluster: str) -> None:
    project.write("viva.toml", '[agents.echo]\nuse = "python:./agent.py:agent"\n')
    project.write(".env", "SECRET_KEY=do-not-send\n")
    project.write(
        "spy.py",
        "from pathlib import Path\ndef agent(messages, options):\n    return str([p.name for p in Path(__file__).parent.iterdir()])\n",
    )
    project.suite(
        {"id": "one", "input": "list", "assertions": [contains("viva.toml"), {"type": "not_contains", "value": ".env"}]}
    )
    ended, records = project.report("--cluster", cluster, "-n", "python:./spy.py:agent")
    assert ended.code == 0, (ended, records)
    project.suite(*(case(f"case{n}", f"hello {n}") for n in range(4)), name="sub/suite.jsonl")
    project.folder /= "sub"
    ended = project.viva("test", "-i", "suite.jsonl", "-n", "echo", "--cluster", cluster, "--record", "talk.cassette")
    assert ended.code == 0, ended


def test_workers_report_what_they_miss(project: Project, cluster: str) -> None:
    project.write(
        "viva.toml",
        '[connectors.one]\nprovider = "openai"\nmodel = "m"\napi_key_env = "FIRST_KEY"\n[agents.chat]\ntype = "chat"\nconnector = "one"\n',
    )
    project.suite(case("one"))
    ended = project.test("--cluster", cluster, "-n", "chat", env={"FIRST_KEY": "secret-value-1"})
    assert ended.code == 4, ended
    assert "FIRST_KEY" in ended.err
    assert "secret-value-1" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--cluster", "localhost"), "is not the address of a scheduler"),
        (("--cluster", "tcp://127.0.0.1:9", "--workers", "2"), "exclude each other"),
        (("--workers", "0"), "0 is not in the range"),
        (("--cluster-folder", "."), "needs --cluster"),
    ],
)
def test_misuse(project: Project, flags: Sequence[str], message: str) -> None:
    project.suite(case("one"))
    ended = project.test(*flags)
    assert ended.code == 4
    assert message in ended.err

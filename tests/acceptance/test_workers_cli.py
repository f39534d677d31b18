"""`--workers`: what is lost and what is not when a worker, the coordinator or the scheduler ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from project import Project, case, contains, remove_times

AGENT = """\
import os, time
from pathlib import Path

LOG = Path(__file__).with_name("calls.log")

def agent(messages, options):
    text = messages[-1]["content"]
    with LOG.open("a") as log:
        log.write(f"{os.getpid()} {text}\\n")
    if text == "crash":
        os._exit(7)
    time.sleep(0.05)
    return text
"""
CASES = 60
PARALLEL = 6

pytestmark = pytest.mark.process


def create_project(folder: Path) -> Project:
    """One case of ten fails, so that reports have reasons too."""
    project = Project(folder)
    project.write("agent.py", AGENT)
    project.suite(
        *(
            case(f"case{n}", f"hello {n}", assertions=[contains("bye" if n % 10 == 7 else "hello")])
            for n in range(CASES)
        )
    )
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return create_project(tmp_path)


FLAGS = [
    *("test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent"),
    *("--workers", "2", "--parallel", str(PARALLEL), "-o", "report.jsonl"),
]


def start(project: Project, *arguments: str) -> "subprocess.Popen[str]":
    return project.start(*FLAGS, *arguments)


def read_calls(project: Project) -> list[tuple[int, str]]:
    path = project.folder / "calls.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(pid), text) for pid, _, text in (line.partition(" ") for line in lines)]


def wait_for_calls(project: Project, process: "subprocess.Popen[str]", count: int) -> list[tuple[int, str]]:
    while len(calls := read_calls(project)) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return calls


def read_journal(project: Project) -> list[str]:
    """The cases whose end is journaled."""
    journal = project.find_journal()
    events = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
    return [event["record"]["id"] for event in events if event.get("event") == "trial_ended"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The report of a run in one process, without times."""
    project = create_project(tmp_path_factory.mktemp("unbroken"))
    ended, records = project.report("--parallel", str(PARALLEL))
    assert ended.code == 1, ended
    return remove_times(records)


SEEDS = [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 21))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_worker_costs_only_what_was_in_flight(project: Project, unbroken: Any, seed: int) -> None:
    moment = Random(seed)
    process = start(project)
    calls = wait_for_calls(project, process, moment.randrange(1, CASES * 3 // 4))
    time.sleep(moment.random() * 0.05)  # somewhere within the trials
    os.kill(moment.choice(calls)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1, (out, err)
    assert remove_times(project.records()) == unbroken
    extra = sum(count - 1 for count in Counter(text for _, text in read_calls(project)).values())
    assert extra <= PARALLEL
    assert not extra or "in flight" in out


def test_a_run_whose_coordinator_was_killed_is_resumed(project: Project, unbroken: Any) -> None:
    process = start(project)
    wait_for_calls(project, process, 20)
    process.kill()
    process.communicate(timeout=300)
    ended = read_journal(project)
    before = {text for _, text in read_calls(project)}
    (project.folder / "calls.log").unlink()
    resumed = project.viva("test", "--resume", "latest", "--workers", "1", "-o", "report.jsonl")
    assert resumed.code == 1, resumed
    assert remove_times(project.records()) == unbroken
    again = {text for _, text in read_calls(project)}
    assert not again & {f"hello {name.removeprefix('case')}" for name in ended}
    assert len(again & before) <= PARALLEL


def test_an_agent_that_ends_its_process_fails_alone(project: Project) -> None:
    project.suite(*(case(f"case{n}", "crash" if n == 3 else f"hello {n}") for n in range(8)))
    ended = project.run_on_terminal(*FLAGS)
    assert ended.code == 1, ended
    assert re.search(r"\d workers?, \d in flight, [1-4] lost", ended.out)
    records = {record["id"]: record for record in project.records()}
    assert {name: record["status"] for name, record in records.items()} == {
        f"case{n}": "failed" if n == 3 else "passed" for n in range(8)
    }
    assert records["case3"]["fault"] == "agent"
    assert Counter(text for _, text in read_calls(project))["crash"] == 4


def test_ctrl_c_stops_the_workers_and_writes_the_reports(project: Project) -> None:  # the first one, as without workers
    process = start(project)
    pids = {pid for pid, _ in wait_for_calls(project, process, 10)}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 2, (out, err)
    assert len(project.records()) < CASES
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_an_idle_worker_that_ends_is_not_a_loss(project: Project) -> None:
    process = start(project, "--parallel", "1")
    busy = {pid for pid, _ in wait_for_calls(project, process, 3)}
    children = [each for each in psutil.Process(process.pid).children() if "spawn_main" in str(each.cmdline())]
    for child in children:
        if child.pid not in busy:
            child.kill()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1, (out, err)
    assert len(project.records()) == CASES


CORES = """\
import json, os, subprocess, sys, time

def agent(messages, options):
    time.sleep(0.3)
    code = "import json, os; print(json.dumps(sorted(os.sched_getaffinity(0))))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return json.dumps([sorted(os.sched_getaffinity(0)), json.loads(child.stdout), os.getpid()])
"""


@pytest.mark.parametrize("are_as_many", [True, False])
def test_each_worker_has_a_core_of_its_own_if_there_are_as_many(project: Project, are_as_many: bool) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    project.write("agent.py", CORES)
    project.suite(*(case(f"case{n}", assertions=[contains("[[")]) for n in range(12)))
    count = len(cores) + (not are_as_many)
    limit = partial(os.sched_setaffinity, 0, cores)
    process = project.start(*FLAGS, "--workers", str(count), preexec_fn=limit)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, (out, err)
    replies = {record["turns"][0]["output"] for record in project.records()}
    found = sorted((own, of_child) for own, of_child, _ in map(json.loads, replies))
    assert found == ([([core], [core]) for core in cores] if are_as_many else [(cores, cores)] * len(found))


def test_cli_agents_use_all_cores(project: Project) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    project.write(
        "viva.toml", f'[agents.own]\ntype = "command"\ncommand = {json.dumps([sys.executable, "-c", code])}\n'
    )
    project.suite(case("one", assertions=[contains(str(cores))]))
    limit = partial(os.sched_setaffinity, 0, cores)
    process = project.start("test", "-i", "suite.jsonl", "-n", "own", "--workers", str(len(cores)), preexec_fn=limit)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, (out, err)

"""A run on an existing cluster has a process of its own on each worker."""

import subprocess
import time
from pathlib import Path

import psutil
import pytest

from dask_processes import open_processes
from project import Project, case, contains, remove_times
from viva.session.workers import process as worker_process

WORDED = """\
import asyncio
from pathlib import Path
import helper

async def agent(messages, options):
    (Path({folder!r}) / f"started-{{messages[-1]['content']}}").touch()
    while not (Path({folder!r}) / "go").exists():
        await asyncio.sleep(0.02)
    (Path({folder!r}) / "ended").touch()
    return helper.WORD
"""


def start_worded(root: Path, word: str, *flags: str) -> "tuple[Path, subprocess.Popen[str]]":
    """A run of a project whose files have the same names as those of the others. Its agent waits for a file `go`."""
    project = Project(root / word)
    project.write("worded.py", WORDED.format(folder=str(project.folder)))
    project.write("helper.py", f"WORD = {word!r}\n")
    project.suite({"id": "one", "input": "say", "assertions": [contains(word)]})
    process = project.start("test", "-i", "suite.jsonl", "-n", "python:./worded.py:agent", *flags)
    wait_for(project.folder / "started-say", process)
    return project.folder, process


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_runs_at_the_same_time_on_one_worker_have_their_own_code(tmp_path: Path) -> None:
    with open_processes(tmp_path) as processes:
        processes.start_workers(1)
        runs = [start_worded(tmp_path, word, "--cluster", processes.address) for word in ("alpha", "beta")]
        for folder, _ in runs:
            (folder / "go").touch()
        for _, process in runs:
            out, err = process.communicate(timeout=300)
            assert process.returncode == 0, (out, err)


def test_a_config_above_the_folder_of_a_worker_is_not_used(tmp_path: Path) -> None:
    """The project has none; the worker was started in another project."""
    project = Project(tmp_path / "project")
    project.suite(case("one"))
    (tmp_path / "other" / "work").mkdir(parents=True)
    (tmp_path / "other" / "viva.toml").write_text(
        '[agents.web]\nurl = "http://127.0.0.1/${NOT_SET_HERE}"\n[nonsense]\n'
    )
    with open_processes(tmp_path) as processes:
        processes.start_workers(1, scratch=tmp_path / "other" / "work")
        ended = project.test("--cluster", processes.address)
    assert ended.code == 0, ended


def test_what_a_killed_coordinator_had_on_a_cluster_ends(tmp_path: Path) -> None:
    """Its trials cost no more, and neither its process nor its files stay on the worker."""
    with open_processes(tmp_path) as processes:
        worker = psutil.Process(processes.start_workers(1).pid)
        folder, process = start_worded(tmp_path, "alpha", "--cluster", processes.address)
        assert [each for each in worker.children(recursive=True) if is_worker_process(each)]
        process.kill()
        process.communicate()
        while [each for each in worker.children(recursive=True) if is_worker_process(each)]:
            time.sleep(0.05)
        (folder / "go").touch()
        while list(tmp_path.rglob("viva-project-*")):
            time.sleep(0.05)
        _, other = start_worded(tmp_path, "beta", "--cluster", processes.address)
        (tmp_path / "beta" / "go").touch()
        out, err = other.communicate(timeout=300)
        assert other.returncode == 0, (out, err)
        assert not (folder / "ended").exists()


def is_worker_process(process: psutil.Process) -> bool:
    try:
        return worker_process.__name__ in " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return False


LEAK = """import time
KEPT = []
def agent(messages, options):
    if messages[-1]["content"] == "leak":
        KEPT.append(b"x" * (700 << 20))
        time.sleep(60)
    return messages[-1]["content"]
"""
EXIT = """\
import os
def agent(messages, options):
    if messages[-1]["content"] == "exit":
        os._exit(3)
    return messages[-1]["content"]
"""


def test_an_agent_that_ends_its_process_or_leaks_costs_no_worker_of_a_cluster(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write("leaks.py", LEAK)
    project.write("exits.py", EXIT)
    with open_processes(tmp_path) as processes:
        nanny = psutil.Process(processes.start_workers(1, options=("--memory-limit", "600MiB")).pid)
        before: set[int] = set()
        for name, text in (("leaks", "leak"), ("exits", "exit")):
            project.suite(case("one"), case("two", text), case("three"))
            ended, records = project.report("-n", f"python:./{name}.py:agent", "--cluster", processes.address)
            assert ended.code == 1, ended
            assert [each["status"] for each in records] == ["passed", "failed", "passed"]
            assert records[1]["fault"] == "agent"
            workers = {each.pid for each in nanny.children() if "spawn_main" in " ".join(each.cmdline())}
            assert workers == (before or workers)  # the process that others use too
            before = workers


LOGGING = """\
import os, time
from pathlib import Path
def agent(messages, options):
    text = messages[-1]["content"]
    with Path({log!r}).open("a") as log:
        log.write(f"{{os.getpid()}} {{text}}\\n")
    time.sleep(0.05)
    return text
"""
PARALLEL = 4


@pytest.mark.parametrize("killed", ["process of the run", "worker of the cluster"])
def test_a_process_that_is_killed_costs_only_what_was_in_flight(tmp_path: Path, killed: str) -> None:
    project = Project(tmp_path / "project")
    log = tmp_path / "calls.log"
    project.write("agent.py", LOGGING.format(log=str(log)))
    project.suite(*(case(f"case{n}", f"hello {n}") for n in range(40)))
    _, expected = project.report()
    log.unlink()
    flags = ("-i", "suite.jsonl", "-n", "python:./agent.py:agent", "--parallel", str(PARALLEL), "-o", "report.jsonl")
    with open_processes(tmp_path) as processes:
        processes.start_workers(2)
        process = project.start("test", *flags, "--cluster", processes.address)
        while not log.exists() or len(lines := log.read_text().splitlines()) < 12:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        victim = psutil.Process(int(lines[-1].split()[0]))
        if killed == "worker of the cluster":
            of_run, victim = victim, victim.parents()[0]
            victim.kill()
            of_run.wait(timeout=300)  # it ends with its worker
        else:
            victim.kill()
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, (out, err)
    assert remove_times(project.records()) == remove_times(expected)
    calls = [line.partition(" ")[2] for line in log.read_text().splitlines()]
    assert len(calls) - len(set(calls)) <= PARALLEL

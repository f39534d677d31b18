"""A run that is killed goes on: nothing is lost, nothing that was journaled is run twice, and the report is the same."""

import json
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from project import Project, case, contains

AGENT = """
import asyncio, os

LOG = os.open("calls.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

async def agent(messages, options):
    text = messages[-1]["content"]
    os.write(LOG, f"{options['session_id'].rpartition('-')[2]} {text}\\n".encode())
    await asyncio.sleep(0.004)
    if text == "raise":
        raise ValueError("as always")
    return f"I heard {text}, message {len(messages)}"
"""
PASSING = {"duration_ms", "start_ms", "checks_ms", "started_at", "session_id", "file"}
CASES, RUNS = 14, 2
KILLED: list[int] = []
"""After how many calls of the agent a run was killed."""


def suite(project: Project) -> None:
    """Static cases of two turns; some fail, and one breaks."""
    project.write("agent.py", AGENT)
    project.suite(
        *(
            {
                "id": f"c{n}",
                "turns": [
                    {"input": f"first {n}", "assertions": [contains("heard")]},
                    {"input": f"second {n}", "assertions": [contains("message 3" if n % 3 else "message 4")]},
                ],
            }
            for n in range(CASES - 1)
        ),
        {"id": "broken", "input": "raise", "assertions": [contains("x")]},
    )


FLAGS = ("--runs", str(RUNS), "--parallel", "3", "-o", "report.jsonl", "-o", "report.json")


def told(value: Any) -> Any:
    """A report without times and names of the run."""
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items() if key not in PASSING}
    return [told(each) for each in value] if isinstance(value, list) else value


def whole(project: Project) -> tuple[Any, Any]:
    report = json.loads((project.folder / "report.json").read_text())
    return told(project.records()), told({key: report[key] for key in ("summary", "cases")})


def calls(project: Project) -> list[str]:
    path = project.folder / "calls.log"
    return path.read_text().splitlines() if path.exists() else []


def ended(project: Project) -> set[str]:
    """The sessions whose trials are in the journal."""
    found: set[str] = set()
    for path in (project.folder / ".viva" / "runs").glob("*/journal.jsonl"):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n") and (event := json.loads(line))["event"] == "trial_ended":
                found.add(event["record"]["session_id"].rpartition("-")[2])
    return found


def killed_after(project: Project, count: int, jitter_s: float, *arguments: str) -> bool:
    """Starts a run and kills it, really, once the agent was called so often. False: it had ended before."""
    process = project.start("test", *arguments)
    assert process.stdout is not None
    while process.poll() is None and len(calls(project)) < count:
        time.sleep(0.0005)
    until = time.perf_counter() + jitter_s
    while time.perf_counter() < until:
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    return process.returncode == -signal.SIGKILL


def killed_again_and_again(folder: Path, random: Random, kills: int, flags: tuple[str, ...] = FLAGS) -> tuple[Any, Any]:
    """One run, killed so often, and what it reports in the end. Checks on the way that nothing ended is run again."""
    project = Project(folder)
    suite(project)
    arguments = ("-i", "suite.jsonl", "-n", "python:./agent.py:agent", *flags)
    before: set[str] = set()
    KILLED.clear()
    for _ in range(kills):
        seen = Counter(line.split()[0] for line in calls(project))
        was_killed = killed_after(
            project, len(calls(project)) + random.randrange(1, 12), random.random() / 100, *arguments
        )
        now = Counter(line.split()[0] for line in calls(project))
        assert all(now[session] == seen[session] for session in before), "what was journaled was run again"
        assert before <= ended(project), "what was journaled is lost"
        before = ended(project)
        arguments = ("--resume", "latest")
        KILLED.append(len(calls(project)))
        assert was_killed, "it came to its end before it could be killed"
    project.viva("test", "--resume", "latest", code=1)
    now = Counter(line.split()[0] for line in calls(project))
    turns = Counter({session: 1 if session.partition(".")[0] in ("26", "27") else 2 for session in before})
    assert all(now[session] >= turns[session] for session in before)
    assert len(list((project.folder / ".viva" / "runs").iterdir())) == 1, "it is one run"
    (row,) = project.list_runs()
    assert row["summary"]["failed"] == 6
    return whole(project)


def unbroken(folder: Path) -> tuple[Any, Any]:
    project = Project(folder)
    suite(project)
    assert project.test(*FLAGS).code == 1
    return whole(project)


def test_a_run_that_is_killed_again_and_again_ends_like_an_unbroken_one(tmp_path: Path):
    """Four times SIGKILL, each at another moment."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert killed_again_and_again(tmp_path / "a", Random(1), 4) == unbroken(tmp_path / "b")


@pytest.mark.soak
def test_a_run_can_be_killed_at_any_of_sixty_points(tmp_path: Path):
    """Fifteen runs, each killed four times at random moments."""
    (tmp_path / "unbroken").mkdir()
    expected = unbroken(tmp_path / "unbroken")
    points: list[int] = []
    for seed in range(15):
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert killed_again_and_again(folder, Random(seed), 4) == expected, f"seed {seed}"
        points += KILLED
    print(f"{len(points)} points, after so many calls: {points}")
    assert len(points) >= 50


def test_a_cassette_of_a_run_that_was_killed_replays_all_of_it(tmp_path: Path):
    """What was recorded of ended trials stays, and what was cut off is recorded again."""
    project = Project(tmp_path)
    report = killed_again_and_again(tmp_path, Random(5), 2, (*FLAGS, "--record", "c.cassette"))
    before = len(calls(project))
    project.test(*FLAGS, "--replay", "c.cassette", code=1)
    assert whole(project) == report
    assert len(calls(project)) == before


def test_a_report_that_a_kill_prevented_is_written_later(project: Project):
    """The journal says that the run has ended; the report is made from it, and nothing runs."""
    suite(project)
    project.test(*FLAGS)
    expected, before = whole(project), len(calls(project))
    for name in ("report.jsonl", "report.json"):
        (project.folder / name).unlink()
    assert (project.viva("test", "--resume", "latest").code, whole(project)) == (1, expected)
    assert len(calls(project)) == before
    assert project.viva("test", "--resume", "latest", "-o", "other.md").code == 1
    assert "Not passed" in (project.folder / "other.md").read_text()


def test_a_run_continues_from_any_folder_of_the_project(project: Project):
    suite(project)
    project.write("viva.toml", '[agents.it]\nuse = "python:./agent.py:agent"\n')
    project.write("below/x", "")
    assert killed_after(project, 6, 0, "-i", "suite.jsonl", *FLAGS)
    below = Project(project.folder / "below")
    assert below.viva("test", "--resume", "latest", "-o", "mine.jsonl").code == 1
    assert len(below.records("mine.jsonl")) == CASES * RUNS


def test_interrupting_keeps_what_has_ended(project: Project):
    """Ctrl-C is exit 2; the rest can be run later."""
    project.write("agent.py", AGENT.replace("0.004", "0.2"))
    project.suite(*(case(f"c{n}", f"heard {n}", assertions=[contains("heard")]) for n in range(6)))
    process = project.start("test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent", "--parallel", "1")
    while len(calls(project)) < 3:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 2
    process.communicate()
    count = len(ended(project))
    assert count == 2
    assert "4 not run" in project.viva("runs", "show", "latest").out
    project.viva("test", "--resume", "latest", "--parallel", "6", "-o", "report.jsonl", code=0)
    assert len(project.records()) == 6
    assert len(calls(project)) == 3 + 4


GENERATOR = """
import json, os

def generate():
    os.write(os.open("made.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), b"made\\n")
    number = len(open("made.log").readlines())
    return [{"id": f"g{n}", "input": f"{number}", "assertions": [{"type": "contains", "value": str(number)}]} for n in range(8)]
"""


def test_generated_cases_come_from_the_journal(project: Project):
    """They are not made again; another generation would be other cases."""
    project.write("agent.py", AGENT)
    project.write("gen.py", GENERATOR)
    flags = ("-i", "scripts:gen", "-n", "python:./agent.py:agent", "--parallel", "1", "-o", "report.jsonl")
    assert killed_after(project, 3, 0, *flags)
    assert project.viva("test", "--resume", "latest").code == 0
    assert (project.folder / "made.log").read_text() == "made\n"
    assert [record["turns"][0]["input"] for record in project.records()] == ["1"] * 8


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [("suite.jsonl", json.dumps(case("other")) + "\n", "suites"), ("agent.py", AGENT + "# changed\n", "agents")],
)
def test_changes_are_refused_unless_forced(project: Project, file: str, text: str, what: str):
    suite(project)
    assert killed_after(project, 6, 0, "-i", "suite.jsonl", "-n", "python:./agent.py:agent", *FLAGS)
    project.write(file, text)
    refused = project.viva("test", "--resume", "latest", code=4)
    assert f"changed since the run began: {what}; --force resumes it anyway" in refused.err
    forced = project.viva("test", "--resume", "latest", "--force")
    assert forced.code in (0, 1), forced
    assert [r["id"] for r in project.records()] == (
        ["other"] * 2 if what == "suites" else [r["id"] for r in project.records()]
    )


def test_forced_over_a_changed_suite_only_cases_that_stayed_keep_their_outcome(project: Project):
    project.write("agent.py", AGENT)
    cases = [{"id": f"c{n}", "input": f"x {n}", "assertions": [contains("heard")]} for n in range(6)]
    project.suite(*cases)
    assert killed_after(
        project, 4, 0, "-i", "suite.jsonl", "-n", "python:./agent.py:agent", "--parallel", "1", *FLAGS[4:]
    )
    done = len(ended(project))
    assert done >= 2
    project.suite(cases[0], {"id": "new", "input": "y", "assertions": [contains("heard")]}, *cases[1:])
    before = len(calls(project))
    assert project.viva("test", "--resume", "latest", "--force").code == 0
    assert [record["id"] for record in project.records()] == ["c0", "new", "c1", "c2", "c3", "c4", "c5"]
    assert len(calls(project)) == before + 6


@pytest.mark.parametrize("flag", [("-i", "suite.jsonl"), ("--runs", "3"), ("--fail-fast",), ("--record", "c")])
def test_a_setting_of_the_run_cannot_be_changed(project: Project, flag: tuple[str, ...]):
    assert f"remove {flag[0]}" in project.viva("test", "--resume", "latest", *flag, code=4).err


def test_a_run_in_a_copied_folder_is_not_resumed(project: Project, tmp_path_factory: pytest.TempPathFactory):  # N39
    """It would write the reports of the folder where it was started, beside the process that may still work there."""
    project.suite(case("a"))
    project.test("-o", "report.jsonl", code=0)
    for journal in (project.folder / ".viva" / "runs").glob("*/journal.jsonl"):
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:-2]))
    (project.folder / "report.jsonl").unlink()
    copy = tmp_path_factory.mktemp("copy") / "project"
    shutil.copytree(project.folder, copy)
    ended = Project(copy).viva("test", "--resume", "latest", code=4)
    assert f"is a copy of one in {project.folder}; continue there" in ended.err
    assert not (project.folder / "report.jsonl").exists()
    project.viva("test", "--resume", "latest", code=0)
    assert [record["id"] for record in project.records()] == ["a"]


def test_a_run_in_a_copied_folder_is_not_shrunk(project: Project, tmp_path_factory: pytest.TempPathFactory):
    """It would call the agent of the folder where it was started; if that is gone, there is no agent."""
    project.suite({"id": "a", "input": "hi", "assertions": [{"type": "contains", "value": "other"}]})
    project.test(code=1)
    copy, moved = (tmp_path_factory.mktemp(name) / "project" for name in ("copy", "moved"))
    shutil.copytree(project.folder, copy)
    refused = Project(copy).viva("shrink", "latest", "a", code=4)
    assert f"is a copy of one in {project.folder}; continue there" in refused.err
    project.folder.rename(moved)
    gone = Project(copy).viva("shrink", "latest", "a", code=4)
    assert f"The run was started in {project.folder}, where it has to continue: No such file" in gone.err


def test_there_must_be_a_run(project: Project):
    assert "there is no run 'latest'" in project.viva("test", "--resume", "latest", code=4).err
    assert project.viva("test", "-i", "x.jsonl", "--force").code == 4

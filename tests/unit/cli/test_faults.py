"""Limits, reports that cannot be written, and suites that change: nothing is lost and the blame is right."""

from pathlib import Path

import pytest

from project import HANGING, Project, case


def test_the_time_of_a_case_covers_all_of_it(project: Project):
    """`timeout` of the case, and the flag over it; also while the agent is being made."""
    project.write("agent.py", HANGING)
    project.suite(case("own", "sleeps", timeout="250ms"))
    ended, (record,) = project.report()
    assert (record["status"], record["fault"], record["error"]) == ("failed", "agent", "timeout after 250ms"), (
        ended
    )  # N18
    _, (record,) = project.report("--timeout", "400ms", agent="python:./agent.py:SlowToMake")
    assert (record["status"], record["error"]) == ("failed", "timeout after 400ms")
    assert record["turns"] == []


def test_a_limit_on_the_command_line_stands_over_the_turn_and_the_turn_over_the_case(project: Project):
    project.write("agent.py", HANGING)
    project.suite({"id": "t", "turn_timeout": "30s", "turns": [{"input": "sleeps", "turn_timeout": "300ms"}]})
    _, (record,) = project.report()
    assert record["error"] == "timeout after 300ms"  # N18: turn > case
    project.suite({"id": "t", "turns": [{"input": "sleeps", "turn_timeout": "30s"}]})
    _, (record,) = project.report("--turn-timeout", "200ms")
    assert record["error"] == "timeout after 200ms"  # N18: flag > turn


def test_a_reply_that_came_too_late_does_not_count(project: Project):
    """An async agent that blocks the loop cannot be cut off, but its reply is late all the same."""
    project.write("agent.py", "import time\nasync def agent(messages):\n    time.sleep(0.5)\n    return 'hello'\n")
    project.suite(case("late"))
    _, (record,) = project.report("--turn-timeout", "100ms")
    assert (record["status"], record["error"]) == ("failed", "timeout after 100ms")  # N18


def test_a_regex_that_would_run_forever_is_an_error(project: Project):
    """In an assertion, in a path's filter, and in `-k`: a time limit; the fault is the check's."""
    project.write(
        "agent.py", "def agent(messages):\n    return {'content': 'a' * 40 + '!', 'data': {'a': ['a' * 40 + '!']}}\n"
    )
    endless = "(a|aa)+$"
    project.suite(
        case("text", assertions=[{"type": "regex", "pattern": endless}]),
        case("path", assertions=[{"type": "json_path", "path": "$.a[?match(@, '(a|aa)+')]", "value": 1}]),
        case("a" * 40 + "!"),
    )
    _, records = project.report("-k", "^(text|path)$", "--retry-faults", "0", code=1)
    text, path = records
    assert (text["status"], text["fault"]) == ("error", "undetermined")  # N27, N24
    assert "make it simpler" in text["error"]
    assert path["status"] in ("error", "failed")
    assert "make it simpler" in project.test("-k", endless, code=4).err


def test_a_report_that_cannot_be_written_is_an_error_before_anything_runs(project: Project):
    project.write("agent.py", "raise SystemExit('it was called')\n")
    project.suite(case("a"))
    project.write("a-file", "")
    (project.folder / "folder.md").mkdir()
    for output, what in {
        "nowhere/r.xml": "there is no folder nowhere",
        "a-file/r.json": "there is no folder a-file",
        "folder.md": "cannot be written",
        "r.pdf": "unknown report format; use one of the extensions .jsonl, .json, .xml",
    }.items():
        assert f"-o {output}: {what}" in project.test("-o", output, code=4).err  # N35
    if Path("/proc").is_dir():  # where not even root can write
        assert "-o /proc/r.jsonl: cannot be written" in project.test("-o", "/proc/r.jsonl").err


def test_a_report_does_not_overwrite_a_suite(project: Project):
    """Not by its own name, not by another, and not in a dry run."""
    project.suite(case("a"), name="tests/s.jsonl")
    for arguments in (
        ["-o", "tests/s.jsonl"],
        ["-o", "./tests/../tests/s.jsonl"],
        ["-o", "tests/s.jsonl", "--dry-run"],
    ):
        assert "the run itself needs" in project.test("-i", "tests", *arguments, code=4).err
    assert (project.folder / "tests" / "s.jsonl").read_text().startswith('{"id": "a"')


@pytest.mark.parametrize("name", ["tests/report.json", "tests/report.jsonl", "tests/../tests/x.yaml"])
def test_what_a_reporter_writes_is_not_put_among_the_suites(project: Project, name: str):
    """Its format is its own: the next run of the folder could not tell it from a suite."""
    project.suite(case("a"), name="tests/s.jsonl")
    project.write("viva.toml", '[agents.echo]\nuse = "python:./agent.py:agent"\n')
    for where in ("tests", "./tests/../tests", ".", "tests/s.jsonl", "tests/*.jsonl"):
        assert "would load what the reporter writes" in project.test("-i", where, "-r", "echo", "-o", name, code=4).err
    project.test("-i", "tests", "-r", "echo", "-o", "report.json", "-o", "tests/report.md", code=0)
    project.test("-i", "tests", "-o", "tests/own.json", "-o", "tests/own.jsonl", code=0)
    project.test("-i", "tests", code=0)


def test_a_report_that_is_lost_at_the_end_is_not_success(project: Project):
    """The folder was there when the run began."""
    (project.folder / "out").mkdir()
    project.write(
        "agent.py",
        "import shutil\ndef agent(messages):\n    shutil.rmtree('out', ignore_errors=True)\n    return 'hello'\n",
    )
    project.suite(case("a"))
    assert "out/r.jsonl: No such file or directory" in project.test("-o", "out/r.jsonl", "-o", "r.jsonl", code=1).out
    assert [record["status"] for record in project.records("r.jsonl")] == ["passed"]
    (project.folder / "out").mkdir()
    project.suite({"id": "a", "input": "hello"})
    assert project.test().code == 5
    (project.folder / "out").mkdir()
    assert project.test("-o", "out/r.jsonl").code == 1  # CI often accepts 5


def test_a_suite_that_changes_while_it_runs_stops_the_run(project: Project):
    """What was checked is what runs: a file that is another one by now is refused, and what is done is kept."""
    project.write(
        "agent.py",
        "def agent(messages):\n    with open('suite.jsonl', 'a') as file: file.write('{\"id\": \"new\", \"input\": \"x\"}\\n')\n    return messages[-1]['content']\n",
    )
    project.suite(case("a"))
    ended, records = project.report("--parallel", "1", code=1)
    assert [record["id"] for record in records] == ["a"]
    assert "changed while it was being run" in ended.out + ended.err


def test_a_folder_that_takes_no_history_says_so(project: Project):
    """`.viva` cannot be made: exit 4 before anything runs; --no-history needs none."""
    project.suite(case("a"))
    project.write(".viva", "a file in its place")
    assert "--no-history" in project.test(code=4).err
    assert project.test("--no-history").code == 0


def test_a_project_cannot_be_made_below_a_file(project: Project):
    ended = project.viva("init", "agent.py/here", code=4)
    assert "agent.py/here/viva.toml: cannot be written" in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""

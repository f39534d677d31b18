"""Flags, exit codes, the config, and the small commands."""

import json
import re
from xml.etree import ElementTree as ET

import pytest

from project import Project, case, contains

UNEVEN = '''
import asyncio

async def agent(messages):
    """The first case takes longest, so cases end in another order than they began."""
    number = int(messages[-1]["content"])
    await asyncio.sleep(0.2 - number * 0.02)
    return str(number)
'''


def test_reports_are_in_input_order(project: Project):
    """In every format; the console shows cases as they end."""
    project.write("agent.py", UNEVEN)
    project.suite(*(case(f"c{i}", str(i)) for i in range(8)))
    ended, records = project.report("--parallel", "8", "-o", "r.json", "-o", "r.xml", "-o", "r.md", code=0)
    order = [f"c{i}" for i in range(8)]
    assert [record["id"] for record in records] == order  # N19
    whole = json.loads((project.folder / "r.json").read_text())
    assert [each["id"] for each in whole["cases"]] == order
    assert whole["summary"]["passed"] == 8
    assert [each.get("name") for each in ET.parse(project.folder / "r.xml").iter("testcase")] == order
    as_ended = re.findall(r"^✓ (c\d)", ended.out, re.MULTILINE)
    assert sorted(as_ended) == order
    assert as_ended != order  # N34: one line a case as it ends


def test_json_prints_one_event_a_line(project: Project):
    """From run_started to run_ended, and nothing else on standard output."""
    project.suite(case("a"), case("b", assertions=[contains("no")]))
    ended = project.test("--json", "--parallel", "1", code=1)
    events = [json.loads(line) for line in ended.out.splitlines()]
    one_case = ["trial_started", "turn_started", "turn_ended", "trial_ended"]
    assert [event["event"] for event in events if event["event"] != "note"] == [
        "run_started",
        *one_case,
        *one_case,
        "run_ended",
    ]
    assert events[0]["cases"] == 2
    assert events[-1]["exit_code"] == 1
    assert (events[-1]["summary"]["passed"], events[-1]["summary"]["failed"]) == (1, 1)


def test_verbose_shows_the_tree_of_turns(project: Project):
    project.suite(
        {
            "id": "T1",
            "name": "Flow",
            "turns": [{"input": "a", "assertions": [contains("a")]}, {"input": "b", "assertions": [contains("no")]}],
        }
    )
    out = project.test("-v").out
    assert "► [T1] Flow (2 turns)" in out  # N34
    assert re.search(r'├─ Turn 1: "a" → PASSED \(\d', out)
    assert '│          Agent: "a"' in out
    assert '│          ✓ contains "a"' in out
    assert re.search(r'├─ Turn 2: "b" → FAILED', out)
    assert "└─ Result: FAILED" in out


def test_colour_is_for_terminals_that_want_it(project: Project):
    """NO_COLOR is honoured."""
    project.suite(case("a"))
    colour = re.compile(r"\x1b\[[0-9;]*m")
    command = ("test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent")
    assert colour.search(project.run_on_terminal(*command).out)
    assert not colour.search(project.run_on_terminal(*command, env={"NO_COLOR": "1"}).out)
    assert not colour.search(project.run_on_terminal(*command, env={"TERM": "dumb"}).out)


def test_the_version_and_help(project: Project):
    import viva

    assert project.viva("--version").out == f"viva, version {viva.__version__}\n"
    top = project.viva("--help").out
    for command in ("test", "check", "agents", "init", "schema", "completion"):
        assert re.search(rf"^  {command}\s+\w", top, re.MULTILINE), command
    assert "Did you mean 'check'?" in project.viva("chekc").err


def test_init_makes_a_project_that_runs_at_once(project: Project):
    """With the editor's schema line; what is there already is kept."""
    project.viva("init", "mine", code=0)
    folder = project.folder / "mine"
    suite = (folder / "tests" / "greeter.yaml").read_text()
    assert suite.startswith("# yaml-language-server: $schema=../viva.schema.json\n")
    json.loads((folder / "viva.schema.json").read_text())
    project.folder = folder
    assert "3 passed" in project.viva("test", "-i", "tests/", code=0).out
    assert project.viva("agents").code == 0
    (folder / "agent.py").write_text("# mine now\n")
    assert project.viva("init").out.count("kept") == 4
    assert (folder / "agent.py").read_text() == "# mine now\n"


@pytest.mark.process
def test_what_programs_of_an_agent_print_is_not_among_the_events(project: Project):
    """With --json, standard output is ours alone, below Python too."""
    project.suite(case("a"))
    project.write(
        "agent.py",
        "import os, subprocess\nprint('loud')\n"
        "def agent(messages):\n"
        "    os.write(1, b'louder\\n')\n    subprocess.run(['echo', 'loudest'], check=True)\n"
        "    return messages[-1]['content']\n",
    )
    for arguments in (("--json",), ("-i", "Hello there", "--json")):
        ended = project.test(*arguments, code=0)  # N35
        assert all(json.loads(line) for line in ended.out.splitlines())
        assert {"loud", "louder", "loudest"} <= set(ended.err.split())

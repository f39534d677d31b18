"""`viva cassette`: show, prune, diff."""

import json

import pytest

from project import Project, case, contains


@pytest.fixture
def taped(project: Project) -> Project:
    """Two cases on one cassette."""
    project.suite(
        case("one", "hello \x1b[31m"),
        {"id": "two", "turns": [{"input": "a", "assertions": [contains("a")]}, {"input": "b"}]},
    )
    assert project.test("--record", "c.cassette").code == 0
    return project


def test_show_lists_conversations_and_what_was_said(taped: Project):
    whole = taped.viva("cassette", "show", "c.cassette", code=0)
    assert "3 replies" in whole.out
    assert "agents: python:./agent.py:agent" in whole.out
    assert "  two (trial 1) of suite.jsonl: 2 agent" in whole.out
    one = taped.viva("cassette", "show", "c.cassette", "two").out
    assert "turn 2: agent python:./agent.py:agent" in one
    assert "    > b\n    < b" in one
    assert "\x1b" not in taped.viva("cassette", "show", "c.cassette", "one").out
    entries = [json.loads(line) for line in taped.viva("cassette", "show", "c.cassette", "--json").out.splitlines()]
    assert [entry["turn"] for entry in entries if entry["key"]["case"] == "two"] == [1, 2]
    unknown = taped.viva("cassette", "show", "c.cassette", "three")
    assert (unknown.code, unknown.err) == (
        4,
        "c.cassette: has no case 'three'; list the cases with `viva cassette show c.cassette`\n",
    )


def test_prune_forgets_cases_by_id(taped: Project):
    before = (taped.folder / "c.cassette").read_bytes()
    would = taped.viva("cassette", "prune", "c.cassette", "-k", "^one", "--dry-run")
    assert would.out == "would remove one (trial 1) of suite.jsonl\n2 lines of 7\n"
    assert (taped.folder / "c.cassette").read_bytes() == before
    assert taped.viva("cassette", "prune", "c.cassette", "-k", "^one").code == 0
    assert taped.test("--replay", "c.cassette", "-k", "two").code == 0
    assert taped.test("--replay", "c.cassette", "-k", "one").code == 1


def test_prune_forgets_what_had_not_ended(taped: Project):
    path = taped.folder / "c.cassette"
    lines = [line for line in path.read_text().splitlines() if '"line":"trial"' not in line or '"two"' not in line]
    path.write_text("\n".join(lines) + "\n")
    assert "removed two (trial 1)" in taped.viva("cassette", "prune", "c.cassette", "--unfinished").out
    assert '"case":"two"' not in path.read_text()
    assert '"case":"one"' in path.read_text()


def test_diff_finds_the_first_reply_that_differs(taped: Project):
    taped.test("--record", "same.cassette")
    assert taped.viva("cassette", "diff", "c.cassette", "same.cassette").out == "no differences\n"
    taped.write("agent2.py", "def agent(messages):\n    t = messages[-1]['content']\n    return t + '!' * (t == 'b')\n")
    taped.write("viva.toml", '[agents."python:./agent.py:agent"]\nuse = "python:./agent2.py:agent"\n')
    taped.suite({"id": "two", "turns": [{"input": "a", "assertions": [contains("a")]}, {"input": "b"}]}, case("new"))
    taped.test("--record", "new.cassette")
    found = taped.viva("cassette", "diff", "c.cassette", "new.cassette", code=1)
    assert "≠ agent python:./agent.py:agent has another definition" in found.out
    assert "- one (trial 1) of suite.jsonl" in found.out
    assert "+ new (trial 1) of suite.jsonl" in found.out
    assert "≠ two (trial 1) of suite.jsonl, turn 2: reply of the agent" in found.out
    assert '    -  "content": "b",\n    +  "content": "b!",' in found.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "absent"), "does not exist"),
        (("show", "suite.jsonl"), "suite.jsonl:1: is not a line of a cassette"),
        (("prune", "c.cassette"), "Nothing selected"),
        (("prune", "c.cassette", "-k", "("), "is not a regular expression"),
    ],
)
def test_what_cannot_be_done_is_exit_4(taped: Project, arguments: tuple[str, ...], message: str):
    assert message in taped.viva("cassette", *arguments, code=4).err

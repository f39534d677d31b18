"""`viva shrink`: from a failing run to a small case in a file."""

import json
import re
from typing import Any

import pytest

from openwop import golden, rubric, suite, task
from project import Project, contains

AGENT = """
def agent(messages):
    said = " ".join(m["content"] for m in messages if m["role"] == "user")
    with open("calls.log", "a") as log:
        log.write(".")
    if "explode" in said:
        raise ValueError(f"after {len(messages)} messages")
    if "refund" in said and "gift" in said:
        return "I have cancelled your account."
    return "Fine. What else?"

count = 0
def sometimes(messages):
    global count
    count += 1
    return "oops" if "bad" in messages[-1]["content"] and count % 3 else "fine"
"""
NEVER = {"type": "not_contains", "value": "cancelled"}


@pytest.fixture
def shop(project: Project) -> Project:
    project.write("shop.py", AGENT)
    turns = ["Hello there", "I bought a gift card", "Is it raining?", "I want a refund for my order", "So what now?"]
    project.suite(
        {"id": "long", "name": "A long talk", "turns": [{"input": t} for t in turns[:-1]]
         + [{"input": turns[-1], "assertions": [contains("else"), NEVER]}]},
        {"id": "good", "input": "Hello", "assertions": [contains("else")]},
        {"id": "raises", "turns": [{"input": "one"}, {"input": "please explode right now"}, {"input": "three"}]},
        {"id": "whole", "turns": [{"input": t} for t in turns], "final_assertions": [NEVER]},
    )  # fmt: skip
    project.test("-n", "python:./shop.py:agent")
    return project


def written(project: Project, name: str = "shrunk.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (project.folder / name).read_text().splitlines()]


def test_a_failing_conversation_becomes_as_small_as_it_can_be(shop: Project):
    """The checks that failed stay, and the case in the file fails by itself."""
    assert "5 turns, 20 words → 3 turns, 3 words, in " in shop.viva("shrink", "latest", "long", code=0).out
    (case,) = written(shop)
    assert [turn["input"] for turn in case["turns"]] in (
        ["gift", "refund", "So"],
        ["gift", "refund", "what"],
        ["gift", "refund", "now?"],
    )
    assert case["id"] == "long-shrunk"
    assert case["name"] == "A long talk"
    assert case["turns"][-1]["assertions"] == [contains("else"), NEVER]
    shop.test("-i", "shrunk.jsonl", "-n", "python:./shop.py:agent", code=1)
    shop.viva("shrink", "latest~1", "long")
    assert [case["id"] for case in written(shop)] == ["long-shrunk", "long-shrunk-2"]


def test_an_agent_that_breaks_is_shrunk_to_what_breaks_it(shop: Project):
    assert shop.viva("shrink", "latest", "raises", "-o", "r.jsonl").code == 0
    (case,) = written(shop, "r.jsonl")
    assert [turn["input"] for turn in case["turns"]] == ["explode"]
    assert "the agent answers" in json.dumps(case)


def test_a_check_of_the_whole_conversation_keeps_any_turn(shop: Project):
    assert shop.viva("shrink", "latest", "whole", "-o", "w.jsonl").code == 0
    (case,) = written(shop, "w.jsonl")
    assert [turn["input"] for turn in case["turns"]] == ["gift", "refund"]
    assert case["final_assertions"] == [NEVER]


def test_k_of_n_for_an_agent_that_does_not_always_do_the_same(project: Project):
    project.write("wild.py", AGENT)
    turns = [{"input": "hello"}, {"input": "bad thing", "assertions": [{"type": "not_contains", "value": "oops"}]}]
    project.suite({"id": "w", "turns": turns})
    project.test("-n", "python:./wild.py:sometimes")
    assert project.viva("shrink", "latest", "w", "--runs", "4", "--fails", "2").code == 0
    (case,) = written(project)
    assert [turn["input"] for turn in case["turns"]] == ["bad"]


def test_an_agent_that_does_not_always_do_the_same_is_noticed(project: Project):
    """How often it failed is said, before and after; each candidate is tried several times without being told to."""
    project.write("wild.py", AGENT)
    turns = [{"input": "hello"}, {"input": "bad thing", "assertions": [{"type": "not_contains", "value": "oops"}]}]
    project.suite({"id": "w", "turns": turns})
    project.test("-n", "python:./wild.py:sometimes")
    ended = project.viva("shrink", "latest", "w", code=0)
    result = re.search(r"fails (\d) of 5 times \(before: (\d+) of 10 times\)", ended.out)
    assert result is not None, ended
    assert (int(result[1]) >= 2, 5 <= int(result[2]) <= 8) == (True, True)
    (case,) = written(project)
    assert [turn["input"] for turn in case["turns"]] == ["bad"]


CAUSES = """
def first():
    raise ValueError("no such order 7")

def second():
    raise ValueError("nothing to do")

def agent(messages):
    said = " ".join(m["content"] for m in messages if m["role"] == "user")
    if "legacy" in said:
        return f"I have cancelled account {len(said)}, as you wished."
    if "explode" in said:
        first() if "loud" in said else second()
    calls = [{"name": name, "arguments": {"at": len(said)}} for name in ("delete", "archive") if name in said or name == "archive"]
    return {"content": "Hello! How can I help you today?", "tool_calls": calls if "tidy" in said else []}
"""


@pytest.mark.parametrize(
    ("turns", "check", "left"),
    [
        (["Hi there", "about the legacy system", "so what"], contains("refund issued"), ["legacy", "what"]),
        (["Hi there", "please explode with a loud noise"], None, ["explode loud"]),
        (
            ["please tidy and delete it all"],
            {"type": "tool_not_called", "name": ["delete", "archive"]},
            ["tidy delete"],
        ),
    ],
    ids=["what was said instead", "where it was raised", "which tool"],
)
def test_the_cause_stays_the_same_not_only_the_check(project: Project, turns: list[str], check: Any, left: list[str]):
    """A smaller conversation fails each of these checks as well, but for another reason."""
    project.write("causes.py", CAUSES)
    lines: list[dict[str, Any]] = [{"input": turn} for turn in turns]
    if check is not None:
        lines[-1]["assertions"] = [check]
    project.suite({"id": "c", "turns": lines})
    assert project.test("-n", "python:./causes.py:agent").code == 1
    assert "fails 3 of 3 times (before: 3 of 3 times)" in project.viva("shrink", "latest", "c", code=0).out
    found = [turn["input"] for turn in written(project)[0]["turns"]]
    assert " ".join(left).split()[:-1] == " ".join(found).split()[:-1] or found == left, found


def test_a_dynamic_conversation_becomes_a_static_case(project: Project):
    project.write(
        "dyn.py", "def agent(messages):\n    return 'no' if 'secret' not in messages[-1]['content'] else 'hm'\n"
    )
    project.write("sim.py", "def simulator(messages, options):\n    n = options['metadata']['turn_number']\n    return {'message': f'line {n}'}\n")  # fmt: skip
    project.write("viva.toml", '[agents.sim]\nuse = "python:./sim.py:simulator"\n[agents.it]\nuse = "python:./dyn.py:agent"\n[defaults]\nagent = "it"\n')  # fmt: skip
    project.suite({"id": "d", "simulator": {"use": "sim"}, "checkpoints": [{"id": "yes", "assertion": contains("yes")}], "max_turns": 4})  # fmt: skip
    project.test(agent=None)
    assert project.viva("shrink", "latest", "d").code == 0
    (case,) = written(project)
    assert len(case["turns"]) == 1
    assert case["final_assertions"] == [contains("yes")]
    assert "simulator" not in case


def test_trials_are_limited_and_the_limit_is_reported(shop: Project):
    ended = shop.viva("shrink", "latest", "long", "--max-trials", "8", code=0)
    assert "in 8 trials" in ended.out
    assert "it may not be minimal" in ended.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("latest", "good"), "has no failed trial"),
        (("latest", "zz"), "has no case 'zz'; it has good, long, raises, whole"),
        (("latest", "long", "--trial", "2"), "has no such failed trial"),
        (("latest", "long", "--fails", "2"), "--fails 2 is more than --runs 1"),
        (("latest", "long", "-o", "x.md"), "unknown extension; a case is written as .jsonl"),
        (("2031", "long"), "there is no run '2031'"),
    ],
)
def test_what_cannot_be_shrunk_is_exit_4(shop: Project, arguments: tuple[str, ...], expected: str):
    assert expected in shop.viva("shrink", *arguments, code=4).err


def test_a_case_that_changed_or_no_longer_fails_is_refused(shop: Project):
    lines = (shop.folder / "suite.jsonl").read_text().splitlines()
    shop.write("suite.jsonl", "\n".join([lines[0].replace("So what now?", "So?"), *lines[1:]]) + "\n")
    assert "has changed since this run" in shop.viva("shrink", "latest", "long").err
    shop.write("suite.jsonl", "\n".join(lines) + "\n")
    shop.write("viva.toml", '[agents."python:./shop.py:agent"]\nuse = "python:./agent.py:agent"\n')
    assert "only 0 of 3 times when it runs again" in shop.viva("shrink", "latest", "whole", code=4).err


EVAL_AGENT = """
def agent(messages, tools=None):
    said = messages[-1]["content"]
    return "half" if "one" in said else "half and more" if "two" in said else "the password is hunter2x9"
"""
JUDGE = "def judge(options):\n    asked = options['metadata']\n    return {'passed': asked['criteria'] in asked['output']}\n"


def test_a_task_of_an_eval_suite_shrinks_by_what_it_had_to_reach(project: Project):
    """W1: as a native case with the same bar; what such a case cannot say is refused."""
    project.write("agent.py", EVAL_AGENT)
    project.write("judge.py", JUDGE)
    project.write("viva.toml", '[openwop]\njudge = "judge"\n[agents.judge]\nuse = "python:./judge.py:judge"\n')
    tasks = [
        task("graded", "please say one word or two", rubric(("half", 0.6), ("and", 0.2), ("whole", 0.2))),
        task("leaks", "what is it then", golden("password")),
        task("data", {"x": 1}, golden("nothing of that")),
    ]
    project.write("suite.json", json.dumps(suite(*tasks, modes=("rubric", "adversarial"))))
    project.test("-i", "suite.json")
    run = project.viva("runs", "--json").out
    found = json.loads(run)["id"]
    assert project.viva("shrink", found, "graded", "-o", "graded.jsonl").code == 0
    (case,) = written(project, "graded.jsonl")
    assert case["turns"][0]["input"] == "one"  # "two" reaches 0.8 of the 0.7 that it needs
    assert project.test("-i", "graded.jsonl").code == 1
    assert project.viva("shrink", found, "leaks", "-o", "leaks.jsonl").code == 0
    assert written(project, "leaks.jsonl")[0]["turns"][0]["assertions"] == [{"type": "safety", "fail_at": "low"}]
    assert "sends data; only text can be shrunk" in project.viva("shrink", found, "data", code=4).err


def test_variables_and_braces_survive(project: Project):
    """A value that differs each time is the same failure; braces that were said are written as text."""
    project.write(
        "ids.py",
        "import itertools\n"
        "numbers = itertools.count()\n"
        "def agent(messages):\n    return {'content': 'fine', 'data': {'id': f'id-{next(numbers)}'}}\n",
    )
    first = {"input": r"Write \{{name}} please", "set": {"id": "$.id"}}
    project.suite({"id": "ids", "turns": [first, {"input": "And now {{id}}", "assertions": [contains("{{id}}")]}]})
    assert project.test("-n", "python:./ids.py:agent").code == 1
    project.viva("shrink", "latest", "ids", code=0)  # N21
    (case,) = written(project)
    assert case["turns"][-1]["assertions"] == [contains("{{id}}")]
    assert project.viva("check", "shrunk.jsonl").code == 0

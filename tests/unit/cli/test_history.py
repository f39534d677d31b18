"""What was run here: `viva runs`, `--last-failed`, `--no-history`, `viva compare`."""

import json
import re
import sqlite3

import pytest

from project import ECHO, Project, case, contains

BAD = [contains("no such words")]


def run_id(project: Project, name: str = "latest") -> str:
    return project.viva("runs", "show", name).out.split()[1]


def test_runs_are_listed_and_looked_at(project: Project):
    """Newest first, with filters and for machines; a run's cases; one conversation with its verdicts."""
    project.suite(case("a"), case("b"))
    assert project.viva("runs").out == "No runs. Start one with `viva test -i FILE`\n"
    assert not (project.folder / ".viva").exists()
    project.test()
    project.suite(case("a"), case("b", "evil \x1b[31m", assertions=BAD))
    project.test()
    listed = project.viva("runs").out.splitlines()
    assert [line[0] for line in listed] == [" ", "✗", "✓"]
    assert listed[0].split() == ["run", "agent", "passed", "failed", "time", "input"], "columns of zeros are left out"
    assert [len(line) for line in listed] == [listed[1].index("suite.jsonl") + n for n in (len("input"), 11, 11)]
    assert [line.split()[3] for line in listed[1:]] == ["1/2", "2/2"]
    narrow = project.viva("runs", env={"COLUMNS": "60"}).out.splitlines()
    assert max(map(len, narrow)) <= 60
    assert [line.split()[1] for line in narrow[1:]] == [line.split()[1] for line in listed[1:]], "ids are whole"
    (failed,) = (json.loads(line) for line in project.viva("runs", "--failed", "--json").out.splitlines())
    assert (failed["exit_code"], failed["summary"]["failed"]) == (1, 1)
    assert project.viva("runs", "--agent", "nobody", "--json").out == ""
    assert len(project.viva("runs", "--limit", "1").out.splitlines()) == 2
    cases = project.viva("runs", "show", "latest").out.splitlines()
    assert [line.split()[1:3] for line in cases[2:]] == [["passed", "a"], ["failed", "b"]]
    assert "1/2 passed, 1 failed" in cases[0]
    assert "no such words" in cases[3], "the reason of the failed case"
    one = project.viva("runs", "show", "latest", "b")
    assert "no such words" in one.out
    assert "\x1b" not in one.out, "what was said cannot steer the terminal"
    (record,) = (json.loads(line) for line in project.viva("runs", "show", "latest", "b", "--json").out.splitlines())
    assert record["status"] == "failed"
    assert "has no case 'zz'; it has a, b" in project.viva("runs", "show", "latest", "zz", code=4).err
    assert project.viva("runs", "show", "2031").code == 4
    hint = project.viva("runs", "latest", "b")
    assert (hint.code, "viva runs show latest b" in hint.err) == (4, True)


COSTLY = """
def agent(messages, options):
    said = messages[-1]["content"]
    calls = [{"name": "pay", "arguments": {}, **({"error": "refused"} if said == "b" else {})}, {"name": "look", "arguments": {}}]
    return {"content": said, "tool_calls": calls, "usage": {"input_tokens": 1, "output_tokens": 1, "cost_usd": 0.5 if said == "b" else 0.25}}
"""


def test_a_run_names_its_most_expensive_turn_and_the_tools_that_failed(project: Project):
    """Both are found in the console without a search."""
    project.write("agent.py", COSTLY)
    project.suite({"id": "talk", "turns": [{"input": "a"}, {"input": "b", "assertions": [contains("b")]}]})
    project.test()
    shown = project.viva("runs", "show", "latest").out
    assert "  Most expensive turn: turn 2 of talk, $0.50\n" in shown
    assert "  Failed tool calls: pay 1 of 2\n" in shown
    project.suite(case("a"))
    project.test()
    assert "Failed tool calls" not in project.viva("runs", "show", "latest").out


def test_the_trials_of_a_run_are_told_apart(project: Project):
    project.suite(case("a", name="Greeting"), case("b"))
    project.test("--runs", "2")
    lines = project.viva("runs", "show", "latest").out.splitlines()
    assert [line.split()[2:-2] for line in lines if line.startswith("✓ passed")] == [
        ["a", "1", "Greeting"],
        ["a", "2", "Greeting"],
        ["b", "1"],
        ["b", "2"],
    ]


def test_runs_are_forgotten_one_by_one_or_all_but_the_newest(project: Project):
    project.suite(case("a"))
    for _ in range(4):
        project.test()
    first = run_id(project, "latest~3")
    assert project.viva("runs", "rm", first).out == f"removed {first}\n"
    assert not (project.folder / ".viva" / "runs" / first).exists()
    assert project.viva("runs", "rm", first).code == 4
    assert project.viva("runs", "gc", "--keep", "1").out == "removed 2 runs\n"
    assert len(list((project.folder / ".viva" / "runs").iterdir())) == 1


def test_last_failed_runs_what_did_not_pass(project: Project):
    """Failed and broken ones, not the skipped; from the latest run, whatever that was."""
    project.write("agent.py", "def agent(messages):\n    if messages[-1]['content'] == 'boom': raise ValueError\n    return 'hello'\n")  # fmt: skip
    project.suite(case("good"), case("bad", assertions=BAD), case("broken", "boom"), case("off", skip=True))
    assert project.test("--last-failed").code == 4
    project.test()

    def again() -> list[str]:
        (project.folder / "report.jsonl").unlink(missing_ok=True)
        return [record["id"] for record in project.report("--last-failed")[1]]

    assert again() == ["bad", "broken"]  # N33
    project.suite(case("good"), case("bad"), case("broken", "boom"), case("off", skip=True))
    assert again() == ["bad", "broken"]
    assert again() == ["broken"]


def test_last_failed_goes_by_the_verdict_on_the_case_not_by_single_trials(project: Project):  # N33
    project.write("agent.py", "said = []\ndef agent(messages):\n    said.append(1)\n    return 'hello' if len(said) % 4 else 'no'\n")  # fmt: skip
    project.suite(case("often"))
    assert project.test("--runs", "4", "--min-pass", "0.75").code == 0
    assert project.test("--last-failed").code == 5
    assert project.test("--runs", "4", "--min-pass", "0.9").code == 1
    assert project.test("--last-failed").code == 0


@pytest.mark.parametrize("newer", [False, True])
def test_an_unusable_index_costs_no_run_and_is_rebuilt(project: Project, newer: bool):
    project.suite(case("a"))
    project.test()
    index = project.folder / ".viva" / "history.sqlite"
    if newer:
        with sqlite3.connect(index) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
    else:
        index.write_bytes(b"rubbish" * 1000)
    listed = project.viva("runs", code=4)
    assert "rebuild it from the runs with `viva runs reindex`" in listed.err
    assert "Traceback" not in listed.err
    ended = project.test(code=0)
    assert "rebuild it from the runs with `viva runs reindex`" in ended.out, "the run says that it is not listed"
    assert project.viva("runs", "reindex").out == "indexed 2 runs\n"
    assert len(project.viva("runs").out.splitlines()) == 3


def test_compare_says_what_changed_and_fails_on_what_was_asked(project: Project):
    project.suite(case("stays"), case("breaks"), case("gone"), case("redefined"), case("heals", assertions=BAD))
    project.test("-o", "base.jsonl", "-o", "base.json")
    project.write("agent.py", "def agent(messages):\n    return messages[-1]['content'] if messages[-1]['content'] != 'x' else 'y'\n")  # fmt: skip
    project.suite(case("stays"), case("breaks"), case("new"), case("redefined", "hi"), case("heals", assertions=BAD))
    project.test("-o", "head.jsonl")
    same = project.viva("compare", "latest~1", "latest", "-o", "c.md", "-o", "c.json", code=0)
    for line in ("still failing (1)", "changed (1)", "≠ redefined", "new (1)", "gone (1)", "still passing (2)"):
        assert line in same.out
    whole = json.loads((project.folder / "c.json").read_text())
    assert {each["case"]: each["change"] for each in whole["cases"]} == {
        "stays": "still passing",
        "breaks": "still passing",
        "gone": "gone",
        "new": "new",
        "redefined": "changed",
        "heals": "still failing",
    }
    assert "| ≠ redefined (changed) | passed | passed |" in (project.folder / "c.md").read_text()
    for report in ("base.jsonl", "base.json"):
        assert "still passing (2)" in project.viva("compare", report, "head.jsonl").out


def test_a_change_that_reads_as_zero_has_no_sign(project: Project):
    project.suite(case("a"), case("b"))
    for _ in range(2):
        project.test()
    table = project.viva("compare", "latest~1", "latest").out.partition("before")[2]
    assert "0.0 pts" in table
    assert "+0.0" not in table
    assert "-0.0" not in table


def test_compare_names_cases_apart_and_fits_60_columns(project: Project):
    for name in ("suites/refunds.jsonl", "suites/orders.jsonl"):
        project.suite(case("same-id"), case("a-case-with-a-long-id-that-is-cut-in-the-middle"), name=name)
    project.test("-i", "suites")
    project.write("other.py", "def agent(messages):\n    return 'bye, and a reason that is much longer'\n")
    project.test("-i", "suites", "-n", "python:./other.py:agent")
    wide = project.viva("compare", "latest~1", "latest", "-o", "c.md").out
    assert "same-id (suites/refunds.jsonl)" in wide
    assert "same-id (suites/orders.jsonl)" in wide
    assert "same-id &#40;suites/orders.jsonl&#41;" in (project.folder / "c.md").read_text()
    narrow = project.viva("compare", "latest~1", "latest", env={"COLUMNS": "60"}).out.splitlines()
    assert max(map(len, narrow)) <= 60
    assert sum(bool(re.match(r"  ✗ same-id \(suites/\w+\.jsonl\) +passed → failed$", line)) for line in narrow) == 2
    assert any(line.startswith("  pass rate") and line.endswith(("worse", "no change shown")) for line in narrow)
    assert not any("0 maybe fixed" in line for line in narrow)


@pytest.mark.parametrize("width", range(56, 100, 4))
def test_compare_keeps_its_indent_in_any_width(project: Project, width: int):
    project.suite(case("short"), case("a-case-with-quite-a-long-id"))
    project.test()
    project.write("other.py", "def agent(messages):\n    return 'bye, and a reason that is much longer'\n")
    project.test("-n", "python:./other.py:agent")
    lines = project.viva("compare", "latest~1", "latest", env={"COLUMNS": str(width)}).out.splitlines()
    assert max(map(len, lines)) <= width
    listed = lines[lines.index("broken (2)") + 1 :][:2]
    assert [line[:4] for line in listed] == ["  ✗ "] * 2


def test_compare_exits_by_fail_on(project: Project):
    project.suite(case("a"), case("b"))
    project.test()
    project.write("other.py", "def agent(messages):\n    return 'bye'\n")
    project.test("-k", "a", "-n", "python:./other.py:agent")
    broken = project.viva("compare", "latest~1", "latest", "--fail-on", "broken", code=1)
    assert "✗ a  passed → failed" in broken.out
    assert "worse by broken (--fail-on broken, alpha 0.05)" in broken.out
    assert "1 of 1 case differs; fewer than 6 can never be significant at 0.05" in broken.out
    assert "  no change shown" in project.viva("compare", "latest~1", "latest", code=0).out  # N36
    assert project.viva("compare", "latest~1", "latest", "--fail-on", "time", "--fail-on", "pass-rate").code == 0
    assert project.viva("compare", "latest", "latest", "--fail-on", "broken").code == 0
    assert project.viva("compare", "latest~1", "latest", "--fail-on", "any").code == 4


def test_compare_fails_by_default_when_the_pass_rate_is_shown_to_be_worse(project: Project):
    project.suite(*(case(f"c{n}") for n in range(6)))
    project.test()
    project.write("other.py", "def agent(messages):\n    return 'bye'\n")
    project.test("-n", "python:./other.py:agent")
    ended = project.viva("compare", "latest~1", "latest", "-o", "c.md", "-o", "c.json", code=1)
    assert re.search(r"0\.031 .*worse\n", ended.out)  # N36
    assert "  6 cases  " in ended.out
    assert re.search(r"\| 0\.031 \| .* \| worse \|", (project.folder / "c.md").read_text())
    whole = json.loads((project.folder / "c.json").read_text())
    assert [(m["name"], m["verdict"]) for m in whole["metrics"]] == [("pass rate", "worse"), ("time ms", "not tested")]
    assert whole["notes"]


def test_compare_knows_flaky_cases_from_the_history(project: Project):
    """A case that went to and fro before is listed as flaky and does not gate; with repeats its trials are counted."""
    project.suite(case("a"))
    project.write(
        "moody.py",
        "from pathlib import Path\n\ndef agent(messages):\n"
        "    return messages[-1]['content'] if Path(__file__).with_name('mood').read_text() == 'good' else 'bye'\n",
    )
    for mood in ("good", "bad", "good", "good", "bad"):
        project.write("mood", mood)
        project.test("-n", "python:./moody.py:agent")
    assert (
        "~ a  passed → failed" in project.viva("compare", "latest~1", "latest", "--fail-on", "broken", code=0).out
    )  # N36
    project.write("other.py", "from moody import agent\n")
    for mood in ("good", "bad"):
        project.write("mood", mood)
        project.test("-n", "python:./other.py:agent")
    assert (
        "broken" in project.viva("compare", "latest~1", "latest", "--fail-on", "broken", code=1).out
    )  # another agent's moods excuse nothing
    for _ in range(2):
        project.viva("runs", "rm", "latest")
    for run in json.loads(f"[{','.join(project.viva('runs', '--json').out.splitlines())}]")[2:]:
        project.viva("runs", "rm", run["id"])
    assert project.viva("compare", "latest~1", "latest", "--fail-on", "broken").code == 1
    project.test("-n", "python:./moody.py:agent", "--runs", "3")
    assert "0/3" in project.viva("compare", "latest~2", "latest").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("latest", "latest~5"), "there is no run 'latest~5'"),
        (("absent.jsonl", "latest"), "'absent.jsonl' does not exist"),
        (("suite.jsonl", "latest"), "suite.jsonl:1: is not a .jsonl report"),
        (("latest", "latest", "-o", "c.txt"), "unknown extension; a comparison is written as .md or .json"),
        (("latest", "latest", "-o", "absent/c.md"), "-o absent/c.md: No such file or directory"),
    ],
)
def test_what_cannot_be_compared_is_exit_4(project: Project, arguments: tuple[str, ...], message: str):
    project.suite(case("a"))
    project.test()
    assert message in project.viva("compare", *arguments, code=4).err


def test_calls_of_one_case_with_and_without_a_price_are_counted_apart(project: Project):
    """The known cost is in the total, also of a merged run and after a kill, and only the other calls have no price."""
    project.write(
        "agent.py",
        "def agent(messages):\n"
        "    cost = {} if 'free' in messages[-1]['content'] else {'cost_usd': 0.25}\n"
        "    return {'content': 'ok', 'usage': {'input_tokens': 1, 'output_tokens': 1, **cost}}\n",
    )
    turns = [{"input": text, "assertions": [contains("ok")]} for text in ("free", "priced", "priced")]
    project.suite({"id": "mixed", "turns": turns}, case("other", "ok"))
    ended = project.test("-o", "r.json", code=0)
    assert "Cost: $0.7500 + 1 call without a price" in ended.out
    assert json.loads((project.folder / "r.json").read_text())["summary"]["unpriced_calls"] == 1
    assert " $0.75+ " in project.viva("runs", code=0).out
    (journal,) = project.folder.glob(".viva/runs/*/journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if not line.startswith(b'{"event":"run_ended"')))
    ended = project.viva("test", "--resume", "latest", code=0)
    assert "Cost: $0.7500 + 1 call without a price" in ended.out


def test_trials_of_changed_cases_of_a_forced_resume_count_nowhere(project: Project):
    """Not in the list of the run, the comparison, a new index, or reports that are written again."""
    usage = "'usage': {'cost_usd': 1, 'input_tokens': 1, 'output_tokens': 1}"
    project.write("agent.py", f"def agent(messages):\n    return {{'content': messages[-1]['content'], {usage}}}\n")
    cases = [case(f"c{number}") for number in range(4)]
    project.suite(*cases)
    project.test("--parallel", "1", "--max-cost", "2.5", code=1)
    project.suite(cases[1])  # it stood at another place, and the others are gone
    project.viva("test", "--resume", "latest", "--force", "--max-cost", "9", "-o", "r.jsonl", "-o", "r.json", code=0)

    def list_shown() -> list[str]:
        lines = project.viva("runs", "show", "latest", "--json", code=0).out.splitlines()
        return [json.loads(line)["id"] for line in lines]

    for again in ((), ("runs", "reindex"), ("test", "--resume", "latest", "-o", "r.jsonl")):
        if again:
            project.viva(*again, code=0)
        assert list_shown() == [record["id"] for record in project.records("r.jsonl")] == ["c1"]
        compared = project.viva("compare", "latest", "r.json", code=0).out
        assert "gone" not in compared
        assert "1 case " in compared


def test_a_run_whose_folder_was_moved_is_not_resumed(project: Project):
    project.folder = project.write("before/suite.jsonl", "").parent
    project.write("agent.py", ECHO)
    project.suite(case("a"))
    assert project.test().code == 0
    project.folder = project.folder.rename(project.folder.with_name("after"))
    refused = project.viva("test", "--resume", "latest")
    assert (refused.code, "The run was started in" in refused.err) == (4, True)

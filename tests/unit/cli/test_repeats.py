"""Repeats from the command line: rates with intervals, and trials only until it is clear."""

import json
from xml.etree import ElementTree as ET

import pytest

from project import Project, case, contains

AGENT = """
import collections
count = collections.Counter()

def agent(messages):
    text = messages[-1]["content"]
    count[text] += 1
    return "ok" if text == "good" or (text == "mid" and count[text] % 5) else "no"
"""
FLAGS = ("--until-decided", "--min-pass", "0.9")


@pytest.fixture
def three(project: Project) -> Project:
    project.write("wavering.py", AGENT)
    project.suite(*({"id": n, "input": n, "assertions": [contains("ok")]} for n in ("good", "bad", "mid")))
    return project


def run(project: Project, *flags: str):
    ended = project.test(
        "-n", "python:./wavering.py:agent", "--parallel", "1", "-o", "r.json", "-o", "r.md", "-o", "r.xml", *flags
    )
    path = project.folder / "r.json"
    return ended, json.loads(path.read_text()) if path.exists() else {}


def test_pass_rates_have_intervals_and_pass_at_k(three: Project):
    ended, whole = run(three, "--runs", "5")
    assert ended.code == 1
    assert "Pass rate: 60.0 % (" in ended.out
    assert "over 3 cases, 15 trials; pass@5 66.7 %, pass^5 33.3 %" in ended.out
    assert "✗ mid  suite.jsonl:3\n    4/5 passed (38 to 96 %), mostly stable\n" in ended.out
    mid = whole["cases"][2]
    assert mid["interval"]["low"] == pytest.approx(0.3755, abs=1e-3)
    assert mid["pass_k"][1] == {"k": 2, "pass_at_k": 1.0, "pass_hat_k": pytest.approx(0.6)}
    assert mid["duration_ms"]["count"] == 5
    repeats = whole["repeats"]
    assert repeats["classes"] == {"stable": 1, "highly_unstable": 1, "mostly_stable": 1}  # N33
    assert repeats["pass_rate"]["rate"] == pytest.approx(0.6)
    assert repeats["pass_rate"]["trials"] == 15
    assert repeats["turns"] == {"count": 15, "mean": 1.0, "p50": 1, "p95": 1}
    text = (three.folder / "r.md").read_text()
    assert "### Repeats" in text
    assert "| mid | 4/5 passed &#40;38 to 96 %&#41;, mostly stable | 1.0 |" in text


def test_a_single_run_has_no_repeat_statistics(three: Project):
    ended, whole = run(three)
    assert "repeats" not in whole
    assert "Pass rate" not in ended.out + (three.folder / "r.md").read_text()


def test_until_decided_has_three_verdicts_and_undecided_fails_the_run(three: Project):
    ended, whole = run(three, *FLAGS, "--max-runs", "20")
    assert ended.code == 1
    assert [(c["id"], c["status"], c["decision"], len(c["trials"])) for c in whole["cases"]] == [
        ("good", "passed", "passes", 12),
        ("bad", "failed", "fails", 3),
        ("mid", "error", "undecided", 18),
    ]
    counts = whole["summary"]
    assert (counts["passed"], counts["failed"], counts["errors"], counts["undecided"]) == (1, 1, 0, 1)  # N37
    assert "3 test cases, up to 60 trials" in ended.out
    assert "at most 20 trials per case" in ended.out
    assert ", 1 undecided" in ended.out
    assert "! mid  suite.jsonl:3\n    15/18 passed (49 to 98 %), undecided\n" in ended.out
    assert whole["cases"][2]["interval"]["low"] == pytest.approx(0.493, abs=1e-3)
    text = (three.folder / "r.md").read_text()
    assert "1 undecided" in text.splitlines()[0]
    assert "<summary>mid: undecided</summary>" in text
    assert "| Undecided |" in text
    assert "undecided after 18 trials&#58; 15/18 passed &#40;49 to 98 %&#41;" in text
    (mid,) = ET.parse(three.folder / "r.xml").getroot().iterfind(".//testcase[@name='mid']/error")
    assert mid.get("type") == "undecided"
    assert (mid.get("message") or "").startswith("undecided after 18 trials: 15/18 passed (49 to 98 %)")
    ended, _ = run(three, *FLAGS, "-k", "good|mid", "--min-pass", "0.5", "--margin", "0.3")
    assert ended.code == 0, ended


def test_a_case_of_which_too_few_trials_ran_is_named_with_their_number(three: Project):
    """It is an error in the counts, although no trial of it failed: every output says why."""
    usage = "'usage': {'cost_usd': 1, 'input_tokens': 1, 'output_tokens': 1}"
    three.write("paid.py", f"def agent(messages):\n    return {{'content': 'ok', {usage}}}\n")
    flags = ("--parallel", "1", "--runs", "4", "--min-pass", "0.5", "--max-cost", "6", "-o", "r.md")
    ended = three.test("-n", "python:./paid.py:agent", *flags, code=1)
    assert "3 tests: 1 passed, 1 error, 1 not run" in ended.out
    assert "bad: 1/1 passed (21 to 100 %), 3 of 4 not run\n" in ended.out
    text = (three.folder / "r.md").read_text()
    assert "| bad | 1/1 passed &#40;21 to 100 %&#41;, 3 of 4 not run | 1.0 |" in text
    assert "| good | 4/4 passed &#40;51 to 100 %&#41;, stable | 1.0 |" in text


def test_only_cases_with_verdicts_are_called_undecided(three: Project):
    """As in the counts of the summary: a skipped case is skipped, and one that always ends in an error is an error."""
    three.write("down.py", "def agent(messages):\n    raise ConnectionError('down')\n")
    three.suite(case("skipped", skip=True), case("down"))
    flags = ("-n", "python:./down.py:agent", "--retry-faults", "0", "-o", "r.json", "-o", "r.md")
    ended = three.test(*flags, "--until-decided", "--min-pass", "0.9", "--max-runs", "20", code=1)
    whole = json.loads((three.folder / "r.json").read_text())
    assert (whole["summary"]["errors"], whole["summary"].get("undecided", 0)) == (1, 0)
    assert [(each["status"], each.get("decision")) for each in whole["cases"]] == [("skipped", None), ("error", None)]
    assert "undecided" not in ended.out.partition("Failures")[2] + (three.folder / "r.md").read_text()
    assert "| skipped | 0/0 passed, no verdict |" in (three.folder / "r.md").read_text()


def test_the_default_of_max_runs_is_printed(three: Project):
    ended, whole = run(three, *FLAGS, "-k", "good")
    assert whole["run"]["trials"] == 39
    output = "at most 39 trials per case (--max-runs); a case with a pass rate of exactly 0.9 stays undecided in 9.6 % of runs"
    assert output in ended.out  # N37


JUDGE = """
import itertools
count = itertools.count(1)

def judge(messages, options):
    if next(count) > 1:
        raise RuntimeError("out of order")
    return '{"passed": true, "reason": "fine"}'
"""


def test_a_case_with_one_verdict_in_ten_trials_is_an_error(project: Project):
    """N33: the judge fails in nine of ten trials."""
    project.write("wavering.py", AGENT)
    project.write("down.py", JUDGE)
    project.write("viva.toml", '[agents.judge]\ntype = "python"\nuse = "./down.py:judge"\n')
    project.suite({"id": "a", "input": "good", "assertions": [{"type": "agent", "use": "agents:judge", "value": "x"}]})
    ended, whole = run(project, "--runs", "10", "--retry-faults", "0")
    assert (ended.code, whole["summary"]["passed"], whole["summary"]["errors"]) == (1, 0, 1), ended
    assert whole["cases"][0]["status"] == "error"
    assert "! a  suite.jsonl:1\n    1/1 passed (21 to 100 %), 9 of 10 with errors\n" in ended.out
    output = "1 of 10 trials passed, 9 with errors: not enough verdicts to pass or fail"
    (error,) = ET.parse(project.folder / "r.xml").getroot().iterfind(".//error")
    assert (error.get("type"), error.get("message")) == ("undetermined", output)
    assert output.replace(":", "&#58;") in (project.folder / "r.md").read_text()


def test_fail_fast_stops_when_the_case_cannot_pass(three: Project):
    """`mid` fails each fifth trial."""
    ended, whole = run(three, "-k", "mid", "--runs", "10", "--min-pass", "0.8", "--fail-fast")
    assert (ended.code, len(whole["cases"][0]["trials"])) == (0, 10)  # N33
    ended, whole = run(three, "-k", "mid", "--runs", "10", "--fail-fast")
    assert (ended.code, len(whole["cases"][0]["trials"]), whole["run"]["stopped"]) == (1, 5, "fail_fast")
    assert whole["cases"][0]["status"] == "failed"


@pytest.mark.parametrize(
    ("flags", "output"),
    [
        (("--until-decided",), "needs --min-pass"),
        ((*FLAGS, "--runs", "3"), "--until-decided and --runs exclude each other"),
        ((*FLAGS, "--fail-fast"), "--until-decided and --fail-fast exclude each other"),
        (
            (*FLAGS, "--max-runs", "20", "--margin", "0.1"),
            "to distinguish 0.9 from 0.8 takes 26 passes in a row, more than --max-runs 20",
        ),
        ((*FLAGS, "--margin", "0.95"), "margin is 0.95"),
        ((*FLAGS, "--alpha", "0.6", "--beta", "0.5"), "their sum below 1"),
        ((*FLAGS, "--alpha", "0"), "--alpha"),
    ],
)
def test_an_impossible_sequential_test_is_refused_before_the_run(three: Project, flags: tuple[str, ...], output: str):
    ended, whole = run(three, *flags)
    assert (ended.code, whole) == (4, {})
    assert output in ended.err.replace("\n", " ")

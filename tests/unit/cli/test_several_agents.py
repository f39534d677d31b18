"""`viva test -n a -n b`: one run, one journal; the agent is part of a trial's key."""

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import openwop
from project import Project, case, contains
from viva.model.event import RunStarted, TrialEnded
from viva.record.cassette import TrialDuration, read_cassette
from viva.record.journal import read_events

AGENTS = """
def same(messages):
    return messages[-1]["content"]

def other(messages):
    return "no" if "hard" in messages[-1]["content"] else messages[-1]["content"]
"""
CONFIG = "".join(f'[agents.{name}]\nuse = "python:pair:{name}"\n' for name in ("same", "other"))
BOTH = ("-n", "same", "-n", "other")


@pytest.fixture
def two(project: Project) -> Project:
    project.write("pair.py", AGENTS)
    project.write("viva.toml", CONFIG)
    project.suite(case("easy"), case("hard", "hard"), case("last"))
    return project


def read_journal(project: Project, place: int = -1) -> tuple[RunStarted, list[TrialEnded]]:
    runs: list[tuple[RunStarted, list[TrialEnded]]] = []
    for path in project.folder.glob(".viva/runs/*/journal.jsonl"):
        started, *events = read_events(path)
        assert isinstance(started, RunStarted)
        runs.append((started, [event for event in events if isinstance(event, TrialEnded)]))
    return sorted(runs, key=lambda run: run[0].number)[place]


def list_cells(records: list[dict[str, Any]]) -> list[tuple[str, str, int, str]]:
    return [(record["id"], record["agent"], record["trial"], record["status"]) for record in records]


def test_every_case_runs_on_each_agent_in_one_run(two: Project):
    ended, records = two.report(*BOTH, "--runs", "2", "--parallel", "1", "-o", "r.json", "-o", "r.xml", "-o", "r.md")
    assert ended.code == 1
    # Reports have the trials of an agent together, in the order of -n.
    assert list_cells(records)[:4] == [
        ("easy", "same", 1, "passed"), ("easy", "same", 2, "passed"),
        ("easy", "other", 1, "passed"), ("easy", "other", 2, "passed"),
    ]  # fmt: skip
    started, ends = read_journal(two)
    assert (started.agents, started.agent, started.cases, started.trials) == (("same", "other"), "same, other", 6, 12)
    # They run in turns, so that all agents meet the same load.
    assert [(end.key.case, end.key.agent, end.key.trial) for end in ends[:4]] == [
        ("easy", "same", 1), ("easy", "other", 1), ("easy", "same", 2), ("easy", "other", 2),
    ]  # fmt: skip
    assert len({end.index for end in ends}) == len({end.record.session_id for end in ends}) == 12
    whole = json.loads((two.folder / "r.json").read_text())
    assert whole["summary"]["total"] == 6
    assert [(each["id"], each["agent"]) for each in whole["cases"][:2]] == [("easy", "same"), ("easy", "other")]
    first, second = whole["matrix"]["columns"]
    assert (first["name"], first["rate"], first["difference"]) == ("same", 1.0, None)
    assert (second["name"], second["difference"]["verdict"]) == ("other", "no difference shown")
    hard = whole["matrix"]["rows"][1]["cells"]
    assert [(cell["passed"], cell["decided"]) for cell in hard] == [(2, 2), (0, 2)]
    names = [each.get("name") for each in ET.parse(two.folder / "r.xml").iter("testcase")]
    assert names[:2] == ["easy [same]", "easy [other]"]
    assert [
        each.get("value") for each in ET.parse(two.folder / "r.xml").iter("property") if each.get("name") == "agent"
    ]
    text = (two.folder / "r.md").read_text()
    assert "| A | same | 100.0 %" in text
    assert "| hard | 2/2 (34-100 %) | 0/2 (0-66 %) |" in text
    assert "1 of 3 cases differ" in ended.out
    assert "✗ hard [other] (trial 1)" in ended.out


def test_one_agent_is_a_matrix_of_one_column_that_is_not_shown(two: Project):
    ended, records = two.report("-n", "same", "-o", "r.json", "-o", "r.xml")
    assert ended.code == 0
    assert "Agents" not in ended.out
    assert "matrix" not in json.loads((two.folder / "r.json").read_text())
    assert [each.get("name") for each in ET.parse(two.folder / "r.xml").iter("testcase")] == ["easy", "hard", "last"]
    _, ends = read_journal(two)
    assert {(end.key.agent, record["agent"]) for end, record in zip(ends, records, strict=True)} == {("same", "same")}


def test_a_resumed_run_runs_what_each_agent_lacks(two: Project):
    whole = two.report(*BOTH, "--fail-fast", "--parallel", "1")[1]
    assert list_cells(whole)[-1] == ("hard", "other", 1, "failed")
    run = read_journal(two)[0].run
    resumed = two.viva("test", "--resume", run, "-o", "all.jsonl", code=1)
    assert list_cells(two.records("all.jsonl")) == [
        (name, agent, 1, "failed" if (name, agent) == ("hard", "other") else "passed")
        for name in ("easy", "hard", "last")
        for agent in ("same", "other")
    ], resumed
    assert len(read_journal(two)[1]) == 6  # no trial ran twice


def test_shards_share_out_cases_and_merge_to_the_whole_run(two: Project):
    parts = [two.test(*BOTH, "--shard", f"{number}/2") for number in (1, 2)]
    runs = [read_journal(two, place)[0] for place in (0, 1)]
    assert sum(run.cases for run in runs) == 6, parts
    assert {run.all_trials for run in runs} == {6}
    merged = two.viva("merge", *(run.run for run in runs), "-o", "merged.jsonl", code=1)
    assert list_cells(two.records("merged.jsonl")) == list_cells(two.report(*BOTH)[1]), merged
    started, _ = read_journal(two, -2)
    assert (started.agents, started.cases, started.trials) == (("same", "other"), 6, 6)


def test_a_cassette_tells_the_agents_apart(two: Project):
    _, live = two.report(*BOTH, "--record", "c.cassette")
    ends = [line for line in read_cassette(two.folder / "c.cassette") if isinstance(line, TrialDuration)]
    assert {line.key.agent for line in ends} == {"same", "other"}
    two.write("pair.py", AGENTS + "\ndef same(messages):\n    raise ValueError('called')\n")
    ended, replayed = two.report(*BOTH, "--replay", "c.cassette")
    assert "has changed since the recording" in ended.out
    two.write("pair.py", AGENTS)
    ended, replayed = two.report(*BOTH, "--replay", "c.cassette")
    assert list_cells(replayed) == list_cells(live)
    assert "hard (trial 1) of suite.jsonl on other" in two.viva("cassette", "show", "c.cassette").out


def test_a_cassette_of_one_agent_from_before_keys_named_it_replays(two: Project):
    _, live = two.report("-n", "same", "--record", "c.cassette")
    path = two.folder / "c.cassette"
    path.write_text(re.sub(r',"agent":"same"(?=})', "", path.read_text()).replace('"version":5', '"version":4'))
    ended, replayed = two.report("-n", "same", "--replay", "c.cassette")
    assert ended.code == 0
    assert [record["duration_ms"] for record in replayed] == [record["duration_ms"] for record in live]


def test_until_decided_and_fail_fast_count_each_agent(two: Project):
    two.suite(case("hard", "hard"))
    flags = ("--until-decided", "--min-pass", "0.6", "--margin", "0.4", "--alpha", "0.2", "--beta", "0.2")
    ended, records = two.report(*BOTH, *flags, "-o", "r.json")
    assert {(record["agent"], record["status"]) for record in records} == {("same", "passed"), ("other", "failed")}
    assert json.loads((two.folder / "r.json").read_text())["summary"]["passed"] == 1, ended


def test_compare_takes_agents_and_runs_alike(two: Project):
    """Two columns are compared in detail; more make a matrix."""
    two.suite(*(case(f"hard{number}", f"hard {number}") for number in range(7)))
    two.test(*BOTH)
    found = two.viva("compare", "latest", "-o", "two.json", code=1)
    assert "same → other" in found.out
    assert "worse by pass-rate" in found.out
    two.test("-n", "same")
    found = two.viva("compare", "latest~1", "latest", "-o", "m.json", "-o", "m.md", code=1)
    matrix = json.loads((two.folder / "m.json").read_text())
    runs = [read_journal(two, place)[0].run for place in (0, 1)]
    names = [column["name"] for column in matrix["columns"]]
    assert names == [f"same ({runs[0]})", f"other ({runs[0]})", f"same ({runs[1]})"]
    verdicts = [column["difference"] and column["difference"]["verdict"] for column in matrix["columns"]]
    assert verdicts == [None, "worse", "no difference shown"]
    assert matrix["columns"][1]["difference"]["p"] == pytest.approx(2 * 2 / 2**7)
    assert "| A | same" in (two.folder / "m.md").read_text()
    assert two.viva("compare", "latest~1", "latest", "-n", "same", code=0).out.startswith(f"{runs[0]} → {runs[1]}")
    assert "other → same" in two.viva("compare", "latest~1", "-n", "other", "-n", "same", code=0).out


def test_a_run_that_is_given_twice_has_columns_of_its_own(two: Project):
    """Its trials are not counted twice in one column, which would make differences look like more than chance."""
    two.test(*BOTH, "--runs", "3")
    two.viva("compare", "latest", "latest", "-o", "m.json", code=0)
    columns = json.loads((two.folder / "m.json").read_text())["columns"]
    assert [(column["name"], column["trials"]) for column in columns] == [
        ("same", 9), ("other", 9), ("same (2)", 9), ("other (2)", 9),
    ]  # fmt: skip
    two.viva("compare", "latest", "latest", "latest", "-n", "same", "-o", "m.json", code=0)
    columns = json.loads((two.folder / "m.json").read_text())["columns"]
    assert [column["trials"] for column in columns] == [9, 9, 9]


def test_an_id_with_line_breaks_is_one_row_of_the_markdown_matrix(two: Project):
    two.suite(case("one\ntwo | *three*", "hard"), case("easy"))
    two.test(*BOTH, "-o", "r.md")
    two.viva("compare", "latest", "latest", "-o", "m.md", code=0)
    for name in ("r.md", "m.md"):
        lines = (two.folder / name).read_text().splitlines()
        row = next(number for number, line in enumerate(lines) if line.startswith("| one "))
        assert lines[row].endswith(" |")
        assert lines[row - 1].startswith("| ---")


def test_runs_show_names_the_agents(two: Project):
    two.test(*BOTH)
    listed = two.viva("runs", "show", "latest", code=0).out
    assert re.search(r"failed\s+hard\s+other", listed)
    shown = two.viva("runs", "show", "latest", "hard", "-n", "other", code=0).out
    assert "Agent: other" in shown
    assert "Agent: same" not in shown
    assert "has no agent" in two.viva("runs", "show", "latest", "-n", "nobody", code=4).err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("test", "-i", "suite.jsonl", "-n", "same", "-n", "same"), "two agents have this name"),
        (("test", "-i", "Hello there", *BOTH), "go to one agent"),
        (("test", "-i", "suite.jsonl", "-n", "same", "-n", "missing"), "missing"),
        (("compare", "latest"), "nothing to compare"),
        (("compare", "latest", "-n", "nobody"), "not an agent of these runs"),
        (("compare", "latest", "latest", "latest", "--fail-on", "cost"), "only for two runs"),
    ],
)
def test_misuse_is_explained(two: Project, arguments: tuple[str, ...], problem: str):
    two.test("-n", "same", code=0)
    assert problem in two.viva(*arguments, code=4).err


def test_an_agent_keeps_its_own_limit(two: Project):
    """`parallel` of an agent caps its own conversations, not those of the others."""
    two.write(
        "pair.py",
        "import time\nnow, most = {}, {}\n"
        "def run(name, messages):\n"
        "    now[name] = now.get(name, 0) + 1\n    most[name] = max(most.get(name, 0), now[name])\n"
        "    time.sleep(0.01)\n    now[name] -= 1\n    return f'{name} {most[name]}'\n"
        "def same(messages): return run('same', messages)\n"
        "def other(messages): return run('other', messages)\n",
    )
    two.write("viva.toml", CONFIG + '[agents.one]\nuse = "python:pair:same"\nparallel = 1\n')
    two.suite(*({"id": f"c{n}", "input": "x", "assertions": [contains("same 1")]} for n in range(6)))
    _, records = two.report("-n", "one", "-n", "other", "--parallel", "4")
    assert {record["status"] for record in records if record["agent"] == "one"} == {"passed"}


def write_eval_suite(project: Project) -> None:
    tasks = [openwop.task(name, name, openwop.golden(name)) for name in ("easy", "hard")]
    project.write("evals.json", json.dumps(openwop.suite(*tasks, modes=("golden", "regression"))))


def test_a_baseline_is_what_the_run_says_of_the_tested_agent(two: Project):  # W4
    write_eval_suite(two)
    inputs = ("-i", "evals.json", "-q")
    two.test(*inputs, *BOTH, agent=None, code=1)
    two.write("pair.py", AGENTS.replace("def same(messages):\n", "def same(messages):\n    return other(messages)\n"))
    flags = ("--baseline", "latest", "--fail-on-regression")
    ended = two.test(*inputs, "-n", "same", *flags, agent=None, code=1)
    assert "baseline: 1 " in ended.out
    assert "a regression" in ended.out
    flags = ("--baseline", "latest~1")
    assert "there are 2" in two.test(*inputs, *BOTH, *flags, agent=None, code=4).err
    two.write("viva.toml", CONFIG + '[agents.third]\nuse = "python:pair:same"\n')
    assert "none of them is 'third'" in two.test(*inputs, "-n", "third", *flags, agent=None, code=4).err


def test_an_eval_summary_or_a_snapshot_of_several_agents_is_refused(two: Project):
    write_eval_suite(two)
    for shard in ("1/2", "2/2"):
        two.test("-i", "evals.json", *BOTH, "--shard", shard, agent=None)
    merged = two.viva("merge", "latest", "latest~1", "--eval-summary", "sum.json")
    assert merged.code == 4, merged
    assert "is for one agent" in merged.err
    refused = two.test(*BOTH, "--update-snapshots", agent=None, code=4)
    assert "--update-snapshots: a snapshot is of one agent" in refused.err


def test_a_case_that_is_flaky_on_one_agent_can_be_broken_on_another(two: Project):  # N36
    two.suite(case("a"))

    def run(*, same: bool, other: bool) -> None:
        texts = {True: 'm[-1]["content"]', False: '"no"'}
        two.write("pair.py", f"def same(m):\n    return {texts[same]}\ndef other(m):\n    return {texts[other]}\n")
        two.test(*BOTH, "-q", agent=None)

    for good in (True, False, True, False, True):
        run(same=True, other=good)
    run(same=False, other=True)
    ended = two.viva("compare", "latest~1", "latest", "-n", "same", "--fail-on", "broken")
    assert ended.code == 1, ended
    flaky = two.viva("compare", "latest~2", "latest", "-n", "other", "--fail-on", "broken")
    assert flaky.code == 0, flaky


def test_tests_that_name_their_agents_are_run_again_without_one(two: Project):
    for number in (1, 2):
        test = f"def test_{number}(t, ctx):\n    t.assert_.Equal(ctx.call('same', 'x').content, 'y')\n"
        with (two.folder / "checks.py").open("a") as file:
            file.write(test)
    ended = two.viva("test", "-i", "scripts:checks")
    assert ended.code == 1, ended
    assert "viva test -i scripts:checks --last-failed" in ended.out

"""`viva test --shard` and `viva merge`: a split run, put together, is the run that was not split."""

import asyncio
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from openwop import suite, task
from project import Project, case, contains, remove_times
from viva.errors import BadInput
from viva.history.index import read_run_start
from viva.model import codec
from viva.model.event import RunEnded, RunResumed, RunStarted
from viva.record.journal import Journal, read_events
from viva.viewer.launcher import RunLauncher

# A session id ends with the attempt: `flaky` breaks in the first one, `broken` in all of them.
AGENT = """
def agent(messages, options):
    text = messages[-1]["content"]
    if text.startswith("broken") or (text.startswith("flaky") and options["session_id"].endswith(".1")):
        raise ConnectionError("the tool's server is down")
    return text
"""
# One at a time: how many trials of a case are in flight when it is decided depends on the other cases of the shard.
UNTIL_DECIDED = ("--until-decided", "--min-pass", "0.6", "--margin", "0.4", "--retry-faults", "0", "--parallel", "1")
RUN_FIELDS = ("agent", "viva", "inputs", "cases", "trials", "suites", "exit_code")


@pytest.fixture
def split(project: Project) -> Project:
    """A project with two suites of cases, and an eval suite that reaches its threshold only as a whole."""
    project.write("agent.py", AGENT)
    cases = [case(f"a{number}", runs=3 if number == 4 else None) for number in range(8)]
    project.suite(
        *[{key: value for key, value in each.items() if value is not None} for each in cases],
        case("bad", assertions=[contains("no such words")]),
        case("flaky", "flaky"),
        case("broken", "broken"),
        name="one.jsonl",
    )
    project.suite(case("skipped", skip="later"), {"id": "unchecked", "input": "x"}, case("a1"), name="two.jsonl")
    tasks = [task("t1"), task("t2", "bye"), task("t3"), task("t4")]
    project.write("three.json", json.dumps(suite(*tasks, thresholds={"passScore": 0.7})))
    return project


INPUTS = ("-i", "one.jsonl", "-i", "two.jsonl", "-i", "three.json")


def read_reports(project: Project, name: str) -> list[Any]:
    """The reports without times and ids."""
    folder = project.folder
    whole = json.loads((folder / f"{name}.json").read_text())
    run, options = whole["run"], whole["run"]["settings"]["options"]
    del options["outputs"]
    junit = (folder / f"{name}.xml").read_text()
    return [
        [remove_times(json.loads(line)) for line in (folder / f"{name}.jsonl").read_text().splitlines()],
        remove_times(whole["cases"]),
        remove_times(whole["summary"]),
        [run[field] for field in RUN_FIELDS],
        [run["settings"][field] for field in ("fingerprint", "rerun_flags", "min_pass")],
        options,
        re.sub(r' time(stamp)?="[^"]*"|[\d.]+ ?m?s\b|viva-[\w-]+\.\d|viva runs show \S+', "", junit),
    ]


def outputs(name: str) -> list[str]:
    return [flag for suffix in ("json", "jsonl", "xml") for flag in ("-o", f"{name}.{suffix}")]


@pytest.mark.parametrize("flags", [(), ("--runs", "2", "--min-pass", "0.5"), ("--retry-faults", "0"), UNTIL_DECIDED])
def test_merged_shards_are_the_run_that_was_not_split(split: Project, flags: tuple[str, ...]):
    whole = split.test(*INPUTS, *flags, *outputs("whole"))
    assert whole.code == 1, whole
    codes = {split.test(*INPUTS, *flags, "--shard", f"{number}/3").code for number in (3, 1, 2)}
    assert codes <= {0, 1}
    merged = split.viva("merge", "latest", "latest~2", "latest~1", *outputs("merged"))
    assert merged.code == 1, merged
    assert read_reports(split, "merged") == read_reports(split, "whole")
    # It is a run like any other.
    assert split.list_runs()[0]["exit_code"] == 1
    shown = split.viva("runs", "show", "latest", "--json").out.splitlines()
    assert remove_times([json.loads(line) for line in shown]) == read_reports(split, "whole")[0]
    compared = split.viva("compare", "latest~4", "latest")
    assert (compared.code, "no regression shown" in compared.out) == (0, True)


def test_runs_that_were_split_by_filters_are_merged_in_input_order(split: Project):
    whole = split.test(*INPUTS, "-k", "[bft]|a1", *outputs("whole"))
    assert whole.code == 1
    for pattern in ("^t", "^[bf]", "a1"):  # not in input order
        split.test(*INPUTS, "-k", pattern)
    merged = split.viva("merge", "latest~2", "latest~1", "latest", *outputs("merged"))
    assert merged.code == 1
    assert "one.jsonl: 7 of 11 cases are in none of the runs" in merged.out
    # As one run they have another filter.
    assert [read_reports(split, "merged")[part] for part in (0, 1, 2, 3)] == [
        read_reports(split, "whole")[part] for part in (0, 1, 2, 3)
    ]


def test_a_threshold_is_that_of_the_whole_suite(project: Project):
    """Each shard can miss a threshold that the suite reaches."""
    tasks = [task(f"t{number}", "bye" if number == 3 else "hello") for number in range(12)]
    project.write("suite.json", json.dumps(suite(*tasks, thresholds={"passScore": 0.9})))
    arguments = ("-i", "suite.json")
    codes = [project.test(*arguments, "--shard", f"{number}/4").code for number in range(1, 5)]
    assert sorted(codes) == [0, 0, 0, 1]
    merged = project.viva("merge", *(f"latest~{back}" for back in range(4)), "--eval-summary", "eval.json")
    assert merged.code == 0, merged
    summary = json.loads((project.folder / "eval.json").read_text())
    assert (summary["taskCount"], summary["passedCount"], summary["passed"]) == (12, 11, True)
    assert project.test(*arguments, "--shard", "1/4", "--eval-summary", "part.json").code == 4
    project.suite(case("a"))
    for pattern in ("1/1", "1/1"):
        project.test("--shard", pattern)
    assert "needs one eval suite" in project.viva("merge", "latest", "--eval-summary", "eval.json").err


@pytest.fixture
def shards(project: Project) -> list[str]:
    """The ids of three shards of nine cases, which all pass."""
    project.suite(*(case(f"c{number}") for number in range(9)))
    for number in (1, 2, 3):
        assert project.test("--shard", f"{number}/3").code == 0
    return [row["id"] for row in reversed(project.list_runs())]


def test_a_missing_shard_is_named_and_counts_as_not_run(project: Project, shards: list[str]):
    merged = project.viva("merge", shards[0], shards[2])
    assert merged.code == 1
    assert "missing: shard 2/3" in merged.out
    summary = project.list_runs()[0]["summary"]
    assert (summary["total"], summary["passed"] + summary["not_run"]) == (9, 9)
    assert summary["not_run"]
    # What was merged can be merged with the rest. Its own notes go by their kind, not by their text.
    journal = project.folder / ".viva" / "runs" / project.list_runs()[0]["id"] / "journal.jsonl"
    notes = [event for line in journal.read_text().splitlines() if (event := json.loads(line))["event"] == "note"]
    assert [note.get("kind") for note in notes] == ["not_merged"]
    journal.write_text(journal.read_text().replace("missing: shard", "lost: part"))
    completed = project.viva("merge", "latest", shards[1])
    assert completed.code == 0
    assert "lost: part" not in completed.out + completed.err


def test_folders_and_archives_hold_runs(project: Project, shards: list[str]):
    """Each run counts once; what is no shard is left out."""
    project.test("-k", "c1")  # not a shard, in the same folder
    merged = project.viva("merge", ".viva", shards[0], "-q")
    assert merged.code == 0
    assert merged.err.count("which is not a shard") == 1
    assert merged.err.count("was given twice; it counts once") == 1
    for number, shard in enumerate(shards):
        with zipfile.ZipFile(project.folder / f"{number}.zip", "w") as archive:
            archive.write(project.folder / ".viva" / "runs" / shard / "journal.jsonl", f"a/{shard}/journal.jsonl")
    merged = project.viva("merge", "0.zip", "1.zip", "2.zip", "-q")
    assert (merged.code, merged.err) == (0, "")
    project.viva("runs", "rm", *shards)
    assert project.list_runs()[0]["summary"]["passed"] == 9


def test_a_shard_that_is_there_twice_is_refused(project: Project, shards: list[str]):
    project.test("--shard", "2/3")
    doubled = project.list_runs()[0]["id"]
    refused = project.viva("merge", *shards, doubled)
    assert refused.code == 4
    assert refused.err.startswith("shard 2/3 is there twice")
    assert shards[1] in refused.err
    assert doubled in refused.err
    assert len(project.list_runs()) == 4  # nothing was made


def test_runs_that_do_not_belong_together_are_refused(project: Project, shards: list[str]):
    def refuse(*arguments: str) -> str:
        assert project.test(*arguments).code == 0
        count = len(project.list_runs())
        refused = project.viva("merge", shards[0], "latest")
        assert refused.code == 4
        assert len(project.list_runs()) == count
        return refused.err

    assert "different --runs: 1 and 2" in refuse("--shard", "2/3", "--runs", "2")
    assert 'different -k: nothing and "c"' in refuse("--shard", "2/3", "-k", "c")
    assert "different --shard-by" in refuse("--shard", "2/3", "--shard-by", "time")
    assert "same number of parts" in refuse("--shard", "2/4")
    assert "same number of parts" in refuse()
    project.suite(case("c1"), case("other"))
    assert "differ in suites (suite.jsonl)" in refuse("--shard", "2/3")
    project.suite(case("c1"), name="other.jsonl")
    assert "differ in suites (suite.jsonl, other.jsonl)" in refuse("-i", "other.jsonl", "--shard", "2/3")
    assert "differ in agents (python:./agent.py:agent, python:agent.py:agent)" in refuse(
        "-i", "suite.jsonl", "-n", "python:agent.py:agent"
    )


def test_runs_that_share_cases_are_refused(project: Project):
    project.suite(case("a"), case("b"), case("c"))
    project.test("-k", "a|b")
    project.test("-k", "b|c")
    refused = project.viva("merge", "latest~1", "latest")
    assert refused.code == 4
    assert "both have b;" in refused.err


def test_a_run_in_progress_is_refused(project: Project, shards: list[str]):
    journal = Journal(project.folder / ".viva" / "runs" / shards[1] / "journal.jsonl")
    try:
        refused = project.viva("merge", *shards)
        assert refused.code == 4
        assert f"run {shards[1]} is still running in process" in refused.err
    finally:
        journal.release_lock()
    assert project.viva("merge", *shards).code == 0


def test_a_shard_that_stopped_early_is_named(project: Project, shards: list[str]):
    """It is merged as far as it came; the exit code is that of a run that stopped."""
    journal = project.folder / ".viva" / "runs" / shards[1] / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    end = codec.decode_own(lines[-1], type=RunEnded)
    lost = next(line for line in lines if b'"trial_ended"' in line)
    kept = [line for line in lines[:-1] if line != lost]
    journal.write_bytes(b"".join(kept))
    killed = project.viva("merge", *shards)
    assert killed.code == 1
    assert f"run {shards[1]} (shard 2/3) stopped unexpectedly, with 1 case not run" in killed.out
    journal.write_bytes(
        b"".join([*kept, codec.encode(RunEnded(end.run, end.at, 2, end.summary, "interrupted")) + b"\n"])
    )
    interrupted = project.viva("merge", *shards)
    assert interrupted.code == 2
    assert "stopped early (interrupted), with 1 case not run" in interrupted.out
    # In a merge of a merged run, the warning is still about the shard, and there is no other.
    project.viva("merge", *shards[:2])
    completed = project.viva("merge", "latest", shards[2])
    assert completed.code == 2
    assert completed.out.count("stopped early") == 1
    assert f"run {shards[1]} (shard 2/3) stopped early (interrupted), with 1 case not run" in completed.out
    assert "are in no shard" not in completed.out


def test_the_time_of_a_merged_run_is_that_in_which_its_parts_were_running(project: Project, shards: list[str]):
    """Not the time between the parts, nor that between an interruption and the end of the resumed part."""
    for number, run in enumerate(shards):
        journal = project.folder / ".viva" / "runs" / run / "journal.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        start, end = codec.decode_own(lines[0], type=RunStarted), codec.decode_own(lines[-1], type=RunEnded)
        hour = f"2026-01-02T{3 + 2 * number:02}"
        parts = [
            structs.replace(start, at=f"{hour}:00:00+00:00"),
            *(line for line in lines[1:-1]),
            structs.replace(end, at=f"{hour}:00:05+00:00", stopped="interrupted"),
            RunResumed(run, f"{hour}:50:00+00:00"),
            structs.replace(end, at=f"{hour}:50:02+00:00"),
        ]
        journal.write_bytes(b"".join(part if isinstance(part, bytes) else codec.encode(part) + b"\n" for part in parts))

    def read_ms(name: str) -> float:
        return json.loads((project.folder / name).read_text())["summary"]["duration_ms"]

    project.viva("merge", *shards, "-o", "all.json", code=0)
    assert read_ms("all.json") == 3 * 7000.0
    project.viva("merge", *shards[:2], "-o", "two.json")
    assert read_ms("two.json") == 2 * 7000.0
    project.viva("merge", "latest", shards[2], "-o", "again.json", code=0)
    assert read_ms("again.json") == 3 * 7000.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument"),
        (("empty",), "empty: contains no run"),
        (("nowhere/",), "there is no file or folder 'nowhere/'"),
        (("suite.jsonl",), "suite.jsonl: cannot be read as a ZIP file"),
        (("20200101",), "there is no run '20200101'"),
        (("latest",), "there is nothing to merge"),
        (("latest", "damaged"), "damaged/journal.jsonl:1: is not an event of a journal"),
        (("latest", "headless"), "headless/journal.jsonl: has no start event"),
        (("latest", "packed.zip"), "packed.zip: x/journal.jsonl:1: is not an event of a journal"),
        (("latest", "latest", "-o", "report.pdf"), "-o report.pdf: unknown report format"),
        (("latest", "latest", "-o", "no/report.xml"), "-o no/report.xml: there is no folder no"),
    ],
)
def test_misuse_is_one_sentence(project: Project, arguments: tuple[str, ...], message: str):
    project.suite(case("a"))
    project.test()
    (project.folder / "empty").mkdir()
    project.write("damaged/journal.jsonl", "{oops\n")
    project.write("headless/journal.jsonl", '{"event":"note","text":"x"}\n')
    with zipfile.ZipFile(project.folder / "packed.zip", "w") as archive:
        archive.writestr("x/journal.jsonl", "{oops\n")
    ended = project.viva("merge", *arguments)
    assert ended.code == 4
    assert message in ended.err
    assert "/tmp/viva-merge" not in ended.err
    assert "Traceback" not in ended.err
    assert len(project.list_runs()) == 1


def find_journal(project: Project, run: str) -> Path:
    return project.folder / ".viva" / "runs" / run / "journal.jsonl"


def pack(path: Path, content: bytes, method: int = zipfile.ZIP_DEFLATED, copies: int = 1) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for number in range(copies):
            with archive.open(f"{number}/journal.jsonl", "w") as file:
                file.write(content)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_refused(project: Project, shards: list[str], method: int):  # 12.9
    path = project.folder / "damaged.zip"
    pack(path, find_journal(project, shards[0]).read_bytes(), method)
    raw = bytearray(path.read_bytes())
    raw[80:140] = bytes(each ^ 0xFF for each in raw[80:140])
    path.write_bytes(raw)
    refused = project.viva("merge", "damaged.zip")
    assert (refused.code, refused.err.count("\n")) == (4, 1), refused
    assert "damaged.zip: cannot be read as a ZIP file" in refused.err


def test_an_archive_that_unpacks_to_more_than_a_disk_holds_is_refused(
    project: Project, shorten: Callable[[str, float], None]
):  # 12.9
    shorten("viva.record.foreign_journals._ALWAYS_ALLOWED_BYTES", 1_000_000)
    pack(project.folder / "bomb.zip", bytes(400_000), copies=4)
    refused = project.viva("merge", "bomb.zip")
    assert refused.code == 4
    assert "unpacks to far more than journals of its size" in refused.err


def test_parts_that_are_all_left_out_are_nothing_to_merge(project: Project, shards: list[str]):  # 12.9
    project.viva("merge", *shards)
    merged = project.list_runs()[0]["id"]
    pack(project.folder / "merged.zip", find_journal(project, merged).read_bytes(), copies=2)
    refused = project.viva("merge", "merged.zip")
    assert (refused.code, "there is nothing to merge" in refused.err) == (4, True), refused


WRONG: tuple[tuple[str, Any], ...] = (
    ("run_started", {"at": "soon"}),
    *(
        ("run_started", {"settings": {name: 5}})
        for name in ("options", "fingerprint", "agents", "merged", "sequential")
    ),
    ("run_started", {"settings": {"merged": [{"run": "x", "cases": 1, "shard": [1]}]}}),
    ("run_started", {"settings": {"merged": [{"run": "x", "cases": 1, "spans": [["now", "then"]]}]}}),
    ("run_started", {"settings": {"rerun_flags": [["--runs"]]}}),
    ("run_started", {"settings": {"options": {"shard": {"number": 1}}}}),
    ("run_started", {"settings": {"options": {"shard": "9/3"}}}),
    ("run_ended", {"at": "later"}),
    ("trial_ended", {"of": None}),
    ("trial_ended", {"key": {"trial": 10**30}}),
    ("trial_ended", {"record": {"turns": [[1]]}}),
    ("trial_ended", {"record": {"final_assertions": [{"passed": True, "type": [1]}]}}),
    ("trial_ended", {"record": {"final_assertions": [{"type": "contains"}]}}),
)


@pytest.mark.parametrize(("event", "wrong"), WRONG)
def test_a_journal_that_another_program_has_changed_is_refused(
    project: Project, shards: list[str], event: str, wrong: dict[str, Any]
):
    """12.9: it comes from another machine, so it may hold any values."""
    for shard in shards:
        path = find_journal(project, shard)
        events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        for each in events:
            if each["event"] == event:
                for name, value in wrong.items():
                    each[name] = each[name] | value if isinstance(value, dict) else value
        project.write(f"parts/{shard}/journal.jsonl", "".join(json.dumps(each) + "\n" for each in events))
    refused = project.viva("merge", "parts")
    assert (refused.code, "Traceback" in refused.err) == (4, False), refused
    assert len(project.list_runs()) == len(shards)


def test_no_text_of_another_machine_controls_the_terminal(project: Project, shards: list[str]):  # 12.9
    control = "\x1b[2J\x07"
    for number, shard in enumerate(shards):
        path = find_journal(project, shard)
        events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        for each in events:
            if each["event"] == "run_started":
                each |= {"inputs": [control], "agent": control, "agents": [control], "run": f"{control}{number}"}
            if each["event"] == "trial_ended":
                each["key"] |= {"case": each["key"]["case"] + control, "agent": control}
                each["record"] |= {"id": each["key"]["case"], "agent": control}
        project.write(f"parts/{number}/journal.jsonl", "".join(json.dumps(each) + "\n" for each in events))
    for arguments in (
        ("merge", "parts"),
        ("merge", "parts", "parts/0"),
        ("merge", "parts", *shards),
        ("runs",),
        ("runs", "show", "latest"),
        ("runs", "show", "latest", "no case"),
        ("compare", "latest", "latest"),
    ):
        ended = project.viva(*arguments)
        assert ended.code in (0, 4), ended
        assert not {"\x1b", "\x07"} & {*ended.out, *ended.err}, ended


def test_nothing_that_a_part_from_elsewhere_names_is_run_here(project: Project, shards: list[str]):  # 12.1
    """Its journal names an agent, which may be any command. That of a run of this project is its own."""
    for shard in shards:
        pack(project.folder / f"{shard}.zip", find_journal(project, shard).read_bytes())
    assert project.viva("merge", *shards, "-q").code == 0
    assert project.viva("test", "--resume", "latest").code == 0
    assert project.viva("merge", *(f"{shard}.zip" for shard in shards[:2]), "-q").code == 1
    for more in (shards[2:], []):  # then a merge of the merged run, which is one of this project
        refused = project.viva("test", "--resume", "latest")
        assert (refused.code, "comes from another machine" in refused.err) == (4, True), refused
        started = read_run_start(find_journal(project, project.list_runs()[0]["id"]))
        assert started is not None
        with pytest.raises(BadInput, match="comes from another machine"):
            asyncio.run(RunLauncher(project.folder, None).rerun(started))
        if more:
            assert project.viva("merge", "latest", *more, "-q").code == 0


def read_ids(project: Project) -> list[str]:
    return [record["id"] for record in project.records()]


def test_shards_by_time_need_the_same_history(project: Project):
    project.write("agent.py", "import time\ndef agent(messages):\n    return messages[-1]['content']\n")
    project.suite(*(case(f"c{number}") for number in range(6)))
    project.test()
    first = project.test("--shard", "1/2", "--shard-by", "time", "-o", "report.jsonl")
    assert first.code == 0
    ids = read_ids(project)
    assert 0 < len(ids) < 6
    # The choice is saved: the times of this very run do not change it when it is resumed.
    options = next(read_events(journals(project)[-1])).settings["options"]  # type: ignore[union-attr]
    assert [name for _, name in options["shard_cases"]] == ids
    assert project.test("--dry-run", "--shard", "1/2").code == 0


def test_cases_in_no_shard_are_counted_in_a_merge_of_merged_runs_too(project: Project, shards: list[str]):
    """As if the machines had known different times, and had shared the cases out differently."""
    journal = project.folder / ".viva" / "runs" / shards[1] / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    started = json.loads(lines[0])
    lost = next(line for line in lines if '"trial_ended"' in line)
    lines[0] = json.dumps(started | {"cases": started["cases"] - 1}) + "\n"
    journal.write_text("".join(line for line in lines if line != lost))
    project.viva("merge", *shards[:2])
    assert "1 of 9 cases are in no shard" in project.viva("merge", "latest", shards[2]).out


def test_a_shard_by_time_that_is_resumed_keeps_its_cases(project: Project):
    project.suite(*(case(f"c{number}", assertions=[contains("no")]) for number in range(6)))
    project.test("--shard", "1/2", "--shard-by", "time", "--fail-fast", "--parallel", "1")
    stopped = project.list_runs()[0]
    assert stopped["summary"]["not_run"]
    project.test()  # the times change
    for _ in range(6):  # --fail-fast stops it again and again
        project.viva("test", "--resume", stopped["id"])
    options = next(read_events(project.folder / ".viva" / "runs" / stopped["id"] / "journal.jsonl")).settings["options"]  # type: ignore[union-attr]
    records = project.viva("runs", "show", stopped["id"], "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in records] == [name for _, name in options["shard_cases"]]


def journals(project: Project) -> list[Path]:
    return sorted((project.folder / ".viva" / "runs").glob("*/journal.jsonl"), key=lambda path: path.stat().st_mtime_ns)


def test_an_empty_shard_is_not_a_failure_but_an_empty_selection_is(project: Project):
    project.suite(case("a"))
    codes = [project.test("--shard", f"{number}/4").code for number in range(1, 5)]
    assert codes == [0, 0, 0, 0]
    assert project.viva("merge", ".viva").code == 0
    assert project.test("--shard", "1/4", "-k", "nothing").code == 5  # N35
    assert project.test("--shard", "1/2", "-i", "agents:gen?count=2").code == 4


def test_a_merged_run_in_json_is_the_same_events(project: Project, shards: list[str]):
    events = [json.loads(line) for line in project.viva("merge", *shards, "--json").out.splitlines()]
    assert [event["event"] for event in events] == ["run_started", *["trial_ended"] * 9, "run_ended"]
    assert [event["index"] for event in events[1:-1]] == list(range(9))
    merged = list(iterate_merged(events[0]))
    assert merged == [(run, f"{number}/3") for number, run in enumerate(shards, 1)]


def iterate_merged(started: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for part in started["settings"]["merged"]:
        yield part["run"], part["shard"]

"""File reports: content, order, and atomic writes."""

import json
import random
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from html.parser import HTMLParser
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec import structs

from unit.reporters.samples import (
    check,
    errored,
    failed,
    passed_dynamic,
    passed_static,
    render_console,
    run_ended,
    run_started,
    skipped_awaiting,
    trial,
    trial_ended,
    turn,
    write_journal,
)
from viva import catalog
from viva.model import codec
from viva.model.event import Event, Note, RunEnded
from viva.model.message import Usage
from viva.model.record import ToolCallRecord, TrialRecord
from viva.model.turn import FileChange
from viva.record.journal import Journal
from viva.reporters.formatting import fit_line
from viva.reporters.github import GithubAnnotations
from viva.reporters.html import HtmlReport
from viva.reporters.json import JsonEventReporter, JsonlReport, JsonReport
from viva.reporters.junit import JunitReport
from viva.reporters.markdown import MarkdownReport, escape_markdown
from viva.reporters.report import Report

SUFFIXES = {
    ".jsonl": JsonlReport,
    ".json": JsonReport,
    ".xml": JunitReport,
    ".html": HtmlReport,
    ".md": MarkdownReport,
}


@contextmanager
def journal_in(folder: Path, records: Iterable[TrialRecord]) -> Generator[Journal]:
    journal = write_journal(folder, records)
    try:
        yield journal
    finally:
        journal.close()


def written(
    report: type[Report], folder: Path, records: Iterable[TrialRecord], end: RunEnded | None = None, **options: Any
) -> str:
    """The text of a report of these records."""
    with journal_in(folder, records) as journal:
        report(folder / "report", journal).receive((run_started(**options), end or run_ended()))
    return (folder / "report").read_text()


def runs(case: str, *statuses: str, **fields: Any) -> list[TrialRecord]:
    turns = [turn(1, "x", "y", assertions=[check('contains "z"', False, reason="it is not there")])]
    return [trial(case, status, turns, trial=number, **fields) for number, status in enumerate(statuses, 1)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_report_is_selected_by_its_extension(suffix: str) -> None:  # N34
    assert catalog.find_component("reporter", suffix) is SUFFIXES[suffix]


@pytest.mark.parametrize("report", SUFFIXES.values())
def test_a_report_replaces_an_older_one_and_leaves_nothing_else(report: type[Report], tmp_path: Path) -> None:
    (tmp_path / "report").write_text("old")
    with (tmp_path / "report").open() as reader:
        assert written(report, tmp_path, [passed_static()]) != "old"
        assert reader.read() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl", "journal.lock", "report"]


def test_a_report_that_fails_keeps_the_older_one(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("old")
    journal = write_journal(tmp_path, [passed_static()])
    journal.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        JsonlReport(tmp_path / "report", journal).receive((run_ended(),))
    assert (tmp_path / "report").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl", "journal.lock", "report"]


def test_a_report_into_a_missing_folder_raises_oserror(tmp_path: Path) -> None:
    with journal_in(tmp_path, []) as journal, pytest.raises(FileNotFoundError):
        JsonlReport(tmp_path / "gone" / "a.jsonl", journal).receive((run_ended(),))


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "report").symlink_to("real")
    written(JsonlReport, tmp_path, [passed_static()])
    assert (tmp_path / "report").is_symlink()
    assert json.loads((tmp_path / "real").read_text())["id"] == "T001"


@pytest.mark.parametrize("report", SUFFIXES.values())
def test_nothing_is_written_before_the_run_has_ended(report: type[Report], tmp_path: Path) -> None:
    with journal_in(tmp_path, [passed_static()]) as journal:
        report(tmp_path / "report", journal).receive((run_started(), trial_ended(passed_static())))
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("report", SUFFIXES.values())
def test_a_run_without_records_has_a_report(report: type[Report], tmp_path: Path) -> None:
    text = written(report, tmp_path, [])
    if report is JunitReport:
        assert ET.fromstring(text).get("tests") == "0"
    elif report is JsonReport:
        assert json.loads(text)["cases"] == []


def test_jsonl_copies_records_in_input_order(tmp_path: Path) -> None:  # N19 N34
    records = [trial(f"T{index}", turns=[turn(1, "Grüße")]) for index in range(10_000)]
    order = list(range(10_000))
    random.Random(7).shuffle(order)
    journal = Journal(tmp_path / "journal.jsonl")
    for index in order:
        journal.append(trial_ended(records[index], index))
    JsonlReport(tmp_path / "report", journal).receive((run_ended(),))
    journal.close()
    assert (tmp_path / "report").read_bytes().splitlines() == [codec.encode(record) for record in records]


def test_json_has_the_run_the_summary_and_cases_with_their_trials(tmp_path: Path) -> None:  # N33
    records = [passed_static(), *runs("A", "passed", "failed", "error", "passed"), *runs("B", "error", fault="infra")]
    whole = json.loads(
        written(JsonReport, tmp_path, records, run_ended(1, stopped="budget", stop_message="$5 spent"), seed=1)
    )
    assert whole["run"] == {
        "run": "r1",
        "at": "2026-01-02T03:04:05Z",
        "viva": "0.1.0",
        "agent": "assistants.expense",
        "agents": ["assistants.expense"],
        "inputs": ["./tests/expense-flow.jsonl"],
        "cases": 5,
        "trials": 5,
        "parallel": 4,
        "settings": {"seed": 1},
        "ended": "2026-01-02T03:05:05Z",
        "exit_code": 1,
        "stopped": "budget",
        "stop_message": "$5 spent",
    }
    assert whole["summary"]["passed"] == 2
    assert [{**case, "trials": len(case["trials"])} for case in whole["cases"]] == [
        {
            "id": "T001",
            "name": "Expense Reimbursement Flow",
            "suite": "expense",
            "status": "passed",
            "pass_rate": {"passed": 1, "decided": 1, "rate": 1.0},
            "class": "stable",
            "trials": 1,
        },
        {
            "id": "A",
            "name": "A",
            "suite": "expense",
            "status": "failed",
            "pass_rate": {"passed": 2, "decided": 3, "rate": 2 / 3},
            "class": "unstable",
            "interval": {"low": 0.20765960080204782, "high": 0.9385080552796038},
            "pass_k": [
                {"k": 1, "pass_at_k": 2 / 3, "pass_hat_k": 2 / 3},
                {"k": 2, "pass_at_k": 1.0, "pass_hat_k": 1 / 3},
                {"k": 3, "pass_at_k": 1.0, "pass_hat_k": 0.0},
            ],
            "turns": {"count": 4, "mean": 1.0, "p50": 1, "p95": 1},
            "duration_ms": {"count": 4, "mean": 1000.0, "p50": 1000.0, "p95": 1000.0},
            "trials": 4,
        },
        {
            "id": "B",
            "name": "B",
            "suite": "expense",
            "status": "error",
            "pass_rate": {"passed": 0, "decided": 0, "rate": None},
            "class": None,
            "trials": 1,
        },
    ]
    assert codec.convert(whole["cases"][0]["trials"][0], TrialRecord) == passed_static()


def test_json_follows_the_runs_min_pass(tmp_path: Path) -> None:  # N33
    text = written(JsonReport, tmp_path, runs("A", "passed", "failed"), min_pass=0.5)
    assert json.loads(text)["cases"][0]["status"] == "passed"


@pytest.mark.parametrize(
    ("statuses", "message"),
    [
        (["passed"], "1 of 10 trials passed, 9 not run: not enough verdicts to pass or fail"),
        (
            ["passed", "error"],
            "1 of 10 trials passed, 1 with errors, 8 not run: not enough verdicts to pass or fail",
        ),
    ],
)
def test_a_case_with_missing_trials_is_an_error_with_a_reason(
    statuses: list[str], message: str, tmp_path: Path
) -> None:  # N33
    cut_off = runs("A", *statuses, trials=10)
    assert json.loads(written(JsonReport, tmp_path, cut_off))["cases"][0]["status"] == "error"
    (error,) = ET.fromstring(written(JunitReport, tmp_path, cut_off)).iter("error")
    assert (error.get("type"), error.get("message")) == ("undetermined", message)
    assert escape_markdown(message) in written(MarkdownReport, tmp_path, cut_off)
    assert message in written(HtmlReport, tmp_path, cut_off)


def test_junit_has_suites_in_order_with_counts_and_places(tmp_path: Path) -> None:
    records = [passed_static(), skipped_awaiting(), failed(), errored()]
    records.append(trial("X", turns=[turn(1, "x")], suite="alone", tags=("a", "b"), usage=Usage(2, 10, 5, None)))
    root = ET.fromstring(written(JunitReport, tmp_path, records))
    counts = ("name", "tests", "failures", "errors", "skipped", "time")
    assert [root.get(key) for key in counts] == ["viva", "5", "1", "1", "1", "12.530"]
    assert [[suite.get(key) for key in counts] for suite in root] == [
        ["expense", "4", "1", "1", "1", "11.530"],
        ["alone", "1", "0", "0", "0", "1.000"],
    ]
    places = [
        (case.get("name"), case.get("classname"), case.get("file"), case.get("line")) for case in root.iter("testcase")
    ]
    assert places == [
        ("T001 Expense Reimbursement Flow", "expense", None, None),
        ("T002 Large Expense Approval", "expense", "tests/expense-flow.jsonl", "12"),
        ("T004 Refund", "expense", "tests/it's refunds.jsonl", "7"),
        ("T005", "expense", "tests/expense-flow.jsonl", "30"),
        ("X", "alone", None, None),
    ]
    values = [(each.get("name"), each.get("value")) for each in root.iter("property")]
    assert values == [("tag", "a"), ("tag", "b"), ("tokens", "15"), ("cost_usd", "unknown")]


def test_junit_has_failures_and_transcripts(tmp_path: Path) -> None:
    root = ET.fromstring(written(JunitReport, tmp_path, [failed(), errored(), skipped_awaiting()]))
    failure, error, skipped = (root.find(f".//{tag}") for tag in ("failure", "error", "skipped"))
    assert failure is not None
    assert error is not None
    assert skipped is not None
    assert failure.attrib == {
        "message": 'turn 2: contains "refunded" · must refund: the text is not in the reply (and 1 more)',
        "type": "agent",
    }
    assert (
        failure.text
        == """\
failed (agent)
✗ turn 2: contains "refunded" · must refund
    user:     "Refund order 12"
    reason:   the text is not in the reply
    actual:   "I cannot do that."
✗ turn 2: tool_called "refund"
    user:     "Refund order 12"
    reason:   no tool was called
at tests/it's refunds.jsonl:7
viva test -i 'tests/it'"'"'s refunds.jsonl' -k '^T004$' -v"""
    )
    assert error.attrib == {"message": "turn 1: agent error: connection refused", "type": "infra"}
    assert skipped.get("message") == "Agent awaiting input, no next turn defined"
    assert (
        root.findtext(".//system-out")
        == """\
failed
Turn 1 (passed, 0.9s)
  user: Hello
  agent: Hi, what can I do for you?
Turn 2 (failed, 1.5s)
  user: Refund order 12
  agent: I cannot do that."""
    )


@pytest.mark.parametrize("report", [JunitReport, MarkdownReport])
def test_reports_have_the_suggestions_of_judges(report: type[Report], tmp_path: Path) -> None:  # N26
    denied = check("agent polite", False, reason="it is curt", suggestions=["say please"])
    record = trial("A", "failed", [turn(1, "Hi", "Yo", assertions=[denied])], fault="agent")
    assert "reason:   it is curt\n    suggestion: say please" in written(report, tmp_path, [record])


@pytest.mark.parametrize("report", [JunitReport, MarkdownReport])
def test_transcripts_have_file_changes(report: type[Report], tmp_path: Path) -> None:
    """P4, P5: each file with its diff."""
    changed = (FileChange("a.txt", "added", "@@ -0,0 +1 @@\n+hello"), FileChange("b.bin", "removed"))
    record = trial("A", "failed", [turn(1, "Hi", "Yo", files=changed)], fault="agent", error="no")
    assert "  added: a.txt\n    @@ -0,0 +1 @@\n    +hello\n  removed: b.bin" in written(report, tmp_path, [record])


def test_junit_has_one_testcase_for_all_trials_of_a_case(tmp_path: Path) -> None:  # N33
    root = ET.fromstring(written(JunitReport, tmp_path, runs("A", "passed", "failed", "failed")))
    (case,) = root.iter("testcase")
    (failure,) = root.iter("failure")
    assert case.get("time") == "3.000"
    assert "Trials 2, 3 (2 times the same): failed\n" in (failure.text or "")
    assert "Trial 1: passed\n" in (root.findtext(".//system-out") or "")


@given(st.text(), st.text(), st.sampled_from(["passed", "failed", "skipped", "error"]))
@example("\ufffe\uffff\x00\x1b]]>&<\r", "\ufffe\"'<", "failed")
@settings(max_examples=60)
def test_junit_is_well_formed_for_any_text(text: str, name: str, status: str) -> None:
    call = ToolCallRecord(text, {text: text}, error=text)
    checks = [check("x" + text, False, message=text, reason=text, expected=text, actual=[text])]
    turns = [turn(1, text, text, assertions=checks, error=text, tool_calls=[call])]
    record = trial("i" + name, status, turns, name=name, suite=text, source=text, tags=(text,), warnings=[text])
    record.error, record.hint, record.fault = text, text, "agent"
    with TemporaryDirectory() as folder:
        root = ET.fromstring(written(JunitReport, Path(folder), [record]))
    assert len(list(root.iter("testcase"))) == 1


def test_junit_cuts_long_replies(tmp_path: Path) -> None:
    text = written(JunitReport, tmp_path, [trial("A", turns=[turn(1, "x", "y" * 5_000_000)])])
    assert len(text) < 30_000
    assert "y… (4,980,000 more characters)" in text


class Rendered(HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.text.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self._open.remove(tag)

    def handle_data(self, data: str) -> None:
        for tag in self._open:
            self.text[tag][-1] += data


def rendered(markdown: str) -> Rendered:
    return Rendered(MarkdownIt("commonmark").enable("table").render(markdown))


def test_markdown_is_a_comment_for_a_pull_request(tmp_path: Path) -> None:
    records = [passed_static(), skipped_awaiting(), failed(), errored(), *runs("A", "passed", "failed", fault="agent")]
    end = run_ended(
        1, total=5, failed=2, errors=1, cost_usd=0.5, trials={"passed": 2, "failed": 2, "error": 1, "skipped": 1}
    )
    page = rendered(written(MarkdownReport, tmp_path, records, end))
    assert page.text["h2"] == ["❌ Viva: 5 tests: 2 passed, 2 failed, 1 error, 1 skipped"]
    assert page.text["p"] == [
        "5/5 checks passed · 10 turns (3.3 per test) · 18.1s · cost: $0.5000 · trials: 6 (2 passed, 2 failed, 1 error, 1 skipped)"
    ]
    assert page.text["td"] == [
        *("5", "2", "2", "1", "1", "0"),
        *("T002 Large Expense Approval", "⏭️ skipped", "Agent awaiting input, no next turn defined"),
        "T004 Refund",
        "❌ failed (agent)",
        'turn 2: contains "refunded" · must refund: the text is not in the reply (and 1 more)',
        *("T005", "⚠️ error (infra)", "turn 1: agent error: connection refused"),
        *("A", "❌ failed (agent), 1/2 passed (9 to 91 %), unstable", 'turn 1: contains "z": it is not there'),
    ]
    assert page.text["summary"] == ["T004 Refund: failed", "T005: error", "A: failed"]
    assert "\n  user: Refund order 12\n  agent: I cannot do that.\n" in page.text["pre"][0]


EVIL = "<script>alert(1)</script> ![x](http://evil/x.png) [y](javascript:z) `a` | **b** </pre></details> @admin www.evil.com"


def test_markdown_escapes_agent_text(tmp_path: Path) -> None:
    checks = [check(EVIL, False, reason=EVIL, expected=EVIL, actual=EVIL)]
    turns = [turn(1, f"{EVIL}\n\n# {EVIL}\n\n![x](http://evil/x.png)", EVIL, assertions=checks)]
    text = written(
        MarkdownReport, tmp_path, [trial(EVIL, "failed", turns, name=EVIL, fault="agent", source=EVIL)], run_ended(1)
    )
    page = rendered(text)
    assert {"script", "img", "a", "strong", "h1"} & set(page.tags) == set()
    assert page.tags.count("pre") == page.tags.count("details") == 1
    assert EVIL in page.text["code"][0]
    assert EVIL in page.text["pre"][0]
    assert "@admin" not in text.split("<pre>")[0]


@given(st.text())
def test_any_text_in_a_markdown_cell_is_escaped(text: str) -> None:
    line = fit_line(text, 100)
    page = rendered(f"| a | b |\n| --- | --- |\n| <code>{escape_markdown(line)}</code> | end |\n")
    assert page.text["code"] == [line]
    assert page.text["td"][1] == "end"


def test_markdown_fits_into_a_comment(tmp_path: Path) -> None:
    turns = [turn(1, "x" * 5000, "y" * 5000, assertions=[check("a", False, reason="z" * 500)])]
    text = written(
        MarkdownReport, tmp_path, [trial(f"T{n}", "failed", turns, fault="agent") for n in range(300)], run_ended(1)
    )
    assert len(text) < 65_536
    rows, folded = text.count("❌ failed"), text.count("<details>")
    assert rows > 40
    assert folded > 5
    assert f"\n{300 - rows:,} more are not listed here.\n" in text
    assert f"\n{300 - folded:,} more transcripts not shown here.\n" in text


def test_a_matrix_of_many_agents_and_cases_fits_into_a_comment(tmp_path: Path) -> None:
    agents = tuple(f"agent-{number}" for number in range(20))
    records = [
        record
        for number in range(120)
        for agent in agents
        for record in runs(f"{number:03} {'a long id ' * 20}", "failed", "failed", agent=agent, trials=2)
    ]
    started = structs.replace(run_started(len(records) // 2, len(records)), agents=agents)
    with journal_in(tmp_path, records) as journal:
        MarkdownReport(tmp_path / "report", journal).receive((started, run_ended(1)))
    text = (tmp_path / "report").read_text()
    assert len(text) < 65_536
    shown = sum(line.count("0/2") == len(agents) for line in text.splitlines())
    assert shown > 20
    assert f"\n{120 - shown} more cases are not listed.\n" in text


def test_events_are_one_line_of_json_each_in_utf_8() -> None:
    raw = BytesIO()
    sink = JsonEventReporter(TextIOWrapper(raw, encoding="latin-1"))
    events: list[Event] = [run_started(), Note("東京\nx"), trial_ended(passed_dynamic()), run_ended()]
    sink.receive(events[:2])
    sink.receive(events[2:])
    lines = raw.getvalue().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["run_started", "note", "trial_ended", "run_ended"]
    assert lines == [codec.encode(event) for event in events]
    assert sink.live


def test_events_go_to_a_text_stream() -> None:
    stream = StringIO()
    JsonEventReporter(stream).receive((Note("東京"),))
    assert json.loads(stream.getvalue()) == {"event": "note", "text": "東京"}


def test_failures_are_annotations_at_their_lines_in_github_actions(tmp_path: Path):
    """Paths start at the repository. What an agent said cannot be a command to the runner."""
    stream = StringIO()
    sink = GithubAnnotations(stream, tmp_path)
    evil = "50% done,\r\n::stop-commands::x"
    source = tmp_path / "suites" / "a,b.jsonl"
    sink.receive(
        [
            run_started(3, 5, min_pass=0.5),
            trial_ended(passed_static()),
            trial_ended(trial("T1", "failed", [turn(1, "x", error=evil)], source=f"{source}:7")),
            *(
                structs.replace(trial_ended(record), of=2)
                for record in runs("enough", "passed", "failed", fault="agent")
            ),
            *(structs.replace(trial_ended(record), of=2) for record in runs("never", "failed", "failed")),
            run_ended(1, failed=2),
        ]
    )
    assert stream.getvalue().splitlines() == [
        "::error file=suites/a%2Cb.jsonl,line=7,title=T1 failed::turn 1: 50%25 done, ⏎ ::stop-commands::x",
        '::error title=never failed::0 of 2 trials passed; turn 1: contains "z": it is not there',
    ]
    stream = StringIO()
    sink = GithubAnnotations(stream, tmp_path)
    sink.receive(
        [
            run_started(2, 8, min_pass=0.5),
            *(structs.replace(trial_ended(record), of=4) for record in runs("cut off", "failed", trials=4)),
            *(
                structs.replace(trial_ended(record), of=4)
                for record in runs("errors", "passed", "error", "error", "error", trials=4)
            ),
            run_ended(1, failed=0, errors=2),
        ]
    )
    assert [line.partition(";")[0] for line in stream.getvalue().splitlines()] == [
        "::error title=cut off error::0 of 4 trials passed, 3 not run: not enough verdicts to pass or fail",
        "::error title=errors error::1 of 4 trials passed, 3 with errors: not enough verdicts to pass or fail",
    ]
    shown = render_console([trial_ended(trial("A", "failed", error=f"hm\n{evil}"))], is_github_log=True)
    assert not [line for line in shown.splitlines() if line.strip().startswith("::")]
    assert ": :stop-commands::x" in shown

"""`.html`: the data of the page, and that texts cannot become markup or scripts."""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.reporters.samples import (
    check,
    errored,
    failed,
    missing_checkpoints,
    passed_dynamic,
    passed_static,
    run_ended,
    run_started,
    skipped_awaiting,
    trial,
    turn,
    write_journal,
)
from viva.engine.summary import RunTally
from viva.model import codec
from viva.model.event import RunEnded
from viva.model.finding import Finding
from viva.model.message import Usage
from viva.model.record import ToolCallRecord, TrialRecord
from viva.reporters import html
from viva.reporters.html import HtmlReport
from viva.reporters.page import escape_for_script, load_page

PLANTED = "</script><script>alert(1)</script><!--<script>\u2028\u2029\x1b[31m\u202e&amp;"


class Read(HTMLParser):
    """A parsed report: its scripts with their attributes, and its styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.metas: list[dict[str, str | None]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._in = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        elif tag == "style":
            self.styles.append("")
        elif tag == "meta":
            self.metas.append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._in == "style":
            self.styles[-1] += data

    @property
    def overview(self) -> dict[str, Any]:
        (found,) = (text for attributes, text in self.scripts if attributes.get("id") == "viva-overview")
        return json.loads(found)

    @property
    def pieces(self) -> list[tuple[int, bytes]]:
        found = [(a["data-first"], text) for a, text in self.scripts if a.get("class") == "viva-records"]
        return [(int(first or ""), zlib.decompress(base64.b64decode(text))) for first, text in found]

    @property
    def cases(self) -> list[dict[str, Any]]:
        return [case for _, piece in self.pieces for case in json.loads(piece)]

    @property
    def policy(self) -> str:
        (found,) = (meta for meta in self.metas if meta.get("http-equiv") == "Content-Security-Policy")
        return found["content"] or ""


def text_of(folder: Path, records: Iterable[TrialRecord], end: RunEnded | None = None, **options: Any) -> str:
    journal = write_journal(folder, records)
    try:
        HtmlReport(folder / "report.html", journal).receive((run_started(**options), end or run_ended()))
    finally:
        journal.close()
    return (folder / "report.html").read_text(encoding="utf-8")


def report(folder: Path, records: Iterable[TrialRecord], end: RunEnded | None = None, **options: Any) -> Read:
    return Read(text_of(folder, records, end, **options))


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_overview_of_a_run(tmp_path: Path) -> None:
    found = report(tmp_path, [passed_static()], run_ended(1, stopped="budget", stop_message="$1 is spent")).overview
    assert (found["run"], found["agent"], found["planned_cases"]) == ("r1", "assistants.expense", 5)
    assert (found["exit_code"], found["stopped"], found["stop_message"]) == (1, "budget", "$1 is spent")
    assert found["summary"] == codec.to_builtins(run_ended().summary)
    assert (found["reply_ms"]["count"], found["reply_ms"]["p95"], found["case_ms"]["count"]) == (3, 3200, 1)


def test_the_row_of_a_case(tmp_path: Path) -> None:
    records = [
        trial(
            "a",
            turns=[turn(1, "x", assertions=[check("contains")])],
            usage=Usage(1, 70, 30, 0.5),
            tags=("t",),
            checks=1,
        ),
        failed(),
    ]
    records[0].cost_usd = 0.5
    passed, other = report(tmp_path, records).overview["cases"]
    assert passed == {
        "index": 0,
        "suite": "expense",
        "id": "a",
        "status": "passed",
        "trials": ["passed"],
        "turns": 1,
        "duration_ms": 1000,
        "tags": ["t"],
        "cost_usd": 0.5,
        "tokens": 100,
        "checks": 1,
        "checks_passed": 1,
    }
    assert (other["index"], other["status"], other["fault"]) == (1, "failed", "agent")
    assert other["reason"].startswith("turn 2: ")


def test_checks_are_counted_as_in_the_summary(tmp_path: Path) -> None:
    records = [passed_static(), passed_dynamic(), skipped_awaiting(), failed(), errored(), missing_checkpoints()]
    tally = RunTally(len(records))
    for record in records:
        record.checks = 20
        tally.count_trial(record)
    rows = report(tmp_path, records).overview["cases"]
    assert sum(row["checks_passed"] for row in rows) == tally.summary().checks_passed


def test_a_row_has_findings_and_partial_scores(tmp_path: Path) -> None:
    leaks = (Finding("secret-leak", "high"), Finding("pii-leak", "low"))
    records = [
        trial("half", turns=[turn(1, "x")], score=0.5, findings=leaks[:1]),
        trial("half", turns=[turn(1, "x")], score=1.0, findings=leaks, trial=2),
        trial("whole", turns=[turn(1, "x")], score=1.0),
    ]
    half, whole = report(tmp_path, records).overview["cases"]
    assert (half["score"], half["findings"]) == (0.75, ["pii-leak (low)", "secret-leak (high)"])
    assert not {"score", "findings"} & whole.keys()


def test_repeats_are_one_row_with_a_status_for_each_trial(tmp_path: Path) -> None:  # N33
    records = [
        trial("a", status, trial=n, cost_usd=cost) for n, status, cost in ((1, "passed", 0.1), (2, "failed", None))
    ]
    found = report(tmp_path, [*records, trial("b")]).overview
    assert [(row["id"], row["status"], row["trials"]) for row in found["cases"]] == [
        ("a", "failed", ["passed", "failed"]),
        ("b", "passed", ["passed"]),
    ]
    assert "cost_usd" not in found["cases"][0]  # the price is unknown
    assert (found["pass_rate"]["cases"], found["pass_rate"]["trials"], found["pass_rate"]["rate"]) == (2, 3, 0.75)


def test_repeats_have_an_interval_a_class_and_pass_k(tmp_path: Path) -> None:  # N33
    statuses = ["passed"] * 6 + ["failed"] * 2
    records = [trial("a", status, trial=n, trials=8) for n, status in enumerate(statuses, 1)]
    found = report(tmp_path, records)
    (row,) = found.overview["cases"]
    assert row["stability"] == "unstable"
    assert [round(row["interval"][end], 2) for end in ("low", "high")] == [0.41, 0.93]
    assert found.overview["classes"] == {"unstable": 1}
    assert (found.overview["pass_k"]["k"], found.overview["pass_k"]["pass_hat_k"]) == (8, 0.0)
    (case,) = found.cases
    assert [each["k"] for each in case["figures"]["pass_k"]] == list(range(1, 9))
    assert case["figures"]["interval"] == row["interval"]


def test_a_case_that_never_passes_is_not_counted_as_unstable(tmp_path: Path) -> None:
    records = [
        trial(name, status, trial=n, trials=2) for name, status in (("a", "failed"), ("b", "passed")) for n in (1, 2)
    ]
    assert report(tmp_path, records).overview["classes"] == {"never_passed": 1, "stable": 1}


def refused(number: int) -> TrialRecord:
    text = f"agent error: ConnectionError: refused by 10.0.0.{number}"
    return trial(f"r{number}", "error", fault="infra", error=text, turns=[turn(1, "Hi", error=text)], tags=("net",))


def test_equal_failures_are_one_group(tmp_path: Path) -> None:
    """Numbers and ids may differ; a failed check is known by its name, whatever the reply was."""
    problem = [
        trial(
            f"w{n}",
            "failed",
            turns=[turn(1, "x", assertions=[check('contains "yes"', False, reason=f"not in reply {n}")])],
            suite=f"s{n}",
        )
        for n in range(2)
    ]
    found = report(tmp_path, [refused(1), *problem, refused(2), trial("ok", tags=("net",)), failed()]).overview
    groups = [(group["title"], group["cases"], group["status"]) for group in found["groups"]]
    assert groups == [
        ("agent error: ConnectionError: refused by …", 2, "error"),
        ('contains "yes"', 2, "failed"),
        ('contains "refunded"', 1, "failed"),
    ]
    assert [row.get("group") for row in found["cases"]] == [0, 1, 1, 0, None, 2]
    assert found["cases"][5]["failed_types"] == ["contains", "tool_called"]


def test_rates_by_tag_suite_and_type_have_the_lowest_first(tmp_path: Path) -> None:
    """A case or check without a verdict counts nowhere."""
    records = [
        refused(1),
        failed(),
        trial("a", tags=("x", "y"), suite="s"),
        trial("b", "failed", tags=("x",), suite="s"),
    ]
    found = report(tmp_path, records).overview["breakdown"]
    rates = {kind: [(rate["name"], rate["passed"], rate["decided"]) for rate in found[kind]] for kind in found}
    assert rates == {
        "tags": [("x", 1, 2), ("y", 1, 1)],
        "suites": [("expense", 0, 1), ("s", 1, 2)],
        "types": [("tool_called", 0, 1), ("contains", 1, 2), ("not_contains", 1, 1)],
    }
    assert 0 < found["types"][1]["interval"]["low"] < 0.5


def test_tools_that_fail_most_come_first(tmp_path: Path) -> None:
    calls = [ToolCallRecord("pay", {}, error="denied"), ToolCallRecord("pay", {}, result=1), ToolCallRecord("find", {})]
    found = report(tmp_path, [trial("a", turns=[turn(1, "x", tool_calls=calls)])]).overview["breakdown"]
    assert [(rate["name"], rate["passed"], rate["decided"]) for rate in found["tools"]] == [
        ("pay", 1, 2),
        ("find", 1, 1),
    ]


def test_the_most_expensive_turn_is_known(tmp_path: Path) -> None:
    costs = {("a", 1): [0.01, 0.2], ("a", 2): [0.3], ("b", 1): [0.3]}
    records = [
        trial(name, trial=number, turns=[turn(at, "x", cost_usd=cost) for at, cost in enumerate(values, 1)])
        for (name, number), values in costs.items()
    ]
    found = report(tmp_path, records).overview["costliest_turn"]
    assert (found["id"], found["trial"], found["turn"], found["cost_usd"]) == ("a", 2, 1, 0.3)


def test_records_are_copied_from_the_journal(tmp_path: Path) -> None:
    records = [passed_static(), trial("a", trial=1), trial("a", "failed", trial=2, error="secret is ***")]
    (_, piece), *_ = report(tmp_path, records).pieces
    for record in records:
        assert codec.encode(record) in piece
    assert [len(case["trials"]) for case in json.loads(piece)] == [1, 2]


def test_records_are_split_into_numbered_pieces(tmp_path: Path) -> None:
    records = [trial(f"c{n}", turns=[turn(1, "x", f"{n} " * 5000)]) for n in range(60)]
    pieces = report(tmp_path, records).pieces
    assert len(pieces) > 2
    at = 0
    for first, piece in pieces:
        assert first == at
        cases = json.loads(piece)
        assert [case["trials"][0]["id"] for case in cases] == [f"c{first + n}" for n in range(len(cases))]
        at += len(cases)
    assert at == 60


def test_a_case_has_its_rerun_command(tmp_path: Path) -> None:
    (case,) = report(tmp_path, [errored()]).cases
    assert case["command"] == "viva test -i tests/expense-flow.jsonl -k '^T005$' -v"


def planted() -> TrialRecord:
    hostile_turn = turn(
        1, PLANTED, PLANTED, assertions=[check(PLANTED, False, reason=PLANTED, expected=PLANTED, actual=PLANTED)]
    )
    return trial(
        PLANTED, "failed", [hostile_turn], name=PLANTED, suite=PLANTED, error=PLANTED, tags=(PLANTED,), fault="agent"
    )


def test_texts_stay_inside_their_script_element(tmp_path: Path) -> None:
    """A script end tag in a text adds no element."""
    empty, full = report(tmp_path, []), report(tmp_path, [planted()], run_ended(1, stop_message=PLANTED))
    assert [tag for tag, _ in full.tags] == [*(tag for tag, _ in empty.tags), "script"]
    assert full.overview["cases"][0]["id"] == PLANTED
    assert full.cases[0]["trials"][0]["turns"][0]["output"] == PLANTED


@given(st.text())
@settings(max_examples=60, deadline=None)
def test_embedded_json_decodes_and_has_no_markup(text: str) -> None:
    raw = escape_for_script(codec.encode({text: [text]})).decode()
    assert not set("<\u2028\u2029") & set(raw)
    assert json.loads(raw) == {text: [text]}


@given(st.text(), st.text())
@settings(max_examples=25, deadline=None)
def test_any_text_survives_embedding(name: str, text: str) -> None:
    with TemporaryDirectory() as folder:
        read = report(Path(folder), [trial("a", turns=[turn(1, text, text)], name=name)])
    assert read.overview["cases"][0].get("name", "") == ("" if name == "a" else name)
    assert read.cases[0]["trials"][0]["turns"][0]["output"] == text


def test_the_policy_allows_only_the_script_of_the_page(tmp_path: Path) -> None:
    read = report(tmp_path, [planted()])
    (script,) = (text for attributes, text in read.scripts if not attributes)
    (style,) = read.styles
    rules = dict(rule.strip().split(" ", 1) for rule in read.policy.split(";"))
    assert rules["script-src"] == digest(script)
    assert rules["style-src"] == digest(style)
    assert (rules["default-src"], rules["connect-src"]) == ("'none'", "'none'")
    assert rules["require-trusted-types-for"] == "'script'"
    addresses = [value for _, attrs in read.tags for name, value in attrs.items() if name in ("src", "href")]
    assert addresses == ["data:,"]
    assert not re.search(r"url\((?!data:)", style)


def test_the_served_page_has_no_data_and_connects_to_its_server() -> None:
    read = Read(load_page().content.decode())
    assert [attributes for attributes, _ in read.scripts] == [{}]
    assert read.policy == load_page().policy
    assert "connect-src 'self'" in load_page().policy


def sent(source: str, **fields: Any) -> TrialRecord:
    given = {"type": "image", "source": source, **fields}
    return trial("a", turns=[turn(1, "Look", attachments=[given])], source="suite/cases.yaml:3")


def attachments_of(folder: Path, record: TrialRecord) -> dict[str, str]:
    return html.load_attachments([codec.encode(record)], folder)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "re ceipt.png").write_bytes(b"png")
    (tmp_path / "secret.png").write_bytes(b"secret")
    return tmp_path


def test_an_image_in_the_suite_folder_is_embedded(suite: Path) -> None:
    found = attachments_of(suite, sent("file://re%20ceipt.png"))
    assert found == {"file://re%20ceipt.png": "data:image/png;base64," + base64.b64encode(b"png").decode()}


@pytest.mark.parametrize(
    "source", ["file://../secret.png", "file:///etc/hostname", "file://none.png", "file://a\x00.png"]
)
def test_a_missing_file_or_one_outside_is_not_embedded(suite: Path, source: str) -> None:
    assert attachments_of(suite, sent(source)) == {}


def test_a_link_out_of_the_suite_folder_is_not_followed(suite: Path) -> None:
    (suite / "suite" / "link.png").symlink_to(suite / "secret.png")
    assert attachments_of(suite, sent("file://link.png")) == {}


def test_only_files_with_the_name_of_an_image_are_embedded(suite: Path) -> None:  # 12.3
    """The record may come from another machine, and name any folder and type."""
    (suite / "suite" / ".env").write_text("KEY=secret")
    assert attachments_of(suite, sent("file://.env", media_type="image/png")) == {}


def test_other_types_and_huge_images_are_not_embedded(suite: Path) -> None:
    assert attachments_of(suite, sent("file://re%20ceipt.png", media_type="text/html")) == {}
    (suite / "suite" / "huge.png").write_bytes(b"x" * (html.MAX_ATTACHMENT_BYTES + 1))
    assert attachments_of(suite, sent("file://huge.png")) == {}

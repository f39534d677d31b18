"""`viva labels`: labels that people gave to verdicts, stored with the runs."""

import csv
import json
import stat
from pathlib import Path

import pytest

from project import Project, case, contains
from viva.errors import BadInput
from viva.model.label import Label, LabelValue
from viva.model.record import Status
from viva.record.labels import append_label, get_labels_path, read_labels, select_current_labels
from viva.stats.agreement import measure_agreement


def make_label(
    label: LabelValue | None, verdict: Status = "passed", check: str = "1-1", who: str = "ada", note: str = ""
) -> Label:
    return Label(
        at="2026-01-02T03:04:05+00:00",
        who=who,
        suite="suite.jsonl",
        case="a",
        agent="python:./agent.py:agent",
        check=check,
        is_judge=check.startswith("end"),
        verdict=verdict,
        label=label,
        note=note,
    )


def find_journal(project: Project) -> Path:
    (journal,) = project.folder.glob(".viva/runs/*/journal.jsonl")
    return journal


def test_labels_are_appended_and_the_last_one_of_a_person_counts(tmp_path: Path):
    journal = tmp_path / "journal.jsonl"
    given = [make_label("agree"), make_label("disagree"), make_label("unsure", who="bob"), make_label(None, who="bob")]
    for label in given:
        append_label(journal, label)
    with get_labels_path(journal).open("ab") as file:
        file.write(b'{"at": "20')  # the machine lost power
    assert read_labels(journal) == given
    append_label(journal, given[0])
    assert read_labels(journal) == [*given, given[0]]
    assert select_current_labels(given) == [given[1]]
    assert stat.S_IMODE(get_labels_path(journal).stat().st_mode) == 0o600
    get_labels_path(journal).write_bytes(b'{"who": 3}\n')
    with pytest.raises(BadInput, match=r"labels\.jsonl:1: is not a label"):
        read_labels(journal)


def test_agreement_counts_false_passes_and_false_failures():
    labels = [
        *[make_label("agree", "passed")] * 6,
        *[make_label("agree", "failed")] * 2,
        make_label("disagree", "passed"),
        make_label("disagree", "failed"),
        make_label("unsure", "passed"),
        make_label("agree", "error"),
    ]
    agreement = measure_agreement(labels)
    assert agreement is not None
    assert (agreement.agreed, agreement.decided, agreement.unsure) == (8, 10, 2)
    assert (agreement.false_passes, agreement.false_failures) == (1, 1)
    assert agreement.interval is not None
    assert (round(agreement.interval.low, 3), round(agreement.interval.high, 3)) == (0.490, 0.943)
    assert agreement.kappa == pytest.approx((0.8 - 0.58) / 0.42)
    same = measure_agreement(labels[:6])
    assert same is not None
    assert same.kappa is None
    assert measure_agreement([]) is None


def test_labels_are_listed_and_exported_with_what_they_are_about(project: Project):
    """They change no verdict: the run is compared and shown as before."""
    project.suite(
        case("a", "=hello", assertions=[contains("=hello"), contains("zzz")], final_assertions=[contains("q")])
    )
    project.test(code=1)
    assert project.viva("labels", code=0).out.startswith("No labels.")
    assert project.viva("labels", "export", code=0).out == ""
    before = project.viva("runs", "show", "latest", "a").out
    journal = find_journal(project)
    for label in (
        make_label("agree", note="=1+1"),
        make_label("disagree", "failed", "1-2"),
        make_label("disagree", "failed", ""),
        make_label("agree", "failed", "end-1"),
    ):
        append_label(journal, label)
    (header, row) = project.viva("labels", code=0).out.splitlines()
    assert header.split()[:4] == ["run", "agent", "labels", "agree"]
    assert row.split()[2:] == ["4", "2/4", "15", "to", "85", "%", "2", "1/1"]
    assert project.viva("runs", "show", "latest", "a").out == before
    assert project.viva("labels", "export", "latest", "-o", "l.jsonl").out == "wrote 4 labels to l.jsonl\n"
    first, second, whole, final = map(json.loads, (project.folder / "l.jsonl").read_text().splitlines())
    assert (first["run"], first["human"], first["output"]) == (journal.parent.name, "passed", "=hello")
    assert (second["check"], second["human"], second["label"]) == ("1-2", "passed", "disagree")
    assert "zzz" in second["reason"]
    assert (whole["check"], whole["human"], final["human"]) == ("", "passed", "failed")
    assert json.loads(project.viva("labels", "export", "--judges").out) == final
    project.viva("labels", "export", "-o", "l.csv", code=0)
    with (project.folder / "l.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["note"] for row in rows] == ["'=1+1", "", "", ""], "no cell is a formula"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "-o", "labels.xlsx"), "labels are written as .jsonl or .csv"),
        (("export", "2031"), "2031"),
        (("exprot",), "No such command 'exprot'"),
        (("export", "-o", "no/such/folder.csv"), "No such file or directory"),
    ],
)
def test_misuse_is_exit_4(project: Project, arguments: tuple[str, ...], message: str):
    project.suite(case("a"))
    project.test(code=0)
    assert message in project.viva("labels", *arguments, code=4).err


def test_a_report_written_later_shows_the_labels(project: Project):
    project.suite(case("a"))
    project.test("-o", "report.html", code=0)
    assert b"viva-labels" not in (project.folder / "report.html").read_bytes().partition(b"<body")[0]
    append_label(find_journal(project), make_label("disagree", note="</script><script>alert(1)"))
    project.viva("test", "--resume", "latest", "-o", "report.html", code=0)
    page = (project.folder / "report.html").read_text()
    (embedded,) = (
        part for part in page.split("<script ") if part.startswith('type="application/json" id="viva-labels"')
    )
    summary = json.loads(embedded.partition(">")[2].partition("</script>")[0])
    assert summary["labels"][0]["note"] == "</script><script>alert(1)"
    assert summary["all"]["false_passes"] == 1

"""The viewer reads a journal once, then only what was appended."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from unit.reporters.samples import run_ended, run_started, trial, trial_ended, turn
from viva.errors import BadInput
from viva.history.index import History
from viva.model import codec
from viva.model.event import RunResumed
from viva.record.journal import Journal
from viva.reporters.page import CaseRow, Overview
from viva.viewer.runs import ProjectRuns, RunJournal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "runs" / "r1" / "journal.jsonl")


def load_cases(run: RunJournal) -> list[CaseRow]:
    return codec.decode(run.load_overview(), type=Overview).cases


def test_the_overview_of_a_live_run_grows(journal: Journal):
    run = RunJournal(journal.path)
    journal.append(run_started(3))
    assert load_cases(run) == []
    journal.append(trial_ended(trial("late", turns=[turn(1, "x")]), index=2))
    assert [(row.index, row.id) for row in load_cases(run)] == [(2, "late")]
    journal.append(trial_ended(trial("early", turns=[turn(1, "x")]), index=0))
    assert [(row.index, row.id) for row in load_cases(run)] == [(0, "early"), (2, "late")]
    assert run.load_overview() is run.load_overview()  # cached


def test_a_case_keeps_its_index_while_others_end(journal: Journal):
    """The index of a case is that of its first trial."""
    run = RunJournal(journal.path)
    journal.append(trial_ended(trial("b", trial=2), index=3))
    (row,) = load_cases(run)
    assert row.index == 2
    journal.append(trial_ended(trial("a"), index=0))
    journal.append(trial_ended(trial("b", trial=1), index=2))
    run.refresh()
    case = run.load_case(2)
    assert case is not None
    assert [(record.id, record.trial) for record in case.records()] == [("b", 1), ("b", 2)]
    assert run.load_case(1) is None


def test_an_incomplete_line_is_read_later(journal: Journal):
    run = RunJournal(journal.path)
    journal.append(trial_ended(trial("a")))
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + whole[:30])
    assert len(load_cases(run)) == 1
    journal.path.write_bytes(whole + whole.replace(b'"index":0', b'"index":1'))
    assert len(load_cases(run)) == 2


def test_only_new_lines_are_read(journal: Journal):
    """Lines that were read are not read again, even if they are no longer JSON."""
    run = RunJournal(journal.path)
    journal.append(trial_ended(trial("a")))
    run.refresh()
    size = journal.path.stat().st_size
    with journal.path.open("r+b") as file:
        file.write(b"#" * (size - 1))
    journal.append(trial_ended(trial("b"), index=1))
    run.refresh()
    assert run.load_case(1) is not None


def test_a_run_is_live_until_it_ends_or_its_writer_exits(journal: Journal):
    run = RunJournal(journal.path)
    journal.append(run_started())
    run.refresh()
    assert run.is_live
    journal.append(run_ended())
    run.refresh()
    assert not run.is_live
    journal.append(RunResumed("r1", "2026"))
    run.refresh()
    assert run.is_live
    journal.close()
    assert not run.is_live


def test_trials_that_a_resumed_run_discards_are_not_counted(journal: Journal):
    """Those of changed cases. A viewer that is open meanwhile forgets them too."""
    run = RunJournal(journal.path)
    journal.append(run_started(3))
    for index in range(3):
        journal.append(trial_ended(trial(f"c{index}", cost_usd=0.5), index=index))
    run.refresh()
    assert (run.progress.done, run.progress.cost_usd) == (3, 1.5)
    journal.append(RunResumed("r1", "2026", (0, 2)), trial_ended(trial("new", "failed"), index=0))
    for each in (run, RunJournal(journal.path)):
        each.refresh()
        assert [row.id for row in load_cases(each)] == ["new", "c1"]
        progress = each.progress
        assert (progress.trials, progress.done, progress.passed, progress.failed) == (3, 2, 1, 1)
        assert (progress.cost_usd, progress.earlier, progress.since) == (0.5, 1, "2026")


def test_a_line_that_is_not_an_event_is_reported(journal: Journal):
    journal.path.write_bytes(b'{"event":"run_started","journal_version":3}\n')
    with pytest.raises(BadInput, match=r"journal\.jsonl.*byte 0: not an event"):
        RunJournal(journal.path).refresh()


def test_a_journal_of_another_version_is_refused(journal: Journal):
    journal.append(run_started())
    journal.path.write_bytes(journal.path.read_bytes().replace(b'"journal_version":3', b'"journal_version":1'))
    with pytest.raises(BadInput, match=r"journal\.jsonl.*version 1, expected 3"):
        RunJournal(journal.path).refresh()


def test_a_run_without_journal_is_not_found(tmp_path: Path):
    history = History(tmp_path)
    history.add_run_part("r1", start=run_started())
    with pytest.raises(BadInput, match="The journal of run r1 is missing"):
        ProjectRuns(history).find("r1")


def test_journals_are_not_kept_open(tmp_path: Path):
    history = History(tmp_path)
    runs = ProjectRuns(history)
    for n in range(40):
        event = structs.replace(run_started(), run=f"run{n:02}")
        history.add_run_part(event.run, start=event)
        Journal(history.journal_path(f"run{n:02}")).append(event)
    before = len(os.listdir("/proc/self/fd"))
    for n in range(40):
        assert runs.find(f"run{n:02}").started is not None
    assert len(os.listdir("/proc/self/fd")) <= before

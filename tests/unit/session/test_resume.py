"""What is read from the journal of an interrupted run, and which changes prevent resuming it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from viva.errors import BadInput
from viva.history.index import History
from viva.model.case import Case
from viva.model.event import CaseGenerated, Event, RunEnded, RunResumed, RunStarted, RunSummary, TrialEnded
from viva.model.message import ModelCall, Usage
from viva.model.record import TrialRecord
from viva.protocols import PlannedTrial
from viva.record.journal import Journal, read_records
from viva.record.redaction import Redactor
from viva.session.options.run_options import AllRunOptions
from viva.session.options.saved import dump_options, restore_options
from viva.session.resume import PreviousRun, check_unchanged, keep_unchanged_trials, load_previous_run, reopen_run
from viva.users.script import Script

STARTED = RunStarted("r1", "2026-11-15T10:00:00", "1.0", "bot", ("s.jsonl",), 3, 3, 1)
COUNTS = RunSummary(
    total=1,
    passed=1,
    failed=0,
    errors=0,
    skipped=0,
    not_run=0,
    unchecked=0,
    total_turns=1,
    avg_turns=1.0,
    duration_ms=1.0,
    checks=1,
    checks_passed=1,
)


def trial(index: int, attempt: int = 1, cost: float | None = None, digest: str = "d") -> TrialEnded:
    usage = Usage(calls=1, cost_usd=cost)
    fields: dict[str, Any] = {"usage": usage, "cost_usd": cost, "digest": digest}
    record = TrialRecord(f"c{index}", "n", "passed", [], [], 1, 1.0, "s", 1, attempt, **fields)
    return TrialEnded(record.key, index, 1, record)


def past(folder: Path, *events: Event) -> PreviousRun:
    history = History(folder / ".viva")
    journal = Journal(history.journal_path("r1"))
    for event in events:
        journal.append(event)
    journal.close()
    history.add_run_part(STARTED.run, start=STARTED)
    return load_previous_run(history, "latest")


def planned(*cases: tuple[str, str]) -> AsyncIterator[PlannedTrial]:
    async def plan() -> AsyncIterator[PlannedTrial]:
        for index, (name, digest) in enumerate(cases):
            yield PlannedTrial(Case(id=name, suite="s", user=Script(()), digest=digest), index)

    return plan()


def test_an_ended_trial_is_not_run_again_in_any_attempt(tmp_path: Path):
    found = past(tmp_path, STARTED, trial(0, attempt=2), trial(2))

    async def due() -> list[bool]:
        return [found.has_run_ended(each) async for each in planned(("c0", "d"), ("c1", "d"), ("c2", "d"))]

    assert asyncio.run(due()) == [True, False, True]
    assert found.run_ended is None


def test_what_was_spent_counts_on_and_an_unknown_price_is_not_made_up(tmp_path: Path):
    found = past(tmp_path, STARTED, trial(0, cost=0.25), trial(1, cost=None), trial(2, cost=0.5))
    assert found.spent_usd == 0.75
    calls = (ModelCall("m", cost_usd=0.5), ModelCall("mystery"))
    mixed = structs.replace(trial(3).record, usage=Usage.of(calls))  # the known price of one of its calls counts
    found = past(tmp_path / "mixed", STARTED, trial(0, cost=0.25), TrialEnded(mixed.key, 3, 1, mixed))
    assert found.spent_usd == 0.75


def test_the_time_of_the_earlier_parts_counts_on(tmp_path: Path):
    """Without the time between them. A part that was killed has no end: it lasts until its last trial has ended."""

    def at(second: float) -> str:
        return f"2026-01-02T03:04:{second:06.3f}+00:00"

    def timed(index: int, second: float, ms: float) -> TrialEnded:
        record = structs.replace(trial(index).record, started_at=at(second), duration_ms=ms)
        return TrialEnded(record.key, index, 1, record)

    started = structs.replace(STARTED, at=at(0))
    killed = (started, timed(0, 1, 500), timed(1, 0.5, 250))
    assert past(tmp_path / "killed", *killed).earlier_ms == pytest.approx(1500)
    stopped = (*killed, RunResumed("r1", at(20)), timed(2, 21, 1000))
    assert past(tmp_path / "again", *stopped).earlier_ms == pytest.approx(1500 + 2000)
    end = RunEnded("r1", at(23), 2, structs.replace(COUNTS, duration_ms=4500.0), "interrupted")
    assert past(tmp_path / "ended", *stopped, end).earlier_ms == pytest.approx(4500)
    more = (*stopped, end, RunResumed("r1", at(40)), timed(3, 40, 100))
    assert past(tmp_path / "more", *more).earlier_ms == pytest.approx(4600)


def test_a_run_has_its_end_only_if_nothing_came_after_it(tmp_path: Path):
    end = RunEnded("r1", "x", 0, COUNTS)
    assert past(tmp_path / "a", STARTED, end).run_ended == end
    assert past(tmp_path / "b", STARTED, RunEnded("r1", "x", 2, COUNTS, "interrupted")).run_ended is None
    assert past(tmp_path / "c", STARTED, end, RunResumed("r1", "y")).run_ended is None


def test_generated_cases_count_only_if_all_were_written_down(tmp_path: Path):
    """A kill between them leaves some; then nothing has run, and what was made later stands behind them."""
    made = [CaseGenerated("g", {"id": f"g{n}"}, 3) for n in range(3)]
    assert past(tmp_path / "a", STARTED, *made).generated_cases == {"g": ({"id": "g0"}, {"id": "g1"}, {"id": "g2"})}
    assert past(tmp_path / "b", STARTED, *made[:2]).generated_cases == {}
    later = [CaseGenerated("g", {"id": f"h{n}"}, 2) for n in range(2)]
    assert past(tmp_path / "c", STARTED, *made[:2], *later).generated_cases == {"g": ({"id": "h0"}, {"id": "h1"})}


def test_a_journal_without_a_beginning_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="has no start event"):
        past(tmp_path, trial(0))


def test_of_a_changed_suite_only_cases_that_stand_as_they_stood_keep_their_outcome(tmp_path: Path):
    found = past(tmp_path, STARTED, trial(0), trial(1), trial(2))
    left = asyncio.run(keep_unchanged_trials(found, planned(("c0", "d"), ("c1", "other"), ("c2", "d"))))
    assert [event.key.case for event in left.ended_trials] == ["c0", "c2"]
    moved = asyncio.run(keep_unchanged_trials(found, planned(("new", "d"), ("c0", "d"))))
    assert list(moved.ended_trials) == []
    assert (left.discarded, moved.discarded) == ((1,), (0, 1, 2))


def test_what_a_forced_resume_has_discarded_stays_discarded(tmp_path: Path):
    found = past(tmp_path, STARTED, trial(0), trial(1), trial(2), RunResumed("r1", "x", (0, 2)), trial(2))
    assert [event.key.case for event in found.ended_trials] == ["c1", "c2"]
    assert [record.id for record in read_records(found.journal_path)] == ["c1", "c2"]


def test_each_thing_that_changed_is_named():
    was = {"agents": {"a": 1}, "suites": {"s": 1}, "the version of Viva": "1"}
    check_unchanged(was, dict(was))
    with pytest.raises(BadInput, match="changed since the run began: agents, the version of Viva;"):
        check_unchanged(was, was | {"agents": {}, "the version of Viva": "2"})


def test_options_come_back_as_they_were(tmp_path: Path):
    options = AllRunOptions(
        inputs=("a.jsonl", "b"),
        outputs=(Path("r.md"),),
        folder=tmp_path,
        record=Path("c.cassette"),
        tags=("x",),
        runs=3,
        min_pass=0.5,
        last_failed=True,
        selected_cases=(("s", "c1"),),
    )
    assert restore_options(dump_options(options, Redactor())) == options


def test_what_cut_off_calls_had_cost_is_not_forgotten(tmp_path: Path):
    """A run that a budget stopped has spent more than its ended trials tell."""
    stopped = RunEnded("r1", "t", 1, structs.replace(COUNTS, cost_usd=0.12), "budget")
    assert past(tmp_path, STARTED, trial(0, cost=0.05), stopped).spent_usd == 0.12
    assert past(tmp_path / "b", STARTED, trial(0, cost=0.05)).spent_usd == 0.05


def test_a_run_of_another_user_can_be_resumed(tmp_path: Path):
    """Its first journal cannot be looked up: that folder cannot be searched. A path that is too long fails in the same way."""
    past(tmp_path, structs.replace(STARTED, settings={"journal": f"/{'x' * 300}/.viva/runs/r1/journal.jsonl"}))
    journal, previous_run = reopen_run(History(tmp_path / ".viva"), "r1")
    journal.close()
    assert previous_run.run_id == "r1"

"""Many trials: the local executor, the plan, the tally and the exit code, the event bus."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from viva.engine.event_bus import EventBus
from viva.engine.scheduler import FailFast, plan_trials
from viva.engine.sending import merge_options
from viva.engine.summary import RunTally, exit_code
from viva.engine.trial_pool import TrialPool
from viva.errors import BadInput, RunStopped
from viva.llm.pacing import ConversationLimit
from viva.model.case import Case, Limits, Suite
from viva.model.event import Event, Note, RunSummary, StopReason, TrialEnded, TurnStarted
from viva.model.message import Usage
from viva.model.record import Status, TrialRecord
from viva.protocols import PlannedTrial
from viva.record.journal import Journal
from viva.stats.pass_rule import PassRule
from viva.stats.sequential import SequentialTest
from viva.users.script import Script

EMPTY = Script(())


def suite(*ids: str, runs: dict[str, int] | None = None, breaks: bool = False) -> Suite:
    async def cases() -> AsyncIterator[Case]:
        for each in ids:
            yield Case(id=each, user=EMPTY, runs=(runs or {}).get(each))
        if breaks:
            raise BadInput.of("changed while it was being run", "s.jsonl", 3)

    return Suite(id="s", cases=cases, count=len(ids))


async def planned(*suites: Suite, runs: int = 1, leave_out: str = "") -> list[PlannedTrial]:
    return [each async for each in plan_trials(suites, lambda case: None if case.id == leave_out else case, runs)]


def test_a_plan_has_every_trial_of_every_case_in_input_order():
    found = asyncio.run(planned(suite("a", "b", runs={"b": 1}), suite("c"), runs=2))
    assert [(each.case.id, each.trial, each.total, each.index) for each in found] == [
        ("a", 1, 2, 0),
        ("a", 2, 2, 1),
        ("b", 1, 1, 2),
        ("c", 1, 2, 3),
        ("c", 2, 2, 4),
    ]  # N33
    found = asyncio.run(planned(suite("a", "b", "c", runs={"b": 3}), leave_out="b"))
    assert [(each.case.id, each.index) for each in found] == [
        ("a", 0),
        ("c", 4),
    ]  # runs with other filters fit together


def test_a_suite_that_cannot_be_read_any_more_stops_the_run():
    with pytest.raises(RunStopped, match=r"s\.jsonl:3: changed while it was being run"):
        asyncio.run(planned(suite("a", breaks=True)))


async def trials(count: int) -> AsyncIterator[PlannedTrial]:
    for index in range(count):
        yield PlannedTrial(Case(id=f"c{index}", user=EMPTY), index)


def test_at_most_n_trials_run_and_none_waits_for_a_batch():
    running: set[int] = set()
    most = 0
    begun: list[int] = []
    first_may_end = asyncio.Event()

    async def work(each: PlannedTrial) -> None:
        nonlocal most
        running.add(each.index)
        begun.append(each.index)
        most = max(most, len(running))
        if each.index == 0:
            await first_may_end.wait()
        elif each.index == 9:
            first_may_end.set()
        await asyncio.sleep(0)
        running.discard(each.index)

    asyncio.run(TrialPool(ConversationLimit(3, is_fixed=True)).run(trials(10), work))
    assert most == 3
    assert begun == list(range(10))


def test_trials_that_never_wait_leave_the_loop_to_others():
    """Else their events would be stored at the end of the run, and nothing could stop it."""
    ended: list[PlannedTrial] = []
    seen = [0]

    async def work(each: PlannedTrial) -> None:
        ended.append(each)

    async def scenario() -> None:
        running = asyncio.ensure_future(TrialPool(ConversationLimit(3, is_fixed=True)).run(trials(30), work))
        while not running.done():
            await asyncio.sleep(0)
            seen.append(len(ended))

    asyncio.run(scenario())
    assert seen[-1] == 30
    assert max(after - before for before, after in pairwise(seen)) <= 3


def test_workers_follow_the_limit():  # N19
    """It grows while trials run, and then shrinks."""
    limit = ConversationLimit(100, start=2)
    running: list[int] = []
    counts: list[int] = []

    async def work(each: PlannedTrial) -> None:
        running.append(each.index)
        counts.append(len(running))
        if each.index < 20:
            limit.grow()
        elif each.index == 60:
            for _ in range(20):
                limit.shrink(0.5)
        if len(running) == 22:
            all_run.set()
        await (all_run.wait() if 20 <= each.index < 42 else asyncio.sleep(0))
        running.remove(each.index)

    async def scenario() -> None:
        async with asyncio.timeout(60):
            await TrialPool(limit).run(trials(200), work)

    all_run = asyncio.Event()
    asyncio.run(scenario())
    assert counts[0] == 1
    assert max(counts) == 22
    assert len(counts) == 200
    assert max(counts[100:]) == 2


def test_cases_are_pulled_as_they_are_needed():
    """A hundred thousand cases are not read ahead."""
    pulled = 0

    async def counted() -> AsyncIterator[PlannedTrial]:
        nonlocal pulled
        async for each in trials(1000):
            pulled += 1
            yield each

    async def work(each: PlannedTrial) -> None:
        assert pulled <= each.index + 5
        await asyncio.sleep(0)

    asyncio.run(TrialPool(ConversationLimit(4, is_fixed=True)).run(counted(), work))
    assert pulled == 1000


def test_stop_cancels_running_trials_and_starts_no_more():
    begun: list[int] = []
    ended: list[int] = []
    executor = TrialPool(ConversationLimit(4, is_fixed=True))

    async def work(each: PlannedTrial) -> None:
        begun.append(each.index)
        if each.index == 3:
            executor.stop()
            return
        await asyncio.sleep(60)
        ended.append(each.index)

    asyncio.run(executor.run(trials(10), work))
    assert begun == [0, 1, 2, 3]
    assert ended == []


def test_an_error_of_one_worker_ends_all_and_is_raised_itself():
    """The error itself, not a group of errors."""

    async def work(each: PlannedTrial) -> None:
        if each.index == 2:
            raise RunStopped("no space left on device")
        await asyncio.sleep(60)

    with pytest.raises(RunStopped, match="no space left"):
        asyncio.run(TrialPool(ConversationLimit(3, is_fixed=True)).run(trials(10), work))


def record(status: Status, case_id: str = "c", trial: int = 1, turns: int = 1, **fields: Any) -> TrialRecord:
    return TrialRecord(case_id, case_id, status, [], [], turns, 1.0, "s", trial, 1, **fields)


def count(cases: int, *records: TrialRecord, of: int = 1, min_pass: float | None = None) -> RunSummary:
    tally = RunTally(cases, PassRule(min_pass))
    for each in records:
        tally.count_trial(each, total=of)
    return tally.summary()


def test_the_summary_counts_cases_and_turns():
    summary = count(
        7, record("passed", "a", turns=3), record("failed", "b"), record("error", "c"), record("skipped", "d", turns=0)
    )
    assert (summary.total, summary.passed, summary.failed, summary.errors, summary.skipped, summary.not_run) == (
        7,
        1,
        1,
        1,
        1,
        3,
    )  # N34
    assert (summary.total_turns, summary.avg_turns) == (5, 1.25)


def test_faults_are_counted_by_trial():
    infra = [record("error", case_id, fault="infra") for case_id in "ab"]
    assert count(4, *infra, record("failed", "c", fault="agent"), record("passed", "d")).faults == {
        "agent": 1,
        "infra": 2,
    }  # N17


def test_the_trials_of_a_case_count_as_one_case():
    trials_ = [record("passed", trial=1), record("failed", trial=2), record("passed", trial=3)]
    assert count(1, *trials_, of=3).failed == 1  # N33
    assert count(1, *trials_, of=3, min_pass=0.6).passed == 1
    unfinished = count(2, *trials_[:1], of=3)
    assert (unfinished.passed, unfinished.errors, unfinished.not_run) == (0, 1, 1)
    assert count(2, *trials_[:2], of=3).failed == 1
    assert count(1, record("passed"), record("error", trial=2), of=2).errors == 1
    assert count(1, record("error"), record("error", trial=2), of=2).errors == 1


def test_trials_that_are_missing_cannot_change_what_is_decided():  # N33
    two = [record("passed", trial=number) for number in (1, 2)]
    assert count(1, *two, of=3, min_pass=0.6).passed == 1
    assert count(1, *two, of=4, min_pass=0.6).errors == 1


def test_usage_and_checks_are_added_up():  # N34
    held, broken = {"passed": True}, {"passed": False}
    used, unpriced = Usage(calls=1, input_tokens=10, output_tokens=4, cost_usd=0.5), Usage(calls=2, input_tokens=1)
    first, second = record("failed", "a", usage=used, checks=4), record("passed", "b", usage=unpriced, checks=1)
    first.final_assertions, second.final_assertions = [held, broken, broken, broken], [held]
    summary = count(2, first, second)
    assert (summary.input_tokens, summary.output_tokens) == (11, 4)
    assert (summary.cost_usd, summary.unpriced_calls) == (0.5, 2)
    assert (summary.checks, summary.checks_passed) == (5, 2)


def test_only_an_empty_shard_may_run_nothing():  # N35
    assert exit_code(count(0), None) == 5
    assert exit_code(count(0), None, may_be_empty=True) == 0
    assert exit_code(count(1), None, may_be_empty=True) == 1


def test_undecided_cases_are_counted_apart_from_failures_and_errors():
    tally = RunTally(4, PassRule(0.9, SequentialTest(min_pass=0.9, max_runs=4, margin=0.8)))
    for case, statuses in {"a": "ffff", "b": "pf", "c": "ee", "d": "pfpf"}.items():
        for number, status in enumerate(statuses, 1):
            tally.count_trial(record({"f": "failed", "p": "passed", "e": "error"}[status], case, number), total=4)  # pyright: ignore[reportArgumentType]
    summary = tally.summary()
    assert (summary.failed, summary.undecided, summary.errors, summary.not_run) == (1, 2, 1, 0)  # N37
    single = RunTally(1, PassRule(0.9, SequentialTest(min_pass=0.9, max_runs=1, margin=0.8, alpha=0.2)))
    single.count_trial(record("failed"), total=1)
    assert (single.summary().failed, single.summary().undecided) == (0, 1)  # one trial decides nothing here
    assert exit_code(structs.replace(count(1, record("passed")), undecided=1), None) == 1


@pytest.mark.parametrize(
    ("records", "min_pass", "lost"),
    [
        (["failed"], None, 1),
        (["error"], None, 1),
        (["passed", "failed", "passed"], None, 2),
        (["failed", "passed", "error"], 0.8, None),
        (["failed", "failed", "passed", "failed"], 0.8, 4),
        (["skipped"] * 10, None, None),
    ],
)
def test_fail_fast_stops_with_the_trial_that_loses_the_case(
    records: list[Status], min_pass: float | None, lost: int | None
):
    watch = FailFast(PassRule(min_pass))
    found = [n for n, status in enumerate(records, 1) if watch.makes_case_fail(record(status, trial=n), 10)]
    assert found == ([] if lost is None else [lost])  # N33


def test_a_resumed_run_does_not_stop_again_for_a_case_that_had_lost_before():
    watch = FailFast(PassRule(), [record("failed")])
    assert not watch.makes_case_fail(record("failed", trial=2), 10)
    assert FailFast(PassRule(0.5), [record("failed")]).makes_case_fail(record("failed", trial=2), 3)


@pytest.mark.parametrize(
    ("records", "stopped", "code"),
    [
        ([record("passed")], None, 0),
        ([record("passed"), record("skipped", "d")], None, 0),
        ([record("skipped", error="because")], None, 0),
        ([record("failed")], None, 1),
        ([record("error")], None, 1),
        ([record("passed"), record("error", "d")], None, 1),
        ([record("passed")], "interrupted", 2),
        ([record("failed")], "interrupted", 2),
        ([record("passed")], "budget", 1),
        ([record("passed")], "broken", 1),
        ([], None, 5),
        ([record("skipped", unchecked=True)], None, 5),
        ([record("skipped", unchecked=True), record("skipped", "d", unchecked=True)], None, 5),
        ([record("skipped", unchecked=True), record("skipped", "d", error="because")], None, 0),
        ([record("skipped", error="nothing was checked")], None, 0),
        ([record("passed"), record("skipped", "d", unchecked=True)], None, 0),
    ],
)
def test_exit_codes_follow_from_the_summary(records: list[TrialRecord], stopped: StopReason | None, code: int):
    assert exit_code(count(len(records), *records), stopped) == code  # N35, N11


def test_cases_that_did_not_run_are_not_a_success():
    assert exit_code(count(3, record("passed")), None) == 1


class Listener:
    """A sink that stores what it gets; raises on `breaks_on`."""

    def __init__(self, *, live: bool = False, breaks_on: type[Event] | None = None) -> None:
        self.live = live
        self.breaks_on = breaks_on
        self.received: list[Event] = []

    def receive(self, events: Sequence[Event]) -> None:
        for event in events:
            if self.breaks_on is not None and isinstance(event, self.breaks_on):
                raise RuntimeError("cannot listen")
            self.received.append(event)


def test_turn_events_go_to_live_sinks_only(tmp_path: Path):
    live, late = Listener(live=True), Listener()
    journal = Journal(tmp_path / "j")
    bus = EventBus([journal], [live, late])
    bus.emit(TurnStarted(record("passed").key, 1, "hi", "static"))
    bus.emit(Note("done"))
    journal.close()
    assert len(live.received) == 2
    assert late.received == [Note("done")]
    assert (tmp_path / "j").read_text().count("\n") == 1
    assert bus.live
    assert not EventBus((), [late]).live


def test_a_sink_that_raises_is_removed_and_the_others_get_a_warning():
    broken, other = Listener(breaks_on=Note), Listener()
    bus = EventBus((), [broken, other])
    bus.emit(Note("one"))
    bus.emit(Note("two"))
    assert broken not in bus
    assert other in bus
    first, warning, second = other.received
    assert (first, second) == (Note("one"), Note("two"))
    assert isinstance(warning, Note)
    assert (warning.level, warning.text) == (
        "warning",
        "Listener failed and gets no more events: RuntimeError: cannot listen",
    )


def test_events_are_stored_before_they_are_sent(tmp_path: Path):
    """An event that cannot be stored reaches no sink."""
    journal = Journal(tmp_path / "j")
    listener = Listener()
    journal.close()
    with pytest.raises(RunStopped):
        EventBus([journal], [listener]).emit(Note("x"))
    assert listener.received == []


class Writes:
    """An event store that keeps its batches; from batch `breaks_at` on it raises."""

    def __init__(self, breaks_at: int = 99) -> None:
        self.batches: list[tuple[Event, ...]] = []
        self.breaks_at = breaks_at

    def append(self, *events: Event) -> None:
        if len(self.batches) + 1 >= self.breaks_at:
            raise RunStopped("disk full")
        self.batches.append(events)


def over(name: str) -> TrialEnded:
    ended = record("passed", name)
    return TrialEnded(ended.key, 0, 1, ended)


def test_trials_that_end_in_one_step_are_stored_together_and_then_sent():
    event_store, listener = Writes(), Listener()
    a, b, c, d = map(over, "abcd")

    async def scenario() -> None:
        bus = EventBus([event_store], [listener])
        bus.emit(a)
        bus.emit(b)
        assert event_store.batches == listener.received == []
        await asyncio.sleep(0)
        assert event_store.batches == [(a, b)]
        assert listener.received == [a, b]
        bus.emit(c)
        bus.emit(Note("and"))  # other events come after it
        bus.emit(d)
        bus.flush()

    asyncio.run(scenario())
    assert event_store.batches == [(a, b), (c,), (Note("and"),), (d,)]
    assert listener.received == [a, b, c, Note("and"), d]


def test_a_store_that_raises_at_the_end_of_a_step_stops_the_run():
    event_store, listener, stopped = Writes(breaks_at=2), Listener(), list[str]()

    async def scenario() -> None:
        bus = EventBus([event_store], [listener], lambda: stopped.append("stop"))
        bus.emit(over("a"))
        await asyncio.sleep(0)
        bus.emit(over("b"))
        bus.emit(over("c"))
        await asyncio.sleep(0)
        assert stopped == ["stop"]
        with pytest.raises(RunStopped, match="disk full"):
            bus.flush()

    asyncio.run(scenario())
    assert [event.key.case for event in listener.received if isinstance(event, TrialEnded)] == ["a"]


@pytest.mark.parametrize(
    ("layers", "result"),
    [
        (({"a": 1}, {"a": 2, "b": 3}), {"a": 2, "b": 3}),
        (({"skip": {"x": 1}}, {"skip": {"y": 2}}), {"skip": {"y": 2}}),
        (({"metadata": {"x": 1, "y": 1}}, {"metadata": {"y": 2}}), {"metadata": {"x": 1, "y": 2}}),
        (({"metadata": {"x": {"deep": 1}}}, {"metadata": {"x": {"other": 2}}}), {"metadata": {"x": {"other": 2}}}),
        (({"metadata": None}, {"metadata": {"y": 2}}), {"metadata": {"y": 2}}),
        (({}, {"a": None}), {"a": None}),
    ],
)
def test_options_merge_by_key_and_metadata_key_by_key(layers: Any, result: dict[str, Any]):
    assert merge_options(*layers) == result  # N20


@pytest.mark.parametrize(
    ("limits", "own", "due"),
    [
        (Limits(), None, None),
        (Limits(turn_timeout_s=5), None, 5),
        (Limits(turn_timeout_s=5), 2, 2),
        (Limits(turn_timeout_s=5, overrides_message_timeouts=True), 2, 5),
        (Limits(turn_timeout_s=5, overrides_message_timeouts=True), None, 5),
    ],
)
def test_the_reply_timeout_is_that_of_the_flag_else_the_turn_else_the_case(
    limits: Limits, own: float | None, due: float | None
):
    assert limits.reply_timeout_s(own) == due  # N18

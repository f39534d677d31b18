"""Properties of many parallel trials: for any number, any outcomes and any moment at which the run is stopped."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from running import run_cases
from viva.engine.trial_pool import TrialPool
from viva.llm.pacing import ConversationLimit
from viva.model.case import Case
from viva.model.event import RunSummary
from viva.protocols import PlannedTrial
from viva.users.script import Script

ENDS = {"pass": "passed", "fail": "failed", "raise": "failed", "skip": "skipped", "bare": "skipped"}
kinds = st.sampled_from(list(ENDS))


@given(
    st.integers(0, 30),
    st.integers(1, 8),
    st.lists(st.integers(0, 3), min_size=30, max_size=30),
    st.none() | st.integers(0, 29),
)
def test_each_trial_runs_once_in_order_and_never_too_many_at_once(
    count: int, parallel: int, steps: list[int], stop_at: int | None
):
    running: set[int] = set()
    begun: list[int] = []
    ended: set[int] = set()
    executor = TrialPool(ConversationLimit(parallel, is_fixed=True))
    stopped = False

    async def trials() -> AsyncIterator[PlannedTrial]:
        for index in range(count):
            yield PlannedTrial(Case(id=str(index), user=Script(())), index)

    async def work(each: PlannedTrial) -> None:
        nonlocal stopped
        assert not stopped, "a trial began after the stop"
        begun.append(each.index)
        running.add(each.index)
        assert len(running) <= parallel
        try:
            for _ in range(steps[each.index]):
                await asyncio.sleep(0)
        finally:
            running.discard(each.index)
        ended.add(each.index)
        if each.index == stop_at:
            stopped = True
            executor.stop()

    asyncio.run(executor.run(trials(), work))
    assert begun == list(range(len(begun)))
    assert not running
    if stop_at is None or stop_at >= count:
        assert begun == list(range(count))
        assert ended == set(begun)
    else:
        assert stop_at in ended


def case(index: int, kind: str) -> dict[str, Any]:
    checks = {} if kind == "bare" else {"assertions": [{"type": "contains", "value": "ok"}]}
    return {"id": f"c{index}", "input": kind, **checks, **({"skip": True} if kind == "skip" else {})}


async def agent(messages: list[Any]) -> str:
    kind = messages[-1]["content"]
    await asyncio.sleep(0)
    if kind == "raise":
        raise ValueError
    return "no." if kind == "fail" else "ok."


def told(summary: RunSummary) -> dict[str, int]:
    return {"passed": summary.passed, "failed": summary.failed, "error": summary.errors, "skipped": summary.skipped}


@settings(max_examples=40)
@given(st.lists(kinds, min_size=1, max_size=12), st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_counts_add_up_and_every_outcome_has_its_record(
    kinds: Sequence[str], parallel: int, runs: int, fail_fast: bool
):
    result = run_cases(
        [case(i, kind) for i, kind in enumerate(kinds)],
        agent,
        parallel=parallel,
        runs=runs,
        fail_fast=fail_fast,
        history=False,
    )
    records = list(result.records())
    summary = result.summary
    assert [(r.id, r.trial) for r in records] == sorted(
        ((r.id, r.trial) for r in records), key=lambda k: (int(k[0][1:]), k[1])
    )  # N19
    for record in records:
        assert record.status == ENDS[kinds[int(record.id[1:])]]
    assert sum(told(summary).values()) + summary.not_run == summary.total == len(kinds)  # N34
    assert sum(summary.trials.values()) == len(records)
    failing = {"fail", "raise"} & set(kinds)
    if not (fail_fast and failing):
        assert len(records) == len(kinds) * runs
        expected = [ENDS[kind] for kind in kinds]
        assert told(summary) == {status: expected.count(status) for status in told(summary)}
        assert summary.not_run == 0
    checked = bool(set(kinds) - {"bare"})
    assert result.exit_code == (1 if failing else 0 if checked else 5)  # N35

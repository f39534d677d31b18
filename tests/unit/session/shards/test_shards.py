"""Shards: how cases are shared out."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from viva.model.case import Case
from viva.protocols import PlannedTrial
from viva.session.options.run_options import RUN_OPTIONS
from viva.session.shards.shard import Shard, compute_shard_number, filter_by_hash, select_by_time
from viva.users.script import Script

CASES = [Case(id=f"c{number}", suite="s", user=Script(())) for number in range(200)]


@pytest.mark.parametrize("text", ["9/8", "0/8", "1/0", "8", "1/8/2", "-1/8", "1.0/2", "", "a/b", "1/1000000000000"])
def test_a_shard_that_does_not_exist_is_refused(text: str):
    with pytest.raises(ValueError, match=r"is not a shard|there is no shard|at least one shard"):
        Shard.parse(text)


def test_every_case_is_in_exactly_one_shard_and_stays_in_it():
    selectors = [filter_by_hash(lambda case: case, Shard(number, 8)) for number in range(1, 9)]
    parts = [[case.id for case in CASES if select(case)] for select in selectors]
    assert sorted(case for part in parts for case in part) == sorted(case.id for case in CASES)
    assert all(parts)
    # The hash is part of the contract: machines with different versions of Viva must agree.
    assert [compute_shard_number(case, 8) for case in CASES[:8]] == [4, 4, 8, 8, 7, 1, 2, 8]


def balance(times_ms: Mapping[str, float], count: int, totals: Mapping[str, int] | None = None) -> list[list[str]]:
    names = [*times_ms, "unknown"]

    async def trials() -> AsyncIterator[PlannedTrial]:
        for index, name in enumerate(names):
            total = (totals or {}).get(name, 1)
            for trial in range(1, total + 1):
                yield PlannedTrial(Case(id=name, suite="s", user=Script(())), index, trial, total)

    times = {("s", name): time_ms for name, time_ms in times_ms.items()}
    shards = [asyncio.run(select_by_time(trials(), times, Shard(number, count))) for number in range(1, count + 1)]
    return [[case for _, case in shard] for shard in shards]


def test_shards_by_time_take_equally_long():
    assert balance({"long": 60, "a": 30, "b": 20, "c": 10}, 2) == [["long", "b"], ["a", "c", "unknown"]]
    # The time is that of one trial, so repeats count; a case without a time is an average one.
    assert balance({"a": 10, "b": 10}, 2, {"a": 3}) == [["a"], ["b", "unknown"]]
    assert balance({}, 3) == [["unknown"], [], []]


def test_runs_that_are_merged_agree_in_everything_that_decides_results():
    """A new option is added here, or says that it `may_differ`."""
    assert {name for name, option in RUN_OPTIONS.items() if not option.may_differ} == {
        *(
            "agents",
            "connector",
            "agent_fields",
            "agent_model",
            "simulator",
            "evaluator",
            "format",
            "modes",
            "live",
            "replay_missing",
        ),
        *(
            "timeout_s",
            "turn_timeout_s",
            "retry_faults",
            "runs",
            "min_pass",
            "sequential",
            "shard_by",
            "before",
            "after",
            "agent_fields",
        ),
        *("skip_interactive", "on_missing_input", "workspace", "link_mode", "sandbox", "update_snapshots"),
        *("baseline", "fail_on_regression", "allow_agent_mismatch"),
    }

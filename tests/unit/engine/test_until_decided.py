"""Trials until a sequential test has decided: enough, none wasted, whatever order they end in."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest

from viva.engine.trial_pool import TrialPool
from viva.engine.until_decided import TrialsUntilDecided
from viva.llm.pacing import ConversationLimit
from viva.model.case import Case
from viva.model.record import Status, TrialRecord
from viva.protocols import PlannedTrial
from viva.stats.pass_rule import PassRule
from viva.stats.sequential import SequentialTest
from viva.users.script import Script

RULE = PassRule(0.9, SequentialTest(min_pass=0.9, max_runs=20, alpha=0.05, beta=0.1, margin=0.2))


async def plan(*cases: str) -> AsyncIterator[PlannedTrial]:
    for number, case in enumerate(cases):
        for trial in range(1, 21):
            yield PlannedTrial(Case(id=case, suite="s", user=Script(())), number * 20 + trial - 1, trial, 20)


def record(case: str, trial: int, status: Status) -> TrialRecord:
    return TrialRecord(case, case, status, [], [], 1, 1.0, "s", trial, 1)


class Run:
    """Runs trials with the statuses of `outcome`, each after a random number of steps of the event loop."""

    def __init__(self, outcome, *cases: str, parallel: int = 1, earlier: tuple[TrialRecord, ...] = ()) -> None:
        self.outcome = outcome
        self.started: list[PlannedTrial] = []
        self.ended: dict[str, dict[int, Status]] = {}
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        asyncio.run(self._run(cases, parallel, earlier))

    async def _run(self, cases: tuple[str, ...], parallel: int, earlier: tuple[TrialRecord, ...]) -> None:
        deciding, random = TrialsUntilDecided(plan(*cases), RULE, earlier), Random(3)

        async def work(planned: PlannedTrial) -> None:
            case, trial = planned.case.id, planned.trial
            self.started.append(planned)
            self._now[case] += 1
            self.most[case] = max(self.most[case], self._now[case])
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0)
            self._now[case] -= 1
            status: Status = self.outcome(case, trial)
            self.ended.setdefault(case, {})[trial] = status
            deciding.on_trial_ended(record(case, trial, status))

        async with asyncio.timeout(10):
            await TrialPool(ConversationLimit(parallel, is_fixed=True)).run(deciding.yield_due_trials(), work)

    def trials(self, case: str) -> list[int]:
        return [planned.trial for planned in self.started if planned.case.id == case]


@pytest.mark.parametrize("parallel", [1, 4, 9])
def test_a_case_runs_until_it_is_decided_and_no_further(parallel: int):
    run = Run(lambda case, _: "passed" if case == "good" else "failed", "good", "bad", parallel=parallel)
    assert run.trials("good") == list(range(1, 13))
    assert run.trials("bad") == [1, 2, 3]
    assert {planned.index - planned.trial for planned in run.started if planned.case.id == "bad"} == {19}


def test_what_is_needed_anyway_runs_at_once():
    """After the first trial passed, three failures at least are needed for any decision."""
    run = Run(lambda *_: "passed", "good", parallel=8)
    assert 1 < run.most["good"] <= 5
    assert len(run.started) == 12


def test_errors_use_up_trials_but_decide_nothing():
    run = Run(lambda *_: "error", "ill")
    assert len(run.started) <= 20
    assert RULE.decide([run.ended["ill"][n] for n in sorted(run.ended["ill"])]) == "undecided"


def test_the_last_trial_runs_if_it_can_still_decide():
    """After eight errors only twelve passes in a row are a decision."""
    run = Run(lambda _, trial: "error" if trial <= 8 else "passed", "late")
    assert run.trials("late") == list(range(1, 21))
    assert RULE.decide([run.ended["late"][n] for n in range(1, 21)]) == "passes"  # N37


def test_a_skipped_case_is_tried_once():
    assert Run(lambda *_: "skipped", "off", parallel=4).trials("off") == [1]


def test_a_case_that_is_skipped_now_and_then_runs_until_it_is_decided():
    """Such as one with `on_missing_input: skip` whose agent sometimes asks back."""
    run = Run(lambda _, trial: "skipped" if trial == 3 else "passed", "asks", parallel=1)
    assert run.trials("asks") == list(range(1, 14))


def test_a_resumed_run_continues_with_the_trials_that_it_has():
    earlier = (*(record("good", n, "passed") for n in (1, 2, 4)), *(record("bad", n, "failed") for n in (1, 2, 3)))
    run = Run(lambda *_: "passed", "good", "bad", earlier=earlier)
    assert run.trials("good") == [3, 5, 6, 7, 8, 9, 10, 11, 12]
    assert run.trials("bad") == []


def test_many_cases_in_parallel_all_come_to_a_decision():
    random = Random(7)
    outcomes: dict[tuple[str, int], Status] = {}

    def outcome(case: str, trial: int) -> Status:
        chance = int(case) / 20
        found: Status = "passed" if random.random() < chance else "failed"
        return outcomes.setdefault((case, trial), found)

    run = Run(outcome, *map(str, range(21)), parallel=6)
    for case, ended in run.ended.items():
        assert RULE.decide([ended[trial] for trial in sorted(ended)]) is not None, case
        assert sorted(ended) == list(range(1, len(ended) + 1))

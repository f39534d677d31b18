"""Counts ended trials and cases, and derives the exit code."""

import time
from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from viva.engine.thresholds import SuiteTally
from viva.model.case import Key
from viva.model.event import Event, RunSummary, StopReason, TrialEnded, TrialRetried
from viva.model.message import Usage
from viva.model.record import Cell, Status, TrialRecord
from viva.stats.pass_rule import PassRule

_ALL_MUST_PASS = PassRule()


class RunTally:
    """Counts trials as they end, and cases as their last trial ends; a case counts once for each agent.

    It is an event store, so it counts exactly the events that are journaled.
    """

    def __init__(
        self,
        cases: int,
        rule: PassRule = _ALL_MUST_PASS,
        suites: Sequence[SuiteTally] = (),
        *,
        earlier_ms: float = 0.0,
    ) -> None:
        """`earlier_ms` is how long the earlier parts of a resumed run took."""
        self._cases = cases
        self._earlier_ms = earlier_ms
        self._rule = rule
        self._suites = {(suite.suite, suite.agent): suite for suite in suites}
        self._started = time.perf_counter()
        self._statuses: Counter[Status] = Counter()
        self._trials: Counter[Status] = Counter()
        self._faults: Counter[str] = Counter()
        self._unfinished_cases: dict[Cell, dict[int, Status]] = {}
        self._planned_trials: dict[Cell, int] = {}
        self._turns = self._checks = self._failed_checks = self._unchecked = 0
        self._input_tokens = self._output_tokens = self._unpriced = 0
        self._cost: float | None = None
        self._retried: set[Key] = set()
        self._retried_turns = 0

    def append(self, *events: Event) -> None:
        for event in events:
            if isinstance(event, TrialEnded):
                self.count_trial(event.record, total=event.of)
            elif isinstance(event, TrialRetried):
                self.count_retried_attempt(event)

    def count_retried_attempt(self, event: TrialRetried) -> None:
        """Count the usage of an attempt that is retried; it has no outcome."""
        key = event.key
        if (suite := self._suites.get((key.suite, key.agent))) is not None:
            suite.add_retry_cost(event.usage)
        self._retried.add(structs.replace(key, attempt=1))
        self._retried_turns += event.turns
        self._count_usage(event.usage)

    def count_trial(self, record: TrialRecord, *, total: int = 1) -> None:
        if (suite := self._suites.get((record.suite, record.agent or ""))) is not None:
            suite.count_trial(record)
        self._trials[record.status] += 1
        self._turns += record.total_turns
        self._checks += record.checks
        self._failed_checks += _count_checks_not_passed(record)
        if record.fault is not None:
            self._faults[record.fault] += 1
        if record.trial == 1 and record.unchecked:
            self._unchecked += 1
        self._count_usage(record.usage)
        if total == 1 and self._rule.test is None:
            self._statuses[record.status] += 1
            return
        name = record.cell
        trials = self._unfinished_cases.setdefault(name, {})
        trials[record.trial] = record.status
        self._planned_trials[name] = total
        if len(trials) == total and self._rule.test is None:
            del self._planned_trials[name]
            self._statuses[self._rule.status(_ordered_statuses(self._unfinished_cases.pop(name)))] += 1

    def _count_usage(self, usage: Usage | None) -> None:
        if usage is None:
            return
        self._input_tokens += usage.input_tokens
        self._output_tokens += usage.output_tokens
        self._unpriced += usage.calls_without_price
        if (cost_usd := usage.least_cost_usd) is not None:
            self._cost = (self._cost or 0.0) + cost_usd

    def summary(self) -> RunSummary:
        """The counts so far. A case with trials that never ran is an error, unless the others decide it."""
        statuses = self._statuses.copy()
        undecided = 0
        for name, by_number in self._unfinished_cases.items():
            trials = _ordered_statuses(by_number)
            if self._rule.is_undecided(trials):
                undecided += 1
            else:
                statuses[self._rule.status(trials, self._planned_trials[name] - len(trials))] += 1
        trials_run = sum(self._trials.values())
        return RunSummary(
            total=self._cases,
            passed=statuses["passed"],
            failed=statuses["failed"],
            errors=statuses["error"],
            skipped=statuses["skipped"],
            not_run=self._cases - undecided - sum(statuses.values()),
            unchecked=self._unchecked,
            total_turns=self._turns + self._retried_turns,
            avg_turns=round(self._turns / trials_run, 2) if trials_run else 0.0,
            duration_ms=round(self._earlier_ms + (time.perf_counter() - self._started) * 1e3, 1),
            checks=self._checks,
            checks_passed=self._checks - self._failed_checks,
            trials=dict(self._trials),
            faults=dict(self._faults),
            retried=len(self._retried),
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            cost_usd=self._cost,
            unpriced_calls=self._unpriced,
            undecided=undecided,
            suites=tuple(suite.summary() for suite in self._suites.values()),
        )


def _ordered_statuses(trials: dict[int, Status]) -> list[Status]:
    """Statuses in the order of the trials' start."""
    return [trials[number] for number in sorted(trials)]


def _count_checks_not_passed(record: TrialRecord) -> int:
    failed = sum(result["passed"] is not True for turn in record.turns for result in turn.assertions)
    failed += sum(result["passed"] is not True for result in record.final_assertions)
    return failed + (sum(not checkpoint.reached for checkpoint in record.checkpoints or ()) if record.turns else 0)


def exit_code(summary: RunSummary, stopped: StopReason | None, *, may_be_empty: bool = False) -> int:
    """Pytest's codes: 0 passed; 1 failed, error, stopped or a report lost; 2 interrupted; 5 nothing ran or was checked.

    A report that cannot be written later changes the code. A suite with a threshold passes by that threshold, whatever
    single cases do; errors still fail it. `may_be_empty`: this is a shard, so no case at all is a success.
    """
    if stopped == "interrupted":
        return 2
    failed = summary.failed - sum(suite.failed_cases for suite in summary.suites)
    unfinished = summary.errors or summary.undecided or summary.not_run
    if failed or unfinished or stopped is not None:
        return 1
    if any(suite.failures for suite in summary.suites):
        return 1
    if may_be_empty and not summary.total:
        return 0
    decided = summary.passed + summary.failed
    return 5 if not decided and summary.unchecked == summary.skipped else 0

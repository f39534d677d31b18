"""Runs the trials of each case only until a sequential test has decided it, several cases at a time.

A case never has more trials running than the next decision needs at least, so no trial is wasted.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable

from msgspec import structs

from viva.model.record import Cell, Status, TrialRecord
from viva.protocols import PlannedTrial
from viva.stats.pass_rule import PassRule


class CaseProgress:
    """The trials of one case on one agent: which have started, and the statuses of the ended ones."""

    def __init__(self, first: PlannedTrial, rule: PassRule, ended: dict[int, Status]) -> None:
        self._first = first
        self._rule = rule
        self._ended_statuses = ended
        self._started = set(ended)
        self._update_decision()

    def start_next_trial(self) -> PlannedTrial | None:
        """The next trial, if one more is surely needed."""
        running = len(self._started) - len(self._ended_statuses)
        if self.is_decided or running >= self._needed:
            return None
        trial = next(n for n in range(1, self._first.total + 2) if n not in self._started)
        if trial > self._first.total:
            return None
        self._started.add(trial)
        return structs.replace(self._first, index=self._first.index + trial - 1, trial=trial)

    def record_trial_end(self, trial: int, status: Status) -> None:
        self._ended_statuses[trial] = status
        self._update_decision()

    def _update_decision(self) -> None:
        self.is_decided = self._rule.needs_no_more_trials(self._ordered_statuses())
        self._needed = self._rule.min_trials_left(list(self._ended_statuses.values())) if self._ended_statuses else 1

    def _ordered_statuses(self) -> list[Status]:
        """Statuses in the order of the trials' start, up to the first trial that is still running."""
        statuses: list[Status] = []
        while (status := self._ended_statuses.get(len(statuses) + 1)) is not None:
            statuses.append(status)
        return statuses


class TrialsUntilDecided:
    """Yields the trials of planned cases as they become due. `on_trial_ended` must be called for each of them."""

    def __init__(
        self, planned_trials: AsyncIterator[PlannedTrial], rule: PassRule, earlier_records: Iterable[TrialRecord]
    ) -> None:
        self._planned_trials = planned_trials
        self._rule = rule
        self._cases: dict[Cell, CaseProgress] = {}
        self._earlier: dict[Cell, dict[int, Status]] = {}
        self._changed = asyncio.Event()
        for record in earlier_records:
            self._earlier.setdefault(record.cell, {})[record.trial] = record.status

    async def yield_due_trials(self) -> AsyncGenerator[PlannedTrial]:
        new_cases = self._start_cases()
        has_more = True
        while True:
            due = next((due for case in self._cases.values() if (due := case.start_next_trial()) is not None), None)
            if due is not None:
                yield due
                continue
            self._cases = {name: case for name, case in self._cases.items() if not case.is_decided}
            if has_more:
                has_more = await anext(new_cases, None) is not None
            elif self._cases:
                self._changed.clear()
                await self._changed.wait()
            else:
                return

    def on_trial_ended(self, record: TrialRecord) -> None:
        if (case := self._cases.get(record.cell)) is not None:
            case.record_trial_end(record.trial, record.status)
        self._changed.set()

    async def _start_cases(self) -> AsyncGenerator[CaseProgress]:
        async for planned in self._planned_trials:
            if planned.trial == 1:
                case = CaseProgress(planned, self._rule, self._earlier.pop(planned.cell, {}))
                self._cases[planned.cell] = case
                yield case

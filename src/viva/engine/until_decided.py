"""Runs each case only until a sequential test has decided on it, several cases at once.

No trial is wasted: of a case, only as many trials are under way as are needed in any case before the next decision.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable

from viva.model.record import Status, TrialRecord
from viva.protocols import PlannedTrial
from viva.stats.pass_rule import PassRule


class CaseTrials:
    """The trials of one case: which have ended how, and which have been started."""

    def __init__(self, first: PlannedTrial, rule: PassRule, ended: dict[int, Status]) -> None:
        self._first = first
        self._rule = rule
        self._ended = ended
        self._started = set(ended)
        self._update()

    def next(self) -> PlannedTrial | None:
        """The next trial, if one can be started now that will be needed."""
        under_way = len(self._started) - len(self._ended)
        if self.is_decided or under_way >= self._needed:
            return None
        trial = next(n for n in range(1, self._first.total + 2) if n not in self._started)
        if trial > self._first.total:
            return None
        self._started.add(trial)
        return PlannedTrial(self._first.case, self._first.index + trial - 1, trial, self._first.total)

    def end(self, trial: int, status: Status) -> None:
        self._ended[trial] = status
        self._update()

    def _update(self) -> None:
        """What follows from the trials that have ended: is the case decided, and how many more does it take at the least?"""
        self.is_decided = self._rule.is_over(self._in_order())
        self._needed = self._rule.min_trials_left(list(self._ended.values())) if self._ended else 1

    def _in_order(self) -> list[Status]:
        """Outcomes in the order of the trials' start, as far as no trial before them is still under way."""
        known: list[Status] = []
        while (status := self._ended.get(len(known) + 1)) is not None:
            known.append(status)
        return known


class TrialsUntilDecided:
    """Yields trials of planned cases as they become due; wants to hear how each of them ended."""

    def __init__(self, plan: AsyncIterator[PlannedTrial], rule: PassRule, past: Iterable[TrialRecord] = ()) -> None:
        self._plan = plan
        self._rule = rule
        self._series: dict[tuple[str, str], CaseTrials] = {}
        self._past: dict[tuple[str, str], dict[int, Status]] = {}
        self._changed = asyncio.Event()
        for record in past:
            self._past.setdefault((record.suite, record.id), {})[record.trial] = record.status

    async def trials(self) -> AsyncGenerator[PlannedTrial]:
        cases = self._cases()
        more = True
        while True:
            due = next((due for series in self._series.values() if (due := series.next()) is not None), None)
            if due is not None:
                yield due
                continue
            self._series = {name: series for name, series in self._series.items() if not series.is_decided}
            if more:
                more = await anext(cases, None) is not None
            elif self._series:
                self._changed.clear()
                await self._changed.wait()
            else:
                return

    def on_trial_ended(self, record: TrialRecord) -> None:
        if (series := self._series.get((record.suite, record.id))) is not None:
            series.end(record.trial, record.status)
        self._changed.set()

    async def _cases(self) -> AsyncGenerator[CaseTrials]:
        """Opens one case after the other."""
        async for planned in self._plan:
            if planned.trial == 1:
                name = (planned.case.suite, planned.case.id)
                series = CaseTrials(planned, self._rule, self._past.pop(name, {}))
                self._series[name] = series
                yield series

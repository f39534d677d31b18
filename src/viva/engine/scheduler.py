"""Many trials: repeats, retries of what was not the agent's fault, fail-fast, and the tally of how they ended."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

from viva.engine.summary import Tally
from viva.engine.trial import Stage, run_trial
from viva.errors import BadInput, RunStopped
from viva.model.case import Case, Suite
from viva.model.event import Stopped, TrialEnded, TrialRetried
from viva.model.record import Status, TrialRecord
from viva.protocols import Executor, Planned
from viva.stats.deciding import Rule


class FailFast:
    """Tells when a case has lost: from then on it cannot pass, whatever its other trials come to.

    A trial that fails does not end a run in which its case can still pass with `--min-pass`. `past` are the trials of an
    earlier part of the same run: what was lost there does not stop the run again.
    """

    def __init__(self, rule: Rule, past: Iterable[TrialRecord] = ()) -> None:
        self._rule = rule
        self._trials: dict[tuple[str, str], list[Status]] = {}
        for record in past:
            self._trials.setdefault((record.suite, record.id), []).append(record.status)

    def has_lost(self, record: TrialRecord, planned: int) -> bool:
        """Is this the trial with which its case, of so many planned trials, has lost?"""
        name = (record.suite, record.id)
        before = self._trials.pop(name, [])
        trials: list[Status] = [*before, record.status]
        if len(trials) < planned:
            self._trials[name] = trials
        return self._rule.can_pass(before, planned) and not self._rule.can_pass(trials, planned)


@dataclass
class Scheduler:
    """Runs what is planned. `stop` ends it early: running trials are cancelled and count as not run."""

    stage: Stage
    executor: Executor
    tally: Tally
    fail_fast: FailFast | None = None
    retry_faults: int = 0
    stopped: Stopped | None = None
    ended: Callable[[TrialRecord], None] = lambda _record: None

    async def run(self, trials: AsyncIterator[Planned]) -> None:
        self.stage.bus.stop = self.executor.stop
        try:
            await self.executor.run(trials, self._work)
        finally:
            self.stage.bus.settle()

    def stop(self, why: Stopped) -> None:
        self.stopped = self.stopped or why
        self.executor.stop()

    async def _work(self, planned: Planned) -> None:
        record = await self._attempt(planned, 1)
        for attempt in range(2, 2 + self.retry_faults):
            if record.status != "error" or record.deterministic or not self.stage.may_retry(record.key):
                break
            self.stage.bus.emit(_retried(record, planned.index))
            record = await self._attempt(planned, attempt)
        self.stage.bus.emit(TrialEnded(record.key, planned.index, planned.of, record))
        self.ended(record)
        if self.fail_fast is not None and self.fail_fast.has_lost(record, planned.of):
            self.stop("fail_fast")

    async def _attempt(self, planned: Planned, attempt: int) -> TrialRecord:
        """One that may be run again leaves no workspace behind for its error: no record could say where that is."""
        keep = ("failed", "error") if attempt > self.retry_faults else ("failed",)
        return await run_trial(self.stage, planned, attempt, keep)


def _retried(record: TrialRecord, index: int) -> TrialRetried:
    return TrialRetried(
        record.key,
        index,
        record.total_turns,
        fault=record.fault,
        error=record.error,
        usage=record.usage,
        workspace=record.workspace,
    )


async def plan(suites: Sequence[Suite], wanted: Callable[[Case], Case | None], runs: int) -> AsyncIterator[Planned]:
    """Every trial that is due, in input order, one case decoded at a time; `wanted` leaves cases out or adapts them."""
    index = 0
    for suite in suites:
        async for found in _pulled(suite):
            case = wanted(found)
            if case is None:
                continue
            of = case.runs or runs
            for trial in range(1, of + 1):
                yield Planned(case, index, trial, of)
                index += 1


async def _pulled(suite: Suite) -> AsyncIterator[Case]:
    """The suite's cases. One that cannot be read any more, since its file changed, ends the run; what is done is kept."""
    try:
        async for case in suite.cases():
            yield case
    except BadInput as changed:
        raise RunStopped(str(changed)) from changed

"""Many trials: repeats, retries of what was not the agent's fault, fail-fast, and the tally of how they ended."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

from viva.engine.summary import RunTally
from viva.engine.trial import RunContext, run_trial
from viva.errors import BadInput, RunStopped
from viva.model.case import Case, Suite
from viva.model.event import StopReason, TrialEnded, TrialRetried
from viva.model.record import Status, TrialRecord
from viva.protocols import Executor, PlannedTrial
from viva.stats.pass_rule import PassRule


class FailFast:
    """Tells when a case has lost: from then on it cannot pass, whatever its other trials come to.

    A trial that fails does not end a run in which its case can still pass with `--min-pass`. `past` are the trials of an
    earlier part of the same run: what was lost there does not stop the run again.
    """

    def __init__(self, rule: PassRule, earlier: Iterable[TrialRecord] = ()) -> None:
        self._rule = rule
        self._trials: dict[tuple[str, str], list[Status]] = {}
        for record in earlier:
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

    run_context: RunContext
    executor: Executor
    tally: RunTally
    fail_fast: FailFast | None = None
    retry_faults: int = 0
    stop_reason: StopReason | None = None
    on_trial_ended: Callable[[TrialRecord], None] = lambda _record: None

    async def run(self, trials: AsyncIterator[PlannedTrial]) -> None:
        self.run_context.bus.stop = self.executor.stop
        try:
            await self.executor.run(trials, self._work)
        finally:
            self.run_context.bus.flush()

    def stop(self, why: StopReason) -> None:
        self.stop_reason = self.stop_reason or why
        self.executor.stop()

    async def _work(self, planned: PlannedTrial) -> None:
        record = await self._attempt(planned, 1)
        for attempt in range(2, 2 + self.retry_faults):
            if record.status != "error" or record.deterministic or not self.run_context.may_retry(record.key):
                break
            self.run_context.bus.emit(_retried(record, planned.index))
            record = await self._attempt(planned, attempt)
        self.run_context.bus.emit(TrialEnded(record.key, planned.index, planned.total, record))
        self.on_trial_ended(record)
        if self.fail_fast is not None and self.fail_fast.has_lost(record, planned.total):
            self.stop("fail_fast")

    async def _attempt(self, planned: PlannedTrial, attempt: int) -> TrialRecord:
        """One that may be run again leaves no workspace behind for its error: no record could say where that is."""
        keep = ("failed", "error") if attempt > self.retry_faults else ("failed",)
        return await run_trial(self.run_context, planned, attempt, keep)


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


async def plan_trials(
    suites: Sequence[Suite], select: Callable[[Case], Case | None], runs: int
) -> AsyncIterator[PlannedTrial]:
    """Every trial that is due, in input order, one case decoded at a time; `wanted` leaves cases out or adapts them."""
    index = 0
    for suite in suites:
        async for found in _pulled(suite):
            case = select(found)
            if case is None:
                continue
            of = case.runs or runs
            for trial in range(1, of + 1):
                yield PlannedTrial(case, index, trial, of)
                index += 1


async def _pulled(suite: Suite) -> AsyncIterator[Case]:
    """The suite's cases. One that cannot be read any more, since its file changed, ends the run; what is done is kept."""
    try:
        async for case in suite.cases():
            yield case
    except BadInput as changed:
        raise RunStopped(str(changed)) from changed

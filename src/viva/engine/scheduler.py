"""Runs many trials: repeats, retries of errors that are not the agent's fault, and fail-fast."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from viva.engine.event_bus import EventBus
from viva.engine.trial import RunContext, run_trial
from viva.engine.trial_pool import TrialPool
from viva.errors import BadInput, RunStopped
from viva.model.case import Case, Suite
from viva.model.event import StopReason, TrialEnded, TrialRetried
from viva.model.record import Cell, Status, TrialRecord
from viva.protocols import CassetteInfo, Executor, PlannedTrial
from viva.stats.pass_rule import PassRule


class FailFast:
    """Decides when `--fail-fast` stops a run: after the trial that makes its case fail.

    With `--min-pass` a case can pass although one trial failed. `earlier_records` are from before the run was resumed: a case
    that failed there does not stop the run again.
    """

    def __init__(self, rule: PassRule, earlier_records: Iterable[TrialRecord] = ()) -> None:
        self._rule = rule
        self._statuses: dict[Cell, list[Status]] = {}
        for record in earlier_records:
            self._statuses.setdefault(record.cell, []).append(record.status)

    def makes_case_fail(self, record: TrialRecord, planned_trials: int) -> bool:
        """Is this the trial after which its case, with `planned_trials` trials, cannot pass any more?"""
        before = self._statuses.pop(record.cell, [])
        statuses: list[Status] = [*before, record.status]
        if len(statuses) < planned_trials:
            self._statuses[record.cell] = statuses
        return self._rule.can_pass(before, planned_trials) and not self._rule.can_pass(statuses, planned_trials)


@dataclass(frozen=True)
class LocalExecutor:
    """Runs trials in this process."""

    run_context: RunContext

    async def run_attempt(self, planned: PlannedTrial, attempt: int, keep: Collection[str]) -> TrialRecord:
        return await run_trial(self.run_context, planned, attempt, keep)

    async def charge_cancelled(self) -> None:
        """Calls in this process are charged as they are made."""


@dataclass(frozen=True)
class SchedulerSettings:
    """When a run stops early, how often a fault is retried, and which agents take fewer parallel conversations than the run."""

    fail_fast: FailFast | None = None
    retry_faults: int = 0
    agent_limits: Mapping[str, AbstractAsyncContextManager[object]] = field(default_factory=dict[str, Any])


@dataclass
class Scheduler:
    """Runs planned trials. `stop` ends the run early: running trials are cancelled and count as not run."""

    bus: EventBus
    cassette: CassetteInfo
    pool: TrialPool
    executor: Executor
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    on_trial_ended: Callable[[TrialRecord], None] = lambda _record: None
    stop_reason: StopReason | None = None

    async def run(self, trials: AsyncIterator[PlannedTrial]) -> None:
        try:
            await self.pool.run(trials, self._run_within_agent_limit)
        finally:
            self.bus.flush()

    def stop(self, reason: StopReason) -> None:
        self.stop_reason = self.stop_reason or reason
        self.pool.stop()

    async def _run_within_agent_limit(self, planned: PlannedTrial) -> None:
        async with self.settings.agent_limits.get(planned.agent) or nullcontext():
            await self._run_trial_with_retries(planned)

    async def _run_trial_with_retries(self, planned: PlannedTrial) -> None:
        record = await self._run_attempt(planned, 1)
        for attempt in range(2, 2 + self.settings.retry_faults):
            if record.status != "error" or record.deterministic or not self.cassette.may_retry(record.key):
                break
            self.bus.emit(
                TrialRetried(
                    record.key,
                    planned.index,
                    record.total_turns,
                    fault=record.fault,
                    error=record.error,
                    usage=record.usage,
                    workspace=record.workspace,
                )
            )
            record = await self._run_attempt(planned, attempt)
        self.bus.emit(TrialEnded(record.key, planned.index, planned.total, record))
        self.on_trial_ended(record)
        fail_fast = self.settings.fail_fast
        if fail_fast is not None and fail_fast.makes_case_fail(record, planned.total):
            self.stop("fail_fast")

    async def _run_attempt(self, planned: PlannedTrial, attempt: int) -> TrialRecord:
        """Runs one attempt. After an error the workspace is kept only if there is no retry: a retried attempt has no record."""
        keep = ("failed", "error") if attempt > self.settings.retry_faults else ("failed",)
        return await self.executor.run_attempt(planned, attempt, keep)


async def plan_trials(
    suites: Sequence[Suite],
    select_case: Callable[[Case], Case | None],
    runs: int,
    agents: Sequence[str] = ("",),
    *,
    own_runs: bool = True,
) -> AsyncIterator[PlannedTrial]:
    """Yields all trials, case by case, decoding one case at a time; `select_case` returns None to skip a case, or adapts it.

    Each case has `runs` trials, or as many as it sets itself if it may have `own_runs`, on each agent. The agents take turns,
    so that all of them meet the same load; the place in the input keeps the trials of one agent together. The trials of
    skipped cases are numbered too, so that the journals of runs that select different cases fit together.
    """
    index = 0
    for suite in suites:
        async for loaded in _load_cases(suite):
            total = (loaded.runs if own_runs else None) or runs
            if (case := select_case(loaded)) is not None:
                for trial in range(1, total + 1):
                    for number, agent in enumerate(agents):
                        yield PlannedTrial(case, index + number * total + trial - 1, trial, total, agent)
            index += total * len(agents)


async def _load_cases(suite: Suite) -> AsyncIterator[Case]:
    """A case that cannot be read because its file changed ends the run; finished trials are kept."""
    try:
        async for case in suite.cases():
            yield case
    except BadInput as changed:
        raise RunStopped(str(changed)) from changed

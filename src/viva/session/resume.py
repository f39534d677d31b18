"""A run that was cut off goes on: what it had settled, what has ended, and whether all is still as it was."""

from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from viva.errors import BadInput, RunStopped
from viva.history.index import History
from viva.model import codec
from viva.model.case import Key
from viva.model.event import CaseGenerated, RunEnded, RunResumed, RunStarted, TrialEnded, TrialRetried
from viva.protocols import PlannedTrial
from viva.record.cassette import trial_key
from viva.record.journal import Journal, read_events


class PreviousRun(Struct, frozen=True, dict=True):
    """What the journal of a run tells: how it was started, the cases made for it, and the trials that have ended.

    With an `end` it had come to it: nothing is left to run.
    """

    started: RunStarted
    journal_path: Path
    ended_trials: tuple[TrialEnded, ...]
    generated_cases: Mapping[str, tuple[Mapping[str, Any], ...]]
    run_ended: RunEnded | None = None
    cost_at_stop_usd: float = 0.0
    """What the run had cost when it was last stopped, calls that were cut off included."""
    retried_attempts: tuple[TrialRetried, ...] = ()
    """Attempts that were run again."""

    @property
    def run_id(self) -> str:
        return self.started.run

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.started.settings

    @cached_property
    def ended_keys(self) -> frozenset[Key]:
        """The trials that have ended, whatever the attempt."""
        return frozenset(trial_key(event.key) for event in self.ended_trials)

    def has_ended(self, planned: PlannedTrial) -> bool:
        return Key(planned.case.suite, planned.case.id, planned.trial) in self.ended_keys

    @property
    def spent_usd(self) -> float:
        trials = sum(event.record.cost_usd or 0.0 for event in self.ended_trials)
        retried = sum((event.usage.cost_usd or 0.0) for event in self.retried_attempts if event.usage)
        return max(self.cost_at_stop_usd, trials + retried)


async def keep_unchanged_trials(past: PreviousRun, plan: AsyncIterator[PlannedTrial]) -> PreviousRun:
    """Of the past of a run that goes on although its suites changed: the outcomes of cases that are as they were."""
    due = {
        each.index: (trial_key(Key(each.case.suite, each.case.id, each.trial)), each.case.digest) async for each in plan
    }
    ended = [
        event
        for event in past.ended_trials
        if due.get(event.index) == (trial_key(event.key), event.record.digest or "")
    ]
    return structs.replace(past, ended=tuple(ended))


def reopen_run(history: History, name: str) -> tuple[Journal, PreviousRun]:
    """The journal of a run that is to go on, and its past. The journal is locked first: nobody can add to that past."""
    path = history.journal_path(history.find_run(name).id)
    if not path.exists():
        raise BadInput.of("is gone; this run cannot be resumed", str(path))
    try:
        journal = Journal(path)
    except RunStopped as broken:
        raise BadInput.of(broken.reason) from broken
    try:
        return journal, read_previous_run(path)
    except BadInput:
        journal.close()
        raise


def load_previous_run(history: History, name: str) -> PreviousRun:
    """The past of a run that is in the history."""
    return read_previous_run(history.journal_path(history.find_run(name).id))


def read_previous_run(path: Path) -> PreviousRun:
    """The past of a run by its journal."""
    started: RunStarted | None = None
    ended: dict[int, TrialEnded] = {}
    retried: list[TrialRetried] = []
    made: dict[str, list[CaseGenerated]] = {}
    end: RunEnded | None = None
    stopped_at_usd = 0.0
    for event in read_events(path):
        match event:
            case RunStarted():
                started = event
            case CaseGenerated():
                made.setdefault(event.suite, []).append(event)
            case TrialEnded():
                ended[event.index] = event
            case TrialRetried():
                retried.append(event)
            case RunEnded():
                end = event if event.stopped is None else None
                stopped_at_usd = event.summary.cost_usd or 0.0
            case RunResumed():
                end = None
            case _:
                pass
    if started is None:
        raise BadInput.of("has no beginning; this run cannot be resumed", str(path))
    # A run that was killed while it wrote them down has none: where they are not complete, nothing has run yet.
    generated = {suite: cases[-cases[-1].of :] for suite, cases in made.items() if len(cases) >= cases[-1].of}
    kept = {suite: tuple(each.case for each in cases) for suite, cases in generated.items()}
    return PreviousRun(started, path, tuple(ended.values()), kept, end, stopped_at_usd, tuple(retried))


def check_unchanged(was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """The report of a resumed run is to be that of an unbroken one: so nothing may have changed in between."""
    changed = [
        name
        for name in sorted({*was, *now})
        if codec.canonical_bytes(was.get(name)) != codec.canonical_bytes(now.get(name))
    ]
    if changed:
        raise BadInput.of(f"changed since the run began: {', '.join(changed)}; --force goes on all the same")

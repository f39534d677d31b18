"""Reads the journal of a run that is resumed, and checks that suites and agents have not changed since."""

import os
from collections.abc import AsyncIterator, Container, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from viva.errors import BadInput, RunStopped
from viva.history.index import History
from viva.model import codec
from viva.model.case import Key
from viva.model.event import CaseGenerated, RunEnded, RunResumed, RunStarted, TrialEnded, TrialRetried
from viva.model.record import TrialRecord
from viva.protocols import PlannedTrial
from viva.record.cassette import get_trial_key
from viva.record.journal import Journal, read_events_with_positions
from viva.record.positions import RecordPositions


class EndedTrials:
    """The ended trials of a journal, in input order. Each iteration reads them from the file, one at a time."""

    def __init__(self, path: Path, positions: RecordPositions) -> None:
        self._path = path
        self._positions = positions

    def __iter__(self) -> Iterator[TrialEnded]:
        with self._path.open("rb") as file:
            for offset, length in self._positions:
                yield codec.decode_own(os.pread(file.fileno(), length, offset), type=TrialEnded)

    def select(self, indexes: Container[int]) -> "EndedTrials":
        """The ended trials with these indexes in the input."""
        positions = self._positions.copy()
        positions.keep_only(indexes)
        return EndedTrials(self._path, positions)

    def list_indexes(self) -> list[int]:
        return self._positions.list_indexes()


class PreviousRun(Struct, frozen=True, dict=True):
    """The earlier part of a run, read from its journal. `run_ended` is set if the run is complete."""

    started: RunStarted
    journal_path: Path
    ended_trials: EndedTrials
    generated_cases: Mapping[str, tuple[Mapping[str, Any], ...]]
    run_ended: RunEnded | None = None
    cost_at_stop_usd: float = 0.0
    """The cost of the run when it was last stopped, including calls that were cut off."""
    retried_attempts: tuple[TrialRetried, ...] = ()
    earlier_ms: float = 0.0
    """How long it was running. Of a part that was killed, until its last trial ended."""
    discarded: tuple[int, ...] = ()
    """The indexes of trials that had ended and run again, because their cases have changed."""

    @property
    def run_id(self) -> str:
        return self.started.run

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.started.settings

    @cached_property
    def ended_keys(self) -> frozenset[Key]:
        """The keys of the trials that have ended. The attempt is not part of them."""
        return frozenset(get_trial_key(event.record.key) for event in self.ended_trials)

    def has_run_ended(self, planned: PlannedTrial) -> bool:
        return _create_trial_key(planned) in self.ended_keys

    @property
    def spent_usd(self) -> float:
        ended = (event.record.usage for event in self.ended_trials)
        retried = (event.usage for event in self.retried_attempts)
        recorded = sum(usage.least_cost_usd or 0.0 for usage in chain(ended, retried) if usage is not None)
        return max(self.cost_at_stop_usd, recorded)


async def keep_unchanged_trials(previous_run: PreviousRun, trials: AsyncIterator[PlannedTrial]) -> PreviousRun:
    """The previous run without the trials of changed cases, for `--force`."""
    planned = {each.index: (_create_trial_key(each), each.case.digest) async for each in trials}
    unchanged = {
        event.index
        for event in previous_run.ended_trials
        if planned.get(event.index) == (get_trial_key(event.record.key), event.record.digest or "")
    }
    return structs.replace(
        previous_run,
        ended_trials=previous_run.ended_trials.select(unchanged),
        discarded=tuple(index for index in previous_run.ended_trials.list_indexes() if index not in unchanged),
    )


def _create_trial_key(planned: PlannedTrial) -> Key:
    return Key(planned.case.suite, planned.case.id, planned.trial, agent=planned.agent)


def reopen_run(history: History, name: str) -> tuple[Journal, PreviousRun]:
    """The journal of a run to resume, locked, and its content. The lock comes first, so that no other process adds events."""
    run = history.find_run(name).id
    path = history.journal_path(run)
    _refuse_run_from_elsewhere(history, run)
    if not path.exists():
        raise BadInput.of("file is missing; this run cannot be resumed", str(path))
    try:
        journal = Journal(path)
    except RunStopped as error:
        raise BadInput.of(error.reason) from error
    try:
        previous_run = read_previous_run(path)
        _refuse_copy(previous_run)
        return journal, previous_run
    except BadInput:
        journal.close()
        raise


def _refuse_copy(previous_run: PreviousRun) -> None:
    """BadInput for a run in a copied folder: it would run the files, and write the reports, of the folder where it was started."""
    original = Path(previous_run.settings.get("journal") or previous_run.journal_path)
    with suppress(OSError):  # it does not exist any more, or is in a folder of another user
        if not original.samefile(previous_run.journal_path):
            raise BadInput.of(f"run {previous_run.run_id} is a copy of one in {original.parents[3]}; continue there")


def _refuse_run_from_elsewhere(history: History, run: str) -> None:
    if history.was_made_elsewhere(run):
        raise BadInput.of(f"run {run} comes from another machine, and so do its agent and folder; continue there")


def load_own_run(history: History, name: str) -> PreviousRun:
    """The content of a run whose agent and files are used again. Raises BadInput if the run was made elsewhere."""
    run = history.find_run(name).id
    _refuse_run_from_elsewhere(history, run)
    previous_run = read_previous_run(history.journal_path(run))
    _refuse_copy(previous_run)
    return previous_run


def enter_run_folder(folder: Path) -> None:
    """Changes to the folder where a run was started. Raises BadInput if it is gone."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise BadInput.of(f"The run was started in {folder}, where it has to continue: {error.strerror}") from error


def load_previous_run(history: History, name: str) -> PreviousRun:
    return read_previous_run(history.journal_path(history.find_run(name).id))


def read_previous_run(path: Path) -> PreviousRun:
    """Read a journal. Raises BadInput if it has no start event."""
    started: RunStarted | None = None
    ended_trials = RecordPositions()
    retried_attempts: list[TrialRetried] = []
    generated: dict[str, list[CaseGenerated]] = {}
    run_ended: RunEnded | None = None
    cost_at_stop_usd = 0.0
    times = _PartTimes()
    for event, offset, length in read_events_with_positions(path):
        match event:
            case RunStarted():
                started = event
                times.start(event.at)
            case CaseGenerated():
                generated.setdefault(event.suite, []).append(event)
            case TrialEnded():
                ended_trials.add(event.index, offset, length)
                times.add_trial(event.record)
            case TrialRetried():
                retried_attempts.append(event)
            case RunEnded():
                run_ended = event if event.stopped is None else None
                cost_at_stop_usd = event.summary.cost_usd or 0.0
                times.end(event.summary.duration_ms)
            case RunResumed():
                run_ended = None
                times.start(event.at)
                ended_trials.discard(frozenset(event.discarded))
            case _:
                pass
    if started is None:
        raise BadInput.of("has no start event; this run cannot be resumed", str(path))
    # A run that was killed while it journaled generated cases ran no trial: it generates them again.
    generated_cases = {
        suite: tuple(event.case for event in events[-events[-1].of :])
        for suite, events in generated.items()
        if len(events) >= events[-1].of
    }
    return PreviousRun(
        started,
        path,
        EndedTrials(path, ended_trials),
        generated_cases,
        run_ended,
        cost_at_stop_usd,
        tuple(retried_attempts),
        times.measure_total_ms(),
    )


class _PartTimes:
    """How long a run was running: until it was stopped or, if it was killed, until its last trial ended."""

    def __init__(self) -> None:
        self._earlier_ms = 0.0
        self._start_ms: float | None = None
        self._last_ms = 0.0

    def start(self, at: str) -> None:
        self._earlier_ms = self.measure_total_ms()
        self._start_ms = _parse_ms(at)
        self._last_ms = self._start_ms or 0.0

    def add_trial(self, record: TrialRecord) -> None:
        if (start_ms := _parse_ms(record.started_at or "")) is not None:
            self._last_ms = max(self._last_ms, start_ms + record.duration_ms)

    def end(self, total_ms: float) -> None:
        """The summary of a part has the time of the earlier parts too."""
        self._earlier_ms, self._start_ms = total_ms, None

    def measure_total_ms(self) -> float:
        return self._earlier_ms + (0.0 if self._start_ms is None else self._last_ms - self._start_ms)


def _parse_ms(at: str) -> float | None:
    """A time in ms; None for a text that is none."""
    try:
        return datetime.fromisoformat(at).timestamp() * 1e3
    except ValueError:
        return None


def find_fingerprint_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of the entries in which two fingerprints differ."""
    return [
        name
        for name in sorted({*before, *now})
        if codec.encode_canonically(before.get(name)) != codec.encode_canonically(now.get(name))
    ]


def check_unchanged(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises BadInput if the fingerprints differ: a resumed run must give the same results as one without interruption."""
    if changed := find_fingerprint_changes(before, now):
        raise BadInput.of(f"changed since the run began: {', '.join(changed)}; --force resumes it anyway")

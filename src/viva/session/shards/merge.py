"""Merges the parts of a split run into one run, for `viva merge`.

The merged run has its own id and journal. The journal is written under another name and renamed at the end, so a killed merge leaves no incomplete run.
"""

import heapq
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import structs

from viva.engine.summary import RunTally, exit_code
from viva.engine.thresholds import SuiteTally
from viva.errors import BadInput
from viva.history.index import PULLED_FILE
from viva.model import codec
from viva.model.event import (
    ELSEWHERE_KEY,
    Event,
    Note,
    NoteKind,
    PlannedSuite,
    RunEnded,
    RunStarted,
    RunSummary,
    StopReason,
    TrialEnded,
    TrialRetried,
)
from viva.record.atomic_files import open_replacement
from viva.record.foreign_journals import check_event
from viva.record.journal import take_next_run_number
from viva.record.private_files import make_data_folder, make_private_folder
from viva.reporters.formatting import format_count
from viva.session.shards.merge_sources import JOURNAL, MERGED_KEY, SAME_TIMES, MergeSource
from viva.session.shards.shard import Shard
from viva.stats.pass_rule import PassRule

_STOP_REASON_ORDER: tuple[StopReason, ...] = ("interrupted", "broken", "budget", "fail_fast")
"""Stop reasons by priority: if parts stopped for different reasons, the merged run gets the first of these."""


class Merger:
    """Joins runs that `check_sources` accepts, in input order."""

    def __init__(self, sources: Sequence[MergeSource], run_id: str, outputs: Sequence[Path] = ()) -> None:
        self._sources = sources
        self._first = sources[0].started
        self._run_id = run_id
        self._outputs = outputs
        self._shards = sorted(shard for source in sources for shard in source.shards)
        self._rule = PassRule.from_settings(self._first.settings)

    def write(self, home: Path) -> tuple[Path, RunEnded]:
        """Write the journal of a new run in a `.viva` folder. Returns its path and the end of the merged run."""
        folder = home / "runs" / self._run_id
        try:
            make_data_folder(home)
            make_private_folder(folder.parent)
            folder.mkdir(mode=0o700)
            try:
                return folder / JOURNAL, self._write_journal(folder / JOURNAL, take_next_run_number(home))
            except BaseException:
                shutil.rmtree(folder)
                raise
        except OSError as error:
            raise BadInput.of(f"cannot write the merged run to {folder}: {error.strerror or error}") from error

    def _write_journal(self, journal: Path, number: int) -> RunEnded:
        suites = self._join_suites()
        tally = RunTally(self._count_cases(suites), self._rule, self._create_suite_tallies(suites))
        start = structs.replace(self._create_run_started(suites, journal), number=number)
        with open_replacement(journal, durable=True, private=True) as out, ExitStack() as stack:
            files = [stack.enter_context(source.journal.open("rb")) for source in self._sources]
            for event in (start, *self._sources[0].generated_cases, *self._list_notes()):
                _write_event(out, event)
            self._copy_trials(files, out, tally)
            end = self._create_run_ended(tally.summary())
            _write_event(out, end)
        return end

    def _copy_trials(self, files: Sequence[BinaryIO], out: BinaryIO, tally: RunTally) -> None:
        """Copy the events of all trials in input order, byte for byte, so that the records stay the same."""
        parts = [
            [(index, number) for index in sorted(source.ends.keys() | source.retries.keys())]
            for number, source in enumerate(self._sources)
        ]
        for index, number in heapq.merge(*parts):
            source, file = self._sources[number], files[number]
            try:
                for offset in source.retries.get(index, ()):
                    tally.append(codec.decode_own(_copy_line(file, offset, out), type=TrialRetried))
                if index in source.ends:
                    ended = codec.decode_own(_copy_line(file, source.ends[index], out), type=TrialEnded)
                    check_event(ended)
                    tally.append(ended)
            except codec.DecodeError as error:
                raise BadInput.of(
                    f"{source} ({source.place}): trial {index} is not one of a journal: {error}"
                ) from error

    def _join_suites(self) -> tuple[PlannedSuite, ...]:
        """Each suite with its number of cases in all parts. The counts of a shard cover all shards already."""
        if self._shards:
            return self._first.suites
        joined: dict[str, PlannedSuite] = {}
        for source in self._sources:
            for suite in source.started.suites:
                before = joined.get(suite.suite)
                cases = suite.cases + (before.cases if before else 0)
                joined[suite.suite] = structs.replace(suite, cases=cases)
        return tuple(joined.values())

    def _count_cases(self, suites: Sequence[PlannedSuite]) -> int:
        """A case counts once for each agent."""
        return sum(suite.cases for suite in suites) * max(1, len(self._first.agents))

    def _create_suite_tallies(self, suites: Sequence[PlannedSuite]) -> list[SuiteTally]:
        return [
            SuiteTally(suite, suite.cases, self._rule, agent)
            for suite in suites
            for agent in self._first.agents or ("",)
            if suite.threshold and suite.cases
        ]

    def _create_run_started(self, suites: tuple[PlannedSuite, ...], journal: Path) -> RunStarted:
        started = [source.started for source in self._sources]
        return structs.replace(
            self._first,
            run=self._run_id,
            at=min(each.at for each in started),
            inputs=tuple(dict.fromkeys(text for each in started for text in each.inputs)),
            cases=self._count_cases(suites),
            trials=self._first.all_trials if self._shards else sum(each.trials for each in started),
            parallel=sum(each.parallel for each in started),
            all_trials=self._first.all_trials,
            suites=suites,
            settings=self._join_settings(journal),
        )

    def _join_settings(self, journal: Path) -> dict[str, Any]:
        """The settings of the merged run: those of a run of all cases in the working folder."""
        outputs = [str(path) for path in self._outputs]
        options = {**self._sources[0].options, "shard": None, "shard_cases": None}
        options |= {"folder": str(Path.cwd()), "outputs": outputs, "eval_summary": None, "config": None}
        if not self._shards:
            cases = list(
                dict.fromkeys(
                    (suite, case)
                    for source in self._sources
                    for suite, case, _ in source.read_trial_cells(sorted(source.ends))
                )
            )
            options |= {"only": None, "tags": [], "last_failed": False, "selected_cases": cases}
        has_foreign_part = any(_was_made_elsewhere(source, journal.parent.parent) for source in self._sources)
        return {
            **self._first.settings,
            "reports": outputs,
            "journal": str(journal),
            "options": options,
            MERGED_KEY: [part for source in self._sources for part in _list_merged_parts(source)],
            **({ELSEWHERE_KEY: True} if has_foreign_part else {}),
        }

    def _list_notes(self) -> list[Note]:
        """Notes of the merged run: those that all parts have, warnings of the parts, and what is missing."""
        notes = [*self._warn_of_missing_shards(), *self._warn_of_stopped_parts(), *self._warn_of_left_out_cases()]
        own_notes = [list(_list_notes_to_keep(source)) for source in self._sources]
        in_all = [note for note in own_notes[0] if all(note in others for others in own_notes)]
        warnings = [note for each in own_notes for note in each if note.level == "warning"]
        return [*dict.fromkeys((*in_all, *warnings)), *notes]

    def _warn_of_missing_shards(self) -> Iterator[Note]:
        count = self._shards[0].count if self._shards else 0
        missing = [shard for number in range(1, count + 1) if (shard := Shard(number, count)) not in self._shards]
        if missing:
            names = ", ".join(map(str, missing))
            yield _create_warning(
                f"missing: shard {names}; the cases that only they have count as not run", kind="not_merged"
            )

    def _warn_of_stopped_parts(self) -> Iterator[Note]:
        for source in self._sources:
            if source.is_merged or (source.ended is not None and source.ended.stopped is None):
                continue  # the notes of a merged run name its parts that stopped
            lost = format_count(source.started.cases - len(set(source.read_trial_cells(source.ends))), "case")
            if source.ended is None:
                yield _create_warning(f"{source} stopped unexpectedly, with {lost} not run; continue it with --resume")
            else:
                reason = source.ended.stop_message or source.ended.stopped
                yield _create_warning(f"{source} stopped early ({reason}), with {lost} not run")

    def _warn_of_left_out_cases(self) -> Iterator[Note]:
        """Warn of cases that no part has: the shards used different times, or no filter selected them."""
        planned = sum(part.get("cases", 0) for source in self._sources for part in _list_merged_parts(source))
        if self._shards:
            selected = self._count_cases(self._first.suites)
            if len(self._shards) == self._shards[0].count and planned < selected:
                yield _create_warning(
                    f"{selected - planned} of {selected} cases are in no shard: they knew different times: {SAME_TIMES}"
                )
            return
        for suite in self._join_suites():
            if suite.cases < suite.size:
                lost = f"{suite.size - suite.cases} of {suite.size} cases are in none of the runs"
                yield _create_warning(f"{suite.suite}: {lost}", kind="not_merged")

    def _create_run_ended(self, summary: RunSummary) -> RunEnded:
        ends = [source.ended for source in self._sources if source.ended is not None]
        costs = [end.summary.cost_usd or 0.0 for end in ends]
        if sum(costs) > (summary.cost_usd or 0.0) + 1e-9:  # calls of trials that were cut off have no record
            summary = structs.replace(summary, cost_usd=sum(costs))
        summary = structs.replace(summary, duration_ms=_measure_running_ms(self._sources))
        reasons = {end.stopped for end in ends}
        stopped: StopReason | None = next((reason for reason in _STOP_REASON_ORDER if reason in reasons), None)
        message = next((end.stop_message for end in ends if end.stopped == stopped and end.stop_message), None)
        at = max((end.at for end in ends), default=self._first.at)
        return RunEnded(self._run_id, at, exit_code(summary, stopped), summary, stopped, message)


def _list_notes_to_keep(source: MergeSource) -> Iterator[Note]:
    """The notes of a run, without those of an earlier merge about missing parts: this merge checks that again."""
    for note in source.notes:
        if note.kind != "not_merged":
            yield note


def _create_warning(text: str, kind: NoteKind = "message") -> Note:
    return Note(text, "warning", kind=kind)


def _was_made_elsewhere(source: MergeSource, runs: Path) -> bool:
    """Is it not a run that this project has made? The agents and files that its journal names are not trusted then."""
    folder = source.journal.resolve().parent
    is_pulled = (folder / PULLED_FILE).exists()
    return folder.parent != runs.resolve() or is_pulled or bool(source.started.settings.get(ELSEWHERE_KEY))


def _list_merged_parts(source: MergeSource) -> list[Mapping[str, Any]]:
    if source.is_merged:
        return source.started.settings[MERGED_KEY]
    return [
        {
            "run": source.started.run,
            "shard": source.options.get("shard"),
            "cases": source.started.cases,
            "spans": source.spans,
        }
    ]


def _list_spans(source: MergeSource) -> Sequence[Sequence[str]]:
    """When the run, or the parts that it was merged of, were running. Not while it waited for `--resume`."""
    return [span for part in _list_merged_parts(source) for span in part.get("spans", source.spans)]


def _measure_running_ms(sources: Sequence[MergeSource]) -> float:
    """The time during which at least one of the runs was running, in ms."""
    spans = sorted(
        (datetime.fromisoformat(start).timestamp(), datetime.fromisoformat(end).timestamp())
        for source in sources
        for start, end in _list_spans(source)
    )
    total_s, until = 0.0, 0.0
    for start, end in spans:
        total_s += max(0.0, end - max(start, until))
        until = max(until, end)
    return round(total_s * 1e3, 1)


def _copy_line(file: BinaryIO, offset: int, out: BinaryIO) -> bytes:
    file.seek(offset)
    line = file.readline()
    out.write(line)
    return line


def _write_event(out: BinaryIO, event: Event) -> None:
    out.write(codec.encode(event) + b"\n")

"""Finds and reads the runs that `viva merge` joins, and checks that they belong together."""

import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec import Struct

from viva.errors import BadInput, Problem
from viva.model import codec
from viva.model.case import Key
from viva.model.ellipsis import cut_end
from viva.model.event import CaseGenerated, Note, RunEnded, RunStarted
from viva.model.record import Cell
from viva.record.foreign_journals import check_event, check_time, compute_unpacked_limit
from viva.record.journal import check_version
from viva.record.locks import find_lock_holder, is_journal_in_use
from viva.session.options.run_options import RUN_OPTIONS
from viva.session.shards.shard import Shard

JOURNAL = "journal.jsonl"
MERGED_KEY = "merged"
"""The setting of a merged run that lists its parts, each with its shard and its number of cases."""
SAME_TIMES = "--shard-by time needs the same .viva for all shards, without those that ran in between"
_MAX_LISTED_NAMES = 5
_FILTERS = ("only", "tags", "selected_cases", "shard_by")
"""Options that select cases. They must be the same in all shards."""


class MergeSource(Struct, frozen=True, kw_only=True):
    """One run to merge, read from its journal."""

    journal: Path
    place: str
    """The name, folder or ZIP file by which the user gave the run."""
    started: RunStarted
    ended: RunEnded | None
    """None if the run stopped unexpectedly."""
    ends: Mapping[int, int]
    """The offset in the journal of each trial's end event, by the index of the trial in the input."""
    retries: Mapping[int, Sequence[int]]
    """The offsets in the journal of each trial's retry events, by the index of the trial."""
    notes: Sequence[Note]
    generated_cases: Sequence[CaseGenerated]
    spans: Sequence[tuple[str, str]] = ()
    """When it was running, from and until: one span for each time that it was started or resumed."""

    @property
    def options(self) -> Mapping[str, Any]:
        return self.started.settings.get("options", {})

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards in this run: one, several if it was merged, or none if it is a run of all cases."""
        merged: Iterable[Mapping[str, Any]] = self.started.settings.get(MERGED_KEY, ())
        texts = [self.options.get("shard"), *(part.get("shard") for part in merged)]
        return tuple(Shard.parse(text) for text in texts if text)

    def read_trial_cells(self, indexes: Iterable[int]) -> Iterator[Cell]:
        """The suite, case and agent of some trials."""
        with self.journal.open("rb") as file:
            for index in indexes:
                file.seek(self.ends[index])
                key = codec.decode_own(file.readline(), type=_EventHead).key or Key("", "")
                yield key.suite, key.case, key.agent

    @property
    def is_merged(self) -> bool:
        return MERGED_KEY in self.started.settings

    def __str__(self) -> str:
        shards = ", ".join(map(str, self.shards))
        return f"run {self.started.run}" + (f" (shard {shards})" if shards else "")


FindJournal = Callable[[str], Path]
"""Returns the journal of a run by its name. Raises BadInput if there is none."""


def find_journals(name: str, find_run: FindJournal, scratch: Path) -> dict[Path, str]:
    """The journals that a name means: of one run, of all runs in a folder, or of those in a ZIP file, extracted to `scratch`.
    Each has the name that messages use.
    """
    path = Path(name)
    if path.is_dir():
        journals = {journal: str(journal) for journal in sorted(path.rglob(JOURNAL))}
    elif path.is_file():
        journals = {path: str(path)} if path.name == JOURNAL else _extract_journals(path, scratch)
    elif "/" in name or path.suffix:
        raise BadInput.of(f"there is no file or folder {name!r}; give a run, a folder or a ZIP file with runs")
    else:
        journal = find_run(name)
        return {journal: str(journal)}
    if not journals:
        raise BadInput.of(f"{name}: contains no run; give a folder or ZIP file with a {JOURNAL}, such as .viva/runs/ID")
    return journals


def _extract_journals(path: Path, scratch: Path) -> dict[Path, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.rpartition("/")[2] == JOURNAL]
            if sum(entry.file_size for entry in entries) > compute_unpacked_limit(path.stat().st_size):
                raise BadInput.of(
                    f"{path}: unpacks to far more than journals of its size; unpack it and give the folder"
                )
            entries.sort(key=lambda entry: entry.filename)
            journals = {scratch / f"{path.name}-{number}" / JOURNAL: entry for number, entry in enumerate(entries)}
            for journal, entry in journals.items():
                journal.parent.mkdir(parents=True)
                with archive.open(entry) as packed, journal.open("wb") as out:
                    shutil.copyfileobj(packed, out)
    except BadInput:
        raise
    except Exception as error:  # a damaged archive: zipfile passes on the errors of its decompressors
        raise BadInput.of(
            f"{path}: cannot be read as a ZIP file: {error}; give a run, a folder or a ZIP file"
        ) from error
    return {journal: f"{path}: {entry.filename}" for journal, entry in journals.items()}


class _EventHead(Struct):
    """The fields of a journal line that identify its event and trial."""

    event: str
    index: int = -1
    key: Key | None = None
    at: str = ""
    discarded: tuple[int, ...] = ()


def read_merge_source(journal: Path, place: str, shown: str) -> MergeSource:
    """Read the journal of one run, which messages call `shown`. Raises BadInput if the run is still running, or if the journal
    cannot be read.
    """
    if is_journal_in_use(journal):
        process = f" in process {holder.pid}" if (holder := find_lock_holder(journal)) else ""
        raise BadInput.of(f"run {journal.parent.name} is still running{process}; merge it when it has ended")
    reader = _JournalReader()
    number, offset = 1, 0
    try:
        with journal.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    if number == 1:
                        check_version(line, Path(shown))
                    reader.add(line, offset)
                offset += len(line)
    except OSError as error:
        raise BadInput.of(f"cannot be read: {error.strerror}", shown) from error
    except codec.DecodeError as error:
        raise BadInput.of(f"is not an event of a journal: {error}", shown, number) from error
    if reader.started is None:
        raise BadInput.of("has no start event, so it is not a run", shown)
    source = MergeSource(
        journal=journal,
        place=place,
        started=reader.started,
        ended=reader.ended,
        ends=reader.ends,
        retries=reader.retries,
        notes=reader.notes,
        generated_cases=reader.generated_cases,
        spans=reader.spans,
    )
    try:
        _ = source.shards
    except ValueError as error:
        raise BadInput.of(f"is not the journal of a shard: {error}", shown) from error
    return source


class _JournalReader:
    """Collects the events of a journal. Of the events of trials it keeps only the offsets, to save memory."""

    def __init__(self) -> None:
        self._decoder = codec.Decoder[_EventHead](_EventHead, codec.OWN_MAX_DEPTH)
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self.ends: dict[int, int] = {}
        self.retries: dict[int, list[int]] = {}
        self.notes: list[Note] = []
        self.generated_cases: list[CaseGenerated] = []
        self.spans: list[tuple[str, str]] = []
        self._span_start = ""

    def add(self, line: bytes, offset: int) -> None:
        head = self._decoder.decode(line)
        match head.event:
            case "run_started":
                self.started = codec.decode_own(line, type=RunStarted)
                check_event(self.started)
                self._span_start = head.at
            case "run_ended":
                self.ended = codec.decode_own(line, type=RunEnded)
                check_event(self.ended)
                self.spans.append((self._span_start, head.at))
            case "run_resumed":
                self.ended = None
                check_time(head.at)
                self._span_start = head.at
                for index in head.discarded:
                    self.ends.pop(index, None)
            case "note":
                self.notes.append(codec.decode_own(line, type=Note))
            case "case_generated":
                self.generated_cases.append(codec.decode_own(line, type=CaseGenerated))
            case "trial_ended":
                self.ends[head.index] = offset
            case "trial_retried":
                self.retries.setdefault(head.index, []).append(offset)
            case _:
                pass


def read_merge_sources(
    names: Sequence[str], find_run: FindJournal, scratch: Path
) -> tuple[list[MergeSource], list[str]]:
    """The runs that the names mean, without duplicates, and notes on runs that were left out.

    A folder with shards may hold other runs too: an earlier history, or the run that an earlier merge made of them.
    """
    sources: dict[str, MergeSource] = {}
    notes: list[str] = []
    for name in names:
        journals = find_journals(name, find_run, scratch)
        read_sources = [read_merge_source(journal, name, shown) for journal, shown in journals.items()]
        has_shards = any(source.shards for source in read_sources)
        for source in read_sources:
            if len(read_sources) > 1 and (source.is_merged or (has_shards and not source.shards)):
                kind = "is the result of a merge" if source.is_merged else "is not a shard"
                notes.append(f"{name}: left out {source}, which {kind}")
            elif sources.setdefault(source.started.run, source) is not source:
                notes.append(f"{source} was given twice; it counts once")
    return list(sources.values()), notes


def check_sources(sources: Sequence[MergeSource]) -> None:
    """Raises BadInput with all reasons why the runs are not parts of one run."""
    if not sources:
        raise BadInput.of("there is nothing to merge: all runs were left out")
    first = sources[0]
    if len(sources) == 1 and not first.shards:
        raise BadInput.of(f"there is nothing to merge: {first} is the only one; give two runs or more")
    problems = [problem for source in sources[1:] for problem in _find_differences(first, source)]
    problems = problems or [*_find_duplicate_shards(sources)]
    problems = problems or [*_find_duplicate_trials(sources)]
    if problems:
        raise BadInput(*(Problem("", 0, "", problem) for problem in problems))


def _find_differences(first: MergeSource, other: MergeSource) -> Iterator[str]:
    """Messages that say in which settings `other` differs from `first`, so that they are not parts of one run."""
    before, now = (source.started.settings.get("fingerprint", {}) for source in (first, other))
    foreign = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    if foreign:
        names = ", ".join(_describe_difference(name, before.get(name), now.get(name)) for name in foreign)
        yield f"{other} does not belong to {first}: they differ in {names}"
        return
    for name, option in RUN_OPTIONS.items():
        must_agree = not option.may_differ or (name in _FILTERS and first.shards and other.shards)
        if must_agree and first.options.get(name) != other.options.get(name):
            label = option.flag if option.flags else name
            values = f"{_format_setting(first.options.get(name))} and {_format_setting(other.options.get(name))}"
            yield f"{other} does not belong to {first}: they have different {label}: {values}"
    counts = {shard.count for source in (first, other) for shard in source.shards}
    if len(counts) > 1 or bool(first.shards) is not bool(other.shards):
        yield f"{other} does not belong to {first}: they are not shards of the same number of parts"


def _describe_difference(name: str, before: Any, now: Any) -> str:
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return f"{name} ({_format_setting(before)} and {_format_setting(now)})"
    entries: dict[str, None] = dict.fromkeys(str(key) for key in (*before, *now) if before.get(key) != now.get(key))
    return f"{name} ({_join_first_names(entries)})"


def _format_setting(value: Any) -> str:
    return "nothing" if value is None else cut_end(codec.compact_json(value), 60)


def _find_duplicate_shards(sources: Sequence[MergeSource]) -> Iterator[str]:
    owners: dict[Shard, MergeSource] = {}
    for source in sources:
        for shard in source.shards:
            if (other := owners.setdefault(shard, source)) is not source:
                yield (
                    f"shard {shard} is there twice: {other.started.run} ({other.place}) and {source.started.run} "
                    f"({source.place}); leave one out"
                )


def _find_duplicate_trials(sources: Sequence[MergeSource]) -> Iterator[str]:
    for source, other in combinations(sources, 2):
        doubled = sorted(source.ends.keys() & other.ends.keys())
        names = list(source.read_trial_cells(doubled))
        if names != list(other.read_trial_cells(doubled)):
            yield f"{source} and {other} number their trials differently, so they cannot be merged"
        elif names:
            cases = _join_first_names(dict.fromkeys(case for _, case, _ in names))
            runs = f"the runs {source.started.run} and {other.started.run}"
            yield f"{runs} both have {cases}; {_explain_doubled_trials(source)}"


def _explain_doubled_trials(source: MergeSource) -> str:
    if source.shards and source.options.get("shard_by") == "time":
        return f"they knew different times: {SAME_TIMES}"
    return "leave one of the runs out"


def _join_first_names(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _MAX_LISTED_NAMES} more" if len(listed) > _MAX_LISTED_NAMES else ""
    return ", ".join(listed[:_MAX_LISTED_NAMES]) + more

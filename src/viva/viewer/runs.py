"""The runs of a project, read from the index and the journals.

A journal is read once, then only what was appended. Memory holds the positions of records, not the records. A run's name
is looked up in the index before it becomes part of a path.
"""

import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from viva.errors import BadInput
from viva.history.columns import AgentRows, RunResults, compare_columns, split_columns
from viva.history.comparison import Comparison, compare_runs
from viva.history.index import History, ResultRow, RunRow, read_run_start
from viva.history.trends import find_known_flaky
from viva.model import codec
from viva.model.case import Key
from viva.model.event import JOURNAL_VERSION, RunEnded, RunStarted
from viva.model.live import LiveView
from viva.model.record import Status
from viva.record.journal import locate_record
from viva.record.live_files import mark_watched, read_live_view
from viva.record.locks import is_journal_in_use
from viva.reporters.page import OverviewEncoder
from viva.reporters.report import CaseTrials, RecordHead
from viva.stats.matrix import Matrix
from viva.stats.pass_rule import PassRule
from viva.viewer.differences import RunDifference, RunSide, describe_side, list_differences
from viva.viewer.rows import RowTable
from viva.viewer.search import FoundCase, search_cases

_MAX_OPEN_JOURNALS = 16
MAX_OVERVIEW_ROWS = 5000
"""The overview of a run with more cases has no rows: the page loads them in batches."""


class _CountedFields(Struct):
    """The fields of a record that the progress of a run is counted from."""

    status: Status
    cost_usd: float | None = None


class _JournalLine(Struct):
    """The fields of a journal line that say which event it is and, for a trial, of which case."""

    event: str
    at: str = ""
    record: _CountedFields | None = None
    index: int = -1
    key: Key | None = None
    discarded: tuple[int, ...] = ()
    """Of `run_resumed`."""
    journal_version: int = 1
    """Of `run_started`; the first version did not write it."""


class Progress(Struct, omit_defaults=True):
    """How far a run is. `earlier` trials ended before the run was resumed and are left out of the estimated time."""

    trials: int = 0
    done: int = 0
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    cost_usd: float | None = None
    since: str = ""
    earlier: int = 0
    running: int | None = None
    """How many conversations run now; null until the run says so."""
    limit: int | None = None
    workers: int | None = None


_line_decoder = codec.Decoder[_JournalLine](_JournalLine, codec.OWN_MAX_DEPTH)
_head_decoder = codec.Decoder[RecordHead](RecordHead, codec.OWN_MAX_DEPTH)


class RunJournal:
    """The journal of one run, which may still grow. A case is identified by the index of its first trial."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self.progress = Progress()
        self._read_bytes = 0
        self._record_positions: dict[int, array[int]] = {}  # case -> trial, offset and length of each of its records
        self._overview: bytes | None = None
        self._row_table: RowTable | None = None
        self._lock = threading.Lock()

    @property
    def is_live(self) -> bool:
        """Is it in progress? A killed run has no end either, but its journal is not locked."""
        return self.ended is None and is_journal_in_use(self.path)

    def refresh(self) -> None:
        """Reads the lines that were appended since the last call; an incomplete line waits."""
        with self._lock, self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size <= self._read_bytes:
                return
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._add_line(line)
                self._read_bytes += len(line)
            self._overview = None

    def _add_line(self, line: bytes) -> None:
        try:
            head = _line_decoder.decode(line)
            match head.event:
                case "run_started":
                    if head.journal_version != JOURNAL_VERSION:
                        message = (
                            f"has journal version {head.journal_version}, expected {JOURNAL_VERSION}. Run it again"
                        )
                        raise BadInput.of(message, str(self.path))
                    # The journal of another machine may name another run.
                    self.started = structs.replace(codec.decode_own(line, type=RunStarted), run=self.path.parent.name)
                    self.progress.trials, self.progress.since = self.started.trials, self.started.at
                case "run_ended":
                    self.ended = codec.decode_own(line, type=RunEnded)
                case "run_resumed":
                    self.ended = None
                    if head.discarded:
                        self._discard_trials(frozenset(head.discarded))
                    self.progress.since, self.progress.earlier = head.at, self.progress.done
                case "trial_ended" if head.key is not None:
                    start, length = locate_record(line)
                    first = head.index - head.key.trial + 1
                    place = (head.key.trial, self._read_bytes + start, length)
                    self._record_positions.setdefault(first, array("q")).extend(place)
                    self._count_trial(head.record)
                case _:
                    pass
        except codec.DecodeError as error:
            raise BadInput.of(f"byte {self._read_bytes}: not an event: {error}", str(self.path)) from error

    def _discard_trials(self, indexes: Container[int]) -> None:
        """Forgets trials that a resumed run runs again, and counts the others."""
        old, self._record_positions = self._record_positions, {}
        self.progress = Progress(trials=self.progress.trials)
        with self.path.open("rb") as file:
            for first, numbers in old.items():
                for trial, at, length in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
                    if first + trial - 1 not in indexes:
                        self._record_positions.setdefault(first, array("q")).extend((trial, at, length))
                        self._count_trial(codec.decode_own(os.pread(file.fileno(), length, at), type=_CountedFields))

    def _count_trial(self, outcome: _CountedFields | None) -> None:
        if outcome is None:
            return
        progress, name = self.progress, "errors" if outcome.status == "error" else outcome.status
        progress.done += 1
        setattr(progress, name, getattr(progress, name) + 1)
        if outcome.cost_usd is not None:
            progress.cost_usd = (progress.cost_usd or 0.0) + outcome.cost_usd

    def load_live_view(self) -> LiveView | None:
        """The conversations in progress. The process of the run writes them only while a viewer asks for them, as this call does."""
        mark_watched(self.path)
        return read_live_view(self.path)

    def load_progress(self) -> Progress:
        """How far the run is, with the numbers of running conversations and workers that its process writes."""
        if (view := self.load_live_view()) is None:
            return self.progress
        cost_usd = self.progress.cost_usd if view.cost_usd is None else view.cost_usd
        return structs.replace(
            self.progress, running=len(view.trials), limit=view.limit, workers=view.workers, cost_usd=cost_usd
        )

    def load_case(self, index: int) -> CaseTrials | None:
        """A case with its encoded records; None if none of its trials has ended."""
        return next(self._iter_cases([index]), None) if index in self._record_positions else None

    def iter_raw_cases(self) -> Iterator[tuple[int, list[bytes]]]:
        """The index of each case with the encoded records of its trials, in input order."""
        with self._lock:
            indexes = sorted(self._record_positions)
        with self.path.open("rb") as file:
            for index in indexes:
                yield index, self._read_records(file.fileno(), index)

    def _read_records(self, descriptor: int, index: int) -> list[bytes]:
        """The last attempt of each trial, in order."""
        with self._lock:
            numbers = self._record_positions[index].tolist()
        trials = dict(zip(numbers[::3], zip(numbers[1::3], numbers[2::3], strict=True), strict=True))
        return [os.pread(descriptor, length, at) for _, (at, length) in sorted(trials.items())]

    def load_overview(self) -> bytes:
        """The Overview of the run as JSON; built again only if something was appended."""
        self.refresh()
        if (overview := self._overview) is not None:
            return overview
        with self._lock:
            indexes = sorted(self._record_positions)
        encoder = OverviewEncoder(self.started)
        rows = [encoder.encode_row(*each) for each in zip(indexes, self._iter_cases(indexes), strict=True)]
        # The page follows a run in progress row by row.
        is_large = self.ended is not None and len(rows) > MAX_OVERVIEW_ROWS
        self._row_table = table = RowTable(rows, self.search) if is_large else None
        counts = table.count_rows() if table else None
        rest = encoder.encode_rest(self.ended, self.path.parent.name, counts)[1:]
        self._overview = overview = b'{"cases":[%b],%b' % (b"" if table else b",".join(rows), rest)
        return overview

    def load_row_table(self) -> RowTable | None:
        """The rows of a large run, to be sent in batches; None for a small run, whose overview has all rows."""
        self.load_overview()
        return self._row_table

    def search(self, text: str) -> list[FoundCase]:
        """The cases whose conversations have all words."""
        return list(search_cases(self.iter_raw_cases(), text))

    def _iter_cases(self, indexes: Sequence[int]) -> Iterator[CaseTrials]:
        rule = PassRule.from_settings(self.started.settings if self.started else {})
        names_agents = self.started is not None and len(self.started.agents) > 1
        with self.path.open("rb") as file:
            for index in indexes:
                raw = self._read_records(file.fileno(), index)
                heads = [_head_decoder.decode(record) for record in raw]
                # While the run is in progress, missing trials may still end: the status is that of the trials so far.
                missing = max(head.trials for head in heads) - len(heads) if self.ended else 0
                yield CaseTrials(heads, raw, rule, max(0, missing), names_agents)


class RunAgent(Struct, frozen=True):
    """A run and one of its agents; without a name, the first agent."""

    run: str
    agent: str = ""


class TwoRuns(Struct, frozen=True):
    """The comparison of two runs, and the differences of their agents, settings and suites."""

    comparison: Comparison
    base: RunSide
    head: RunSide
    differences: list[RunDifference]


class LinkedMatrix(Struct, frozen=True):
    """The matrix of several runs, with the run and agent of each column, which the page links to."""

    matrix: Matrix
    columns: list[RunAgent]


def _make_side(row: RunRow, agent: str) -> RunSide:
    if agent and agent not in row.agents:
        raise BadInput.of(f"run {row.id} has no agent {agent!r}; it has {', '.join(row.agents)}")
    return describe_side(row, agent or next(iter(row.agents), row.agent))


class ProjectRuns:
    """All runs of a project. Safe for concurrent requests."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._open: OrderedDict[str, RunJournal] = OrderedDict()
        self._origins: dict[str, dict[str, Any]] = {}
        self._comparisons: dict[tuple[str | None, ...], Comparison] = {}
        self._lock = threading.Lock()

    def find(self, name: str) -> RunJournal:
        """A run by its id, a prefix of it, or `latest`. BadInput if it is not in the index or has no journal."""
        run = self.history.find_run(name).id
        with self._lock:
            file = self._open.pop(run, None) or RunJournal(self.history.journal_path(run))
            self._open[run] = file
            while len(self._open) > _MAX_OPEN_JOURNALS:
                self._open.popitem(last=False)
        try:
            file.refresh()
        except FileNotFoundError as error:
            raise BadInput.of(f"The journal of run {run} is missing") from error
        return file

    def list_live_runs(self) -> list[str]:
        return [row.id for row in self.history.list_runs() if self._is_live(row)]

    def list_runs(self) -> list[dict[str, Any]]:
        """Newest first."""
        return [self._describe_run(row) for row in self.history.list_runs()]

    def _describe_run(self, row: RunRow) -> dict[str, Any]:
        is_live = self._is_live(row)
        fields = {**codec.to_builtins(row), "live": is_live, **self._describe_origin(row.id)}
        if is_live:
            with suppress(BadInput):  # it was deleted in between
                fields["progress"] = codec.to_builtins(self.find(row.id).load_progress())
        return fields

    def _describe_origin(self, run: str) -> dict[str, Any]:
        """Model, commit and branch of a run, and the tags that selected its cases. Cached: the start of a journal never changes."""
        if run not in self._origins:
            started = read_run_start(self.history.journal_path(run))
            fields = codec.to_builtins(started.origin) if started else {}
            tags = dict(started.settings.get("options", {})).get("tags") if started else None
            self._origins[run] = {**fields, **({"tags": tags} if tags else {})}
        return self._origins[run]

    def compare_runs(self, base: RunAgent, head: RunAgent) -> TwoRuns:
        """Compares an agent of two runs. The last comparison of finished runs is cached: it takes seconds for many cases."""
        rows = [self.history.find_run(each.run) for each in (base, head)]
        sides = [_make_side(row, each.agent) for row, each in zip(rows, (base, head), strict=True)]
        key = tuple(part for row, side in zip(rows, sides, strict=True) for part in (row.id, row.ended, side.agent))
        if (comparison := self._comparisons.get(key)) is None:
            flaky = find_known_flaky(self.history, [row.id for row in rows], {side.agent for side in sides})
            before, after = ((side.run, self._iter_results(side)) for side in sides)
            comparison = compare_runs(before, after, flaky=flaky)
            if all(row.ended for row in rows):
                self._comparisons = {key: comparison}
        return TwoRuns(comparison, sides[0], sides[1], list_differences(self.history, sides[0], sides[1]))

    def _iter_results(self, side: RunSide) -> Iterable[ResultRow]:
        """The results of one agent in a run. In a run of a single agent all results: older journals do not name the agent."""
        rows = partial(self.history.iter_results, side.run)
        return AgentRows(rows, side.agent) if len(side.agents) > 1 else rows()

    def build_matrix(self, names: Sequence[str]) -> LinkedMatrix:
        """The matrix of all agents of several runs."""
        rows = [self.history.find_run(name) for name in names]
        results = [RunResults(row.id, partial(self.history.iter_results, row.id), row.agents) for row in rows]
        columns = split_columns(results)
        run_agents = [RunAgent(column.run, column.agent) for column in columns]
        return LinkedMatrix(compare_columns(columns), run_agents)

    def _is_live(self, row: RunRow) -> bool:
        return row.ended is None and is_journal_in_use(self.history.journal_path(row.id))

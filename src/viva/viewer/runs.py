"""What the viewer shows of a project's runs, read from their index and their journals.

A journal is read once: after that only what was appended to it. Of each trial the place in the file is kept, not the
record. A run's name is looked up in the index before any path is made of it.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from viva.errors import BadInput
from viva.history.comparison import Comparison, compare_runs
from viva.history.index import History, RunRow
from viva.history.trends import find_known_flaky
from viva.model import codec
from viva.model.case import Key
from viva.model.event import RunEnded, RunStarted
from viva.record.journal import locate_record
from viva.record.locks import is_in_use
from viva.reporters.page import CaseRow, Overview, build_overview
from viva.reporters.report import CaseTrials, RecordHead
from viva.stats.pass_rule import PassRule

_MOST_OPEN = 16


class _Line(Struct):
    """As much of a journal's line as tells what it is."""

    event: str
    index: int = -1
    key: Key | None = None


_lines = codec.Decoder[_Line](_Line, codec.OWN_MAX_DEPTH)
_heads = codec.Decoder[RecordHead](RecordHead, codec.OWN_MAX_DEPTH)


class RunJournal:
    """The journal of one run, which may still grow. A case is known by the place of its first trial in the input."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self._read = 0
        self._places: dict[int, dict[int, tuple[int, int]]] = {}  # case -> trial -> where its record stands
        self._shown: Overview | None = None
        self._lock = threading.Lock()

    @property
    def is_live(self) -> bool:
        """Does it go on? A run that was killed has no end, but nobody writes to its journal."""
        return self.ended is None and is_in_use(self.path)

    def refresh(self) -> None:
        """Reads what was appended since the last time; a line that is not complete yet waits."""
        with self._lock, self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size <= self._read:
                return
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._add(line)
                self._read += len(line)
            self._shown = None

    def _add(self, line: bytes) -> None:
        try:
            found = _lines.decode(line)
            match found.event:
                case "run_started":
                    self.started = codec.decode_kept(line, type=RunStarted)
                case "run_ended":
                    self.ended = codec.decode_kept(line, type=RunEnded)
                case "run_resumed":
                    self.ended = None
                case "trial_ended" if found.key is not None:
                    start, length = locate_record(line)
                    first = found.index - found.key.trial + 1
                    self._places.setdefault(first, {})[found.key.trial] = (self._read + start, length)
                case _:
                    pass
        except codec.DecodeError as wrong:
            raise BadInput.of(f"byte {self._read}: is no event: {wrong}", str(self.path)) from wrong

    def load_case(self, index: int) -> CaseTrials | None:
        """A case with its records as they stand in the file; None where none of its trials has ended."""
        return next(self._cases([index]), None) if index in self._places else None

    def load_overview(self) -> Overview:
        """The whole run as its first screen needs it; made anew only where something was appended."""
        self.refresh()
        if (shown := self._shown) is not None:
            return shown
        with self._lock:
            indexes = sorted(self._places)
        shown = build_overview(self.started, self.ended, self._cases(indexes), self.path.parent.name)
        self._shown = shown = structs.replace(shown, cases=_numbered(shown.cases, indexes))
        return shown

    def _cases(self, indexes: Sequence[int]) -> Iterator[CaseTrials]:
        rule = PassRule.from_settings(self.started.settings if self.started else {})
        with self.path.open("rb") as file:
            for index in indexes:
                with self._lock:
                    places = sorted(self._places[index].items())
                raw = [os.pread(file.fileno(), length, at) for _, (at, length) in places]
                heads = [_heads.decode(each) for each in raw]
                # While the run goes on, a case stands as its trials so far say; what is missing may still come.
                missing = max(head.trials for head in heads) - len(heads) if self.ended else 0
                yield CaseTrials(heads, raw, rule, max(0, missing))


def _numbered(rows: Sequence[CaseRow], indexes: Sequence[int]) -> list[CaseRow]:
    """The rows with numbers that stay the same while the run goes on."""
    return [structs.replace(row, index=index) for row, index in zip(rows, indexes, strict=True)]


class ProjectRuns:
    """All runs of a project, for many requests at once."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._open: OrderedDict[str, RunJournal] = OrderedDict()
        self._compared: dict[tuple[str | None, ...], Comparison] = {}
        self._lock = threading.Lock()

    def find(self, name: str) -> RunJournal:
        """A run by its id, the beginning of it, or `latest`; BadInput for one that is not in the index or has no journal."""
        run = self.history.find_run(name).id
        with self._lock:
            file = self._open.pop(run, None) or RunJournal(self.history.journal_path(run))
            self._open[run] = file
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        try:
            file.refresh()
        except FileNotFoundError as gone:
            raise BadInput.of(f"the journal of run {run} is gone") from gone
        return file

    def list_live_runs(self) -> list[str]:
        return [row.id for row in self.history.list_runs() if self._is_live(row)]

    def list_runs(self) -> list[dict[str, Any]]:
        """Newest first."""
        return [{**codec.to_builtins(row), "live": self._is_live(row)} for row in self.history.list_runs()]

    def compare_runs(self, base: str, head: str) -> Comparison:
        """Two runs; what takes seconds for many cases is kept as long as neither of them goes on."""
        before, after = self.history.find_run(base), self.history.find_run(head)
        known = (before.id, before.ended, after.id, after.ended)
        if (found := self._compared.get(known)) is None:
            flaky = find_known_flaky(self.history, [before.id, after.id])
            results = [(run.id, self.history.list_results(run.id)) for run in (before, after)]
            found = compare_runs(results[0], results[1], flaky=flaky)
            if before.ended and after.ended:
                self._compared = {known: found}
        return found

    def _is_live(self, row: RunRow) -> bool:
        return row.ended is None and is_in_use(self.history.journal_path(row.id))

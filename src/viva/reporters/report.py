"""The base class of file reports: they are written when the run has ended, from the records of the journal.

Records are read one case at a time, so that memory does not grow with the number of cases.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from viva.model import codec
from viva.model.event import Event, RunEnded, RunStarted
from viva.model.finding import Finding
from viva.model.message import Usage
from viva.model.record import Cell, Status, TrialRecord
from viva.record.atomic_files import open_replacement
from viva.record.journal import Journal
from viva.stats.pass_rule import PassRule


class Report:
    """A reporter that writes a file at the end of the run. Raises OSError if the file cannot be written."""

    live = False

    def __init__(self, path: Path, journal: Journal) -> None:
        self._path = path
        self._journal = journal
        self._started: RunStarted | None = None

    def receive(self, events: Sequence[Event]) -> None:
        """Collects what the report needs."""
        for event in events:
            if isinstance(event, RunStarted):
                self._started = event
            elif isinstance(event, RunEnded):
                with open_replacement(self._path) as out:
                    self.write(out, event)

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        """Writes the report when the run has ended: in a thread, so that the event loop goes on."""
        raise NotImplementedError

    def cases(self) -> "Iterator[CaseTrials]":
        """The cases with their trials, in input order."""
        return group_by_case(self._journal, self.rule, names_agents=self._has_several_agents)

    @property
    def _has_several_agents(self) -> bool:
        return self._started is not None and len(self._started.agents) > 1

    @property
    def rule(self) -> PassRule:
        """The rule by which a case of this run passes."""
        return PassRule.from_settings(self.settings)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the run, as its first event has them."""
        return self._started.settings if self._started else {}


class RecordHead(Struct):
    """The fields of a record that are decoded for every trial."""

    id: str
    name: str
    suite: str
    status: Status
    duration_ms: float
    total_turns: int = 0
    trials: int = 1
    usage: Usage | None = None
    cost_usd: float | None = None
    findings: tuple[Finding, ...] = ()
    agent: str | None = None
    digest: str | None = None

    @property
    def cell(self) -> Cell:
        """The suite, the case and the agent of the record."""
        return self.suite, self.id, self.agent or ""


class CaseTrials(Struct):
    """One case on one agent and the encoded records of its trials; `missing` trials were planned but did not run."""

    heads: list[RecordHead]
    raw: list[bytes]
    rule: PassRule
    missing: int = 0
    names_agent: bool = False
    """Does `title` contain the agent? True in a run of several agents."""

    @property
    def head(self) -> RecordHead:
        return self.heads[0]

    @property
    def statuses(self) -> list[Status]:
        return [head.status for head in self.heads]

    @property
    def status(self) -> Status:
        return self.rule.status(self.statuses, self.missing)

    @property
    def title(self) -> str:
        title = self.head.id if self.head.name in ("", self.head.id) else f"{self.head.id} {self.head.name}"
        return f"{title} [{self.head.agent}]" if self.names_agent else title

    @property
    def findings(self) -> list[str]:
        """The findings of safety checks in all trials, without repeats."""
        return [str(finding) for finding in sorted({finding for head in self.heads for finding in head.findings})]

    def records(self) -> list[TrialRecord]:
        return [codec.decode_own(raw, type=TrialRecord) for raw in self.raw]

    def pick_record(self, records: list[TrialRecord]) -> TrialRecord:
        """The record that explains the case: the first with its status, or the first that did not pass."""
        status = self.status
        not_passed = [record for record in records if record.status != "passed"]
        return next((record for record in not_passed if record.status == status), (not_passed or records)[0])


def group_by_case(journal: Journal, rule: PassRule, *, names_agents: bool = False) -> Iterator[CaseTrials]:
    """The records of a journal by case and agent. The trials of a case on an agent are adjacent in input order."""
    pairs = ((codec.decode_own(raw, type=RecordHead), raw) for raw in journal.iterate_raw_records())
    for _, group in groupby(pairs, key=lambda pair: pair[0].cell):
        trials = list(group)
        missing = rule.count_missing(len(trials), max(head.trials for head, _ in trials))
        heads = [head for head, _ in trials]
        yield CaseTrials(heads, [raw for _, raw in trials], rule, missing, names_agents)


def group_equal_texts(case: CaseTrials, texts: Iterable[tuple[TrialRecord, str]]) -> list[str]:
    """The texts of a case's trials, each with its trial numbers. Equal texts are joined into one."""
    trials: dict[str, list[int]] = {}
    for record, text in texts:
        trials.setdefault(text, []).append(record.trial)
    if len(case.heads) == 1:
        return list(trials)
    return [f"{_format_trials(numbers)}: {text}" for text, numbers in trials.items()]


def _format_trials(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"Trial {numbers[0]}"
    return f"Trials {', '.join(map(str, numbers))} ({len(numbers)} times the same)"


def prefix_trial_number(case: CaseTrials, record: TrialRecord, text: str) -> str:
    """`Trial 2: text` if the case has several trials, else the text."""
    return f"Trial {record.trial}: {text}" if len(case.heads) > 1 else text

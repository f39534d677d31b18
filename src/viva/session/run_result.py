"""`viva.RunResult`: the result of a run for Python code, consoles and notebooks.

Its texts and its statistics are imported when they are needed, to keep the first run fast.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from msgspec import Struct

from viva.model import codec
from viva.model.event import RunEnded, RunSummary
from viva.model.record import TrialRecord
from viva.record.journal import Journal
from viva.stats.pass_rule import PassRule

if TYPE_CHECKING:
    from viva.stats.matrix import Matrix

_NOT_PASSED_STATUSES = frozenset({"failed", "error"})


class RunDetails(Struct, frozen=True):
    """What a run returns besides its events."""

    report_text: str | None = None
    """The text of an agent as reporter, if it writes no file."""
    stop_signal: int | None = None
    """The signal that stopped the run, if one did."""
    empty_reason: str | None = None
    """Why the filters selected no case, if they selected none."""


_NO_DETAILS = RunDetails()


class RunResult:
    """The result of a run: true if the run passed, and a sequence of the records of its trials.

    result = viva.run("tests/", my_agent)
    assert result, result                      # the text says which cases failed, and why
    for record in result: ...                  # the trials that ended, in input order; len(result) is their number
    result["refund"].turns[0].output           # a case by its id; also result[0] and result[:3]
    result.failures, result.summary            # the trials that failed or had an error; the counts
    result.to_dicts(), result.to_dataframe()   # one row per trial
    """

    def __init__(
        self,
        ended: RunEnded,
        journal: Journal,
        *,
        rule: PassRule,
        agents: tuple[str, ...] = (),
        has_history: bool = True,
        details: RunDetails = _NO_DETAILS,
    ) -> None:
        self.run_id = ended.run
        """The id of the run, for `viva runs show`."""
        self.exit_code = ended.exit_code
        """What `viva test` would exit with."""
        self.summary: RunSummary = ended.summary
        """The counts, the cost and the time."""
        self.report_text = details.report_text
        """The text of an agent as reporter, if it writes no file."""
        self.stop_signal = details.stop_signal
        """The signal that stopped the run, if one did."""
        self.empty_reason = details.empty_reason
        """Why the filters selected no case, if they selected none."""
        self.agents = agents
        """The agents under test, in the order of `agent`."""
        self._ended = ended
        self._journal = journal
        self._rule = rule
        self._has_history = has_history

    @property
    def passed(self) -> bool:
        """Is the exit code 0?"""
        return self.exit_code == 0

    @property
    def folder(self) -> Path | None:
        """The folder of the journal; None for a run without history."""
        return self._journal.path.parent if self._has_history else None

    @property
    def failures(self) -> list[TrialRecord]:
        """The records of the trials that failed or had an error."""
        return list(self._iterate_failures())

    def records(self) -> "Records":
        """The records of all trials that ended, in input order. They are read from the journal when they are needed."""
        return Records(self._journal)

    def trials(self, case_id: str, suite: str | None = None, agent: str | None = None) -> list[TrialRecord]:
        """All trials of a case on an agent. Raises KeyError if the run does not have the case, or if several suites or agents have one."""
        records = [
            record
            for record in self
            if record.id == case_id and suite in (None, record.suite) and agent in (None, record.agent)
        ]
        agents = dict.fromkeys(record.agent for record in records)
        if len(agents) > 1:
            raise KeyError(f"several agents ran {case_id!r}: use trials({case_id!r}, agent={next(iter(agents))!r})")
        suites = dict.fromkeys(record.suite for record in records)
        if len(suites) > 1:
            raise KeyError(
                f"several suites have a case {case_id!r}: use trials({case_id!r}, suite={next(iter(suites))!r})"
            )
        if not records:
            from viva.text.similar_names import find_similar_names

            near = find_similar_names(case_id, {record.id for record in self})
            raise KeyError(f"no case {case_id!r} ended" + (f"; did you mean {' or '.join(near)}?" if near else ""))
        return records

    @property
    def matrix(self) -> "Matrix":
        """All cases on all agents: rates with intervals, cost and p95, and how each agent differs from the first."""
        from viva.stats.matrix import MatrixBuilder, MatrixTrial

        builder = MatrixBuilder(self.agents, is_sequential=self._rule.test is not None)
        for record in self:
            trial = MatrixTrial(
                record.suite, record.id, record.status, record.duration_ms, record.cost_usd, record.digest
            )
            builder.add(record.agent or "", trial)
        return builder.build()

    def to_dicts(self) -> list[dict[str, Any]]:
        """One flat dict per trial: status, reason, texts, time, tokens, cost."""
        from viva.session.run_result_text import build_row

        return [build_row(record) for record in self]

    def to_dataframe(self) -> Any:
        """The rows of `to_dicts` as a pandas DataFrame. Raises ImportError without pandas."""
        try:
            import pandas as pd  # pyright: ignore[reportMissingModuleSource, reportMissingImports, reportUnknownVariableType]  # not a dependency
        except ImportError as error:
            raise ImportError("to_dataframe needs pandas: pip install pandas; to_dicts() works without") from error
        return pd.DataFrame(self.to_dicts())  # pyright: ignore[reportUnknownVariableType]

    def __bool__(self) -> bool:
        return self.passed

    def __len__(self) -> int:
        return len(self._journal)

    def __iter__(self) -> Iterator[TrialRecord]:
        return self._journal.records()

    def __contains__(self, key: object) -> bool:
        """Did a case of this id end, or is this the record of a trial?"""
        return any(key in (record.id, record) for record in self)

    @overload
    def __getitem__(self, key: str | int) -> TrialRecord: ...
    @overload
    def __getitem__(self, key: slice) -> list[TrialRecord]: ...
    def __getitem__(self, key: str | int | slice) -> TrialRecord | list[TrialRecord]:
        """The record of a case by its id, of a trial by its number, or a slice. Of several trials, the first with the status of the case."""
        if isinstance(key, int | slice):
            return self.records()[key]
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- the caller may not check types
            raise TypeError(f"a result is indexed by a case id, a number or a slice, not by {type(key).__name__}")
        trials = self.trials(key)
        status = self._rule.status([record.status for record in trials])
        return next((record for record in trials if record.status == status), trials[0])

    def __repr__(self) -> str:
        """One line that begins with the first failure, because pytest shows only the beginning."""
        from viva.session.run_result_text import format_line

        return format_line(self._ended, None if self.passed else next(self._iterate_failures(), None))

    def __str__(self) -> str:
        """The counts, and the reason of each trial that did not pass."""
        from viva.session.run_result_text import format_text

        return format_text(self._ended, self, self.agents, self.empty_reason)

    def _repr_html_(self) -> str:
        """HTML for notebooks: the counts, and a row per trial that opens to its conversation. Failures come first."""
        from viva.session.run_result_text import format_html

        return format_html(self._ended, self)

    def _iterate_failures(self) -> Iterator[TrialRecord]:
        return (record for record in self if record.status in _NOT_PASSED_STATUSES)


class Records(Sequence[TrialRecord]):
    """The records of a run as a sequence. Each is read from the journal when it is needed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._places = journal.list_record_positions()

    @overload
    def __getitem__(self, key: int) -> TrialRecord: ...
    @overload
    def __getitem__(self, key: slice) -> list[TrialRecord]: ...
    def __getitem__(self, key: int | slice) -> TrialRecord | list[TrialRecord]:
        if isinstance(key, slice):
            return [self[place] for place in range(*key.indices(len(self)))]
        return codec.decode_own(self._journal.read_raw_record(*self._places[key]), type=TrialRecord)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"<{len(self)} records>"

"""Statistics of a run: equal failures as groups, pass rates by tag, suite, type of assertion and tool, and highlights."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from viva.model.record import Status, TrialRecord
from viva.reporters.failures import TrialFailure
from viva.reporters.formatting import fit_line, format_rounded_cost
from viva.reporters.summary import Row
from viva.stats.proportions import Interval, wilson_interval

_MAX_LISTED = 100
_MAX_GROUPS = 1000
_MAX_TOOLS = 5
_TITLE_ROOM = 160
_VARYING = re.compile(
    r"0x[0-9a-f]+|\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b[0-9a-f]{12,}\b|\d+(?:[.:,]\d+)*|(?<=[\"'«“`])[^\"'»”`]{12,}(?=[\"'»”`])",
    re.IGNORECASE,
)
"""What differs between equal failures: numbers, ids, addresses, long quotations."""


class FailureGroup(Struct, frozen=True, omit_defaults=True):
    """Cases that failed in the same way. `CaseRow.group` is the position of a group in the list."""

    title: str
    cases: int
    status: Status


class NamedRate(Struct, frozen=True, omit_defaults=True):
    """How many of the decided cases, checks or calls passed, with the 95 % interval."""

    name: str
    passed: int
    decided: int
    interval: Interval | None = None


class Breakdown(Struct, frozen=True, omit_defaults=True):
    """The rates of cases by tag and suite, of assertions by type, and of tool calls by tool; the lowest rate first."""

    tags: tuple[NamedRate, ...] = ()
    suites: tuple[NamedRate, ...] = ()
    types: tuple[NamedRate, ...] = ()
    tools: tuple[NamedRate, ...] = ()


class _RateCounter:
    """Counts passed and decided items by name."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self.decided: Counter[str] = Counter()

    def add(self, name: str, *, passed: int, decided: int = 1) -> None:
        self.passed[name] += passed
        self.decided[name] += decided

    def list_rates(self) -> tuple[NamedRate, ...]:
        rates = [
            NamedRate(name, self.passed[name], decided, wilson_interval(self.passed[name], decided))
            for name, decided in self.decided.items()
            if decided
        ]
        rates.sort(key=lambda rate: (rate.passed / rate.decided, -rate.decided))
        return tuple(rates[:_MAX_LISTED])


class BreakdownCounter:
    """Counts passes by tag, suite, type of assertion and tool, and groups equal failures, case by case."""

    def __init__(self) -> None:
        self._tags, self._suites, self._types, self._tools = (
            _RateCounter(),
            _RateCounter(),
            _RateCounter(),
            _RateCounter(),
        )
        self._positions: dict[tuple[Status, str], int] = {}
        self._groups: list[FailureGroup] = []

    def add_case(self, suite: str, tags: Iterable[str], status: Status) -> None:
        if status in ("passed", "failed"):
            passed = int(status == "passed")
            self._suites.add(suite, passed=passed)
            for tag in tags:
                self._tags.add(tag, passed=passed)

    def add_checks(self, verdicts: Iterable[tuple[str, bool | None]]) -> None:
        """Counts assertions, given as types and verdicts. An assertion without a verdict is left out."""
        for name, passed in verdicts:
            if passed is not None:
                self._types.add(name, passed=int(passed))

    def add_tool_call(self, name: str, *, has_error: bool) -> None:
        self._tools.add(name, passed=int(not has_error))

    def add_failure(self, failure: TrialFailure) -> int | None:
        """Adds a failure to its group and returns the group's position; None if there are too many groups."""
        text, is_name = describe_failure(failure)
        text = fit_line(text, _TITLE_ROOM)
        pattern = text if is_name else mask_varying_parts(text)
        position = self._positions.get((failure.status, pattern))
        if position is None:
            if len(self._groups) == _MAX_GROUPS:
                return None
            self._positions[failure.status, pattern] = len(self._groups)
            self._groups.append(FailureGroup(text, 1, failure.status))
            return len(self._groups) - 1
        known = self._groups[position]
        title = text if known.title == text else pattern
        self._groups[position] = FailureGroup(title, known.cases + 1, known.status)
        return position

    def build(self) -> Breakdown:
        """Suites are listed only where there are several."""
        suites = self._suites.list_rates()
        return Breakdown(
            self._tags.list_rates(),
            suites if len(suites) > 1 else (),
            self._types.list_rates(),
            self._tools.list_rates(),
        )

    @property
    def groups(self) -> Sequence[FailureGroup]:
        return self._groups


class RunHighlights:
    """Finds the most expensive turn of a run and the tools whose calls failed. Records are added one by one."""

    def __init__(self) -> None:
        self._highest_cost_usd = 0.0
        self._costliest_turn = ""
        self._tools = _RateCounter()

    def add(self, record: TrialRecord) -> None:
        for turn in record.turns:
            for call in turn.tool_calls:
                self._tools.add(call.name, passed=int(call.error is None))
            if (turn.cost_usd or 0.0) > self._highest_cost_usd:
                self._highest_cost_usd = turn.cost_usd or 0.0
                trial = f", trial {record.trial}" if record.trials > 1 else ""
                self._costliest_turn = f"turn {turn.turn} of {fit_line(record.id, _TITLE_ROOM)}{trial}"

    def describe(self) -> list[Row]:
        """A row for each highlight that the run has."""
        rows: list[Row] = []
        if self._costliest_turn:
            rows.append(
                ("Most expensive turn", f"{self._costliest_turn}, {format_rounded_cost(self._highest_cost_usd)}")
            )
        failed = [rate for rate in self._tools.list_rates() if rate.passed < rate.decided]
        failed.sort(key=lambda rate: rate.passed - rate.decided)
        if failed:
            texts = [
                f"{fit_line(rate.name, _TITLE_ROOM)} {rate.decided - rate.passed} of {rate.decided}" for rate in failed
            ]
            rows.append(("Failed tool calls", ", ".join(texts[:_MAX_TOOLS])))
        return rows


def mask_varying_parts(text: str) -> str:
    """The text with `…` for its numbers, ids, addresses and long quotations: equal failures have equal ones."""
    return _VARYING.sub("…", text)


def describe_failure(failure: TrialFailure) -> tuple[str, bool]:
    """A failure without its place: the name of the failed check, or the error; and True if it is the name of a check."""
    first = failure.failed_checks[0] if failure.failed_checks else None
    if failure.error or first is None:
        return failure.error or failure.status, False
    if first.label and not first.is_error:
        return first.label, True
    return ": ".join(part for part in (first.label, first.reason) if part) or failure.status, False

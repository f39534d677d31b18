"""Statistics of failures: equal failures as groups, and pass rates by tag, suite and type of assertion."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from viva.model.record import Status
from viva.reporters.failures import TrialFailure
from viva.reporters.formatting import fit_line
from viva.stats.proportions import Interval, wilson_interval

_MAX_LISTED = 100
_MAX_GROUPS = 1000
_TITLE_ROOM = 160
_VARYING = re.compile(
    r"0x[0-9a-f]+|\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b[0-9a-f]{12,}\b|\d+(?:[.:,]\d+)*|(?<=[\"'«“`])[^\"'»”`]{12,}(?=[\"'»”`])",
    re.IGNORECASE,
)
"""What differs between equal failures: numbers, ids, addresses, long quotations."""


class FailureGroup(Struct, frozen=True, omit_defaults=True):
    """Cases that failed in the same way. Rows refer to a group by its position."""

    title: str
    cases: int
    status: Status


class Rate(Struct, frozen=True, omit_defaults=True):
    """How many passed of those with a verdict, with the 95 % interval."""

    name: str
    passed: int
    judged: int
    interval: Interval | None = None


class Breakdown(Struct, frozen=True, omit_defaults=True):
    """The rates of cases by tag and suite, of assertions by type, and of tool calls by tool; the lowest rate first."""

    tags: tuple[Rate, ...] = ()
    suites: tuple[Rate, ...] = ()
    types: tuple[Rate, ...] = ()
    tools: tuple[Rate, ...] = ()


class _Counts:
    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()

    def add(self, name: str, *, passed: int, judged: int = 1) -> None:
        self.passed[name] += passed
        self.judged[name] += judged

    def list_rates(self) -> tuple[Rate, ...]:
        rates = [
            Rate(name, self.passed[name], judged, wilson_interval(self.passed[name], judged))
            for name, judged in self.judged.items()
            if judged
        ]
        rates.sort(key=lambda rate: (rate.passed / rate.judged, -rate.judged))
        return tuple(rates[:_MAX_LISTED])


class BreakdownCounter:
    """Counts case by case; keeps a few numbers for each tag, suite, type and group."""

    def __init__(self) -> None:
        self._tags, self._suites, self._types, self._tools = _Counts(), _Counts(), _Counts(), _Counts()
        self._positions: dict[tuple[Status, str], int] = {}
        self._groups: list[FailureGroup] = []

    def add_case(self, suite: str, tags: Iterable[str], status: Status) -> None:
        if status in ("passed", "failed"):
            passed = int(status == "passed")
            self._suites.add(suite, passed=passed)
            for tag in tags:
                self._tags.add(tag, passed=passed)

    def add_checks(self, verdicts: Iterable[tuple[str, bool | None]]) -> None:
        """The type of each assertion with its verdict; one that could not be evaluated does not count."""
        for name, passed in verdicts:
            if passed is not None:
                self._types.add(name, passed=int(passed))

    def add_tool_call(self, name: str, *, has_error: bool) -> None:
        self._tools.add(name, passed=int(not has_error))

    def add_failure(self, failure: TrialFailure) -> int | None:
        """The position of the failure's group; None if there are too many groups already."""
        text, is_name = describe_failure(failure)
        text = fit_line(text, _TITLE_ROOM)
        pattern = text if is_name else _VARYING.sub("…", text)
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


def describe_failure(failure: TrialFailure) -> tuple[str, bool]:
    """A failure without its place: the name of the failed check, or the error; and True if it is the name of a check."""
    first = failure.failed_checks[0] if failure.failed_checks else None
    if failure.error or first is None:
        return failure.error or failure.status, False
    if first.label and not first.is_error:
        return first.label, True
    return ": ".join(part for part in (first.label, first.reason) if part) or failure.status, False

"""A matrix of cases and agents: the pass rate of each case on each agent, and which differences are more than chance.

Every agent is compared with the first. If no agent differs from it, the chance that any agent is called better or worse is at
most `alpha`, and so is the chance that any single case is.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from viva.model.record import Status
from viva.stats.paired import (
    CaseTest,
    Difference,
    estimate_difference_from_flips,
    estimate_paired_difference,
    fisher_test,
    mcnemar_test,
    min_differing_pairs,
    tarone_correction,
)
from viva.stats.proportions import Interval, Tally, anytime_interval, estimate_suite_rate, wilson_interval
from viva.stats.values import nearest_rank

ALPHA = 0.05
DifferenceVerdict = Literal["better", "worse", "no difference shown"]
CaseName = tuple[str, str]
"""Suite and case."""


class MatrixTrial(Struct, frozen=True, gc=False):
    """The values of one trial that a matrix needs. `digest` identifies the definition of the case."""

    suite: str
    case: str
    status: Status
    duration_ms: float = 0.0
    cost_usd: float | None = None
    digest: str | None = None

    @property
    def name(self) -> CaseName:
        return self.suite, self.case


class MatrixCell(Struct, frozen=True, omit_defaults=True, gc=False):
    """A case on one agent. `low` and `high` are the 95 % interval of the rate `passed` / `decided`.

    With repeats it has a `p` against the first agent, corrected for all tests of single cases. `is_changed`: the case has
    another definition than for the first agent, so the two are not compared.
    """

    passed: int
    decided: int
    errors: int = 0
    skipped: int = 0
    low: float | None = None
    high: float | None = None
    p: float | None = None
    verdict: DifferenceVerdict | None = None
    is_changed: bool = False

    @property
    def outcome(self) -> float | str:
        """The pass rate or, without a verdict, why there is none."""
        return self.passed / self.decided if self.decided else "error" if self.errors else "skipped"


class MatrixRow(Struct, frozen=True, gc=False):
    """A case on each agent, in the order of the columns; None where it did not run."""

    suite: str
    case: str
    cells: tuple[MatrixCell | None, ...]

    @property
    def is_different(self) -> bool:
        """Do the agents that ran the case differ in how often they pass, or in why there is no verdict?"""
        return len({cell.outcome for cell in self.cells if cell is not None}) > 1

    @property
    def is_shared(self) -> bool:
        """Did every agent run the case?"""
        return None not in self.cells


class RateDifference(Struct, frozen=True, kw_only=True):
    """The difference between the pass rates of an agent and of the first agent, over the cases (`pairs`) that both have.

    `p` and the interval are corrected for the number of agents: the interval has 0 inside it only if p is above alpha.
    """

    delta: float
    low: float | None
    high: float | None
    p: float
    confidence: float
    pairs: int
    differing: int
    verdict: DifferenceVerdict


class MatrixColumn(Struct, frozen=True, kw_only=True):
    """One agent over all its cases. The rate is the mean of the cases' rates, with its 95 % interval."""

    name: str
    cases: int
    trials: int
    passed_trials: int
    failed_trials: int
    errors: int
    skipped: int
    rate: float | None
    low: float | None
    high: float | None
    cost_usd: float | None
    """The cost of the trials whose price is known; None if none is."""
    unpriced_trials: int
    cost_per_trial_usd: float | None
    mean_ms: float | None
    p95_ms: float | None
    difference: RateDifference | None = None
    """None for the first agent, and for one that shares no case with it."""


class Matrix(Struct, frozen=True, kw_only=True):
    """All cases on all agents. `notes` explain the limits of the numbers."""

    alpha: float
    columns: tuple[MatrixColumn, ...]
    rows: tuple[MatrixRow, ...]
    notes: tuple[str, ...]

    @property
    def has_worse_agent(self) -> bool:
        return any(column.difference and column.difference.verdict == "worse" for column in self.columns)


class _CaseTrials:
    """The trials of a case on one agent."""

    __slots__ = ("digest", "statuses")

    def __init__(self, digest: str | None) -> None:
        self.digest = digest
        self.statuses: Counter[Status] = Counter()

    @property
    def tally(self) -> Tally:
        return Tally(self.statuses["passed"], self.statuses["passed"] + self.statuses["failed"])


class _AgentTrials:
    """The trials of one agent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases: dict[CaseName, _CaseTrials] = {}
        self.statuses: Counter[Status] = Counter()
        self.times_ms = array("d")
        self.cost_usd = 0.0
        self.priced = self.unpriced = 0

    def add(self, trial: MatrixTrial) -> None:
        trials = self.cases.get(trial.name)
        if trials is None:
            trials = self.cases[trial.name] = _CaseTrials(trial.digest)
        trials.statuses[trial.status] += 1
        self.statuses[trial.status] += 1
        if trial.status == "skipped":
            return
        self.times_ms.append(trial.duration_ms)
        if trial.cost_usd is None:
            self.unpriced += 1
        else:
            self.priced += 1
            self.cost_usd += trial.cost_usd


class MatrixBuilder:
    """Collects the trials of each column. `is_sequential`: a test chose the number of trials by looking at them."""

    def __init__(self, names: Iterable[str], *, is_sequential: bool = False) -> None:
        self._columns = {name: _AgentTrials(name) for name in names}
        self._is_sequential = is_sequential

    def add(self, column: str, trial: MatrixTrial) -> None:
        self._columns[column].add(trial)

    def build(self, alpha: float = ALPHA) -> Matrix:
        columns = list(self._columns.values())
        first, others = columns[0], columns[1:]
        pairs = {column.name: dict(_pair_cases(first, column)) for column in others}
        tests = {} if self._is_sequential else _test_cells(pairs, alpha)
        names = dict.fromkeys(name for column in columns for name in column.cases)
        rows = [
            MatrixRow(*name, tuple(self._build_cell(first, column, name, tests) for column in columns))
            for name in names
        ]
        differences = {
            column.name: _compare_rates(list(pairs[column.name].values()), alpha, len(others)) for column in others
        }
        built = tuple(_build_column(column, differences.get(column.name)) for column in columns)
        notes = tuple(_list_notes(built, pairs, alpha))
        return Matrix(alpha=alpha, columns=built, rows=tuple(rows), notes=notes)

    def _build_cell(
        self,
        first: _AgentTrials,
        column: _AgentTrials,
        name: CaseName,
        tests: "Mapping[tuple[str, CaseName], _CellTest]",
    ) -> MatrixCell | None:
        trials = column.cases.get(name)
        if trials is None:
            return None
        before = first.cases.get(name)
        is_changed = before is not None and before.digest != trials.digest
        tally, statuses = trials.tally, trials.statuses
        test = tests.get((column.name, name), _NOT_TESTED)
        counts = (tally.passed, tally.decided, statuses["error"], statuses["skipped"])
        return _get_shared_cell(counts, self._is_sequential, test, is_changed)


class _CellTest(Struct, frozen=True):
    p: float | None = None
    verdict: DifferenceVerdict | None = None


_NOT_TESTED = _CellTest()


@lru_cache(maxsize=10_000)
def _get_shared_cell(
    counts: tuple[int, int, int, int], is_sequential: bool, test: _CellTest, is_changed: bool
) -> MatrixCell:
    """One shared object for equal cells, to save memory: most cells of a large matrix are equal."""
    passed, decided, errors, skipped = counts
    interval = (anytime_interval if is_sequential else wilson_interval)(passed, decided)
    low, high = (interval.low, interval.high) if interval else (None, None)
    return MatrixCell(passed, decided, errors, skipped, low, high, test.p, test.verdict, is_changed)


def _pair_cases(first: _AgentTrials, other: _AgentTrials) -> Iterator[tuple[CaseName, tuple[Tally, Tally]]]:
    """The cases with the same definition and decided trials on both agents."""
    for name, before in sorted(first.cases.items()):  # the draws of a test do not depend on the order of the input
        now = other.cases.get(name)
        if now is not None and now.digest == before.digest and before.tally.decided and now.tally.decided:
            yield name, (before.tally, now.tally)


def _test_cells(
    pairs: Mapping[str, Mapping[CaseName, tuple[Tally, Tally]]], alpha: float
) -> dict[tuple[str, CaseName], _CellTest]:
    """The tests of single cases with repeats, corrected over all cases and agents."""
    tested = {
        (column, name): (pair, _test_case_rates(pair))
        for column, cases in pairs.items()
        for name, pair in cases.items()
        if not pair[0].decided == pair[1].decided == 1
    }
    correction = tarone_correction((test.min_p_value for _, test in tested.values()), alpha)
    return {key: _decide_cell_verdict(pair, test, correction, alpha) for key, (pair, test) in tested.items()}


def _test_case_rates(pair: tuple[Tally, Tally]) -> CaseTest:
    return fisher_test((pair[0].passed, pair[0].decided), (pair[1].passed, pair[1].decided))


def _decide_cell_verdict(pair: tuple[Tally, Tally], test: CaseTest, correction: int, alpha: float) -> _CellTest:
    before, now = (tally.passed / tally.decided for tally in pair)
    verdict: DifferenceVerdict = "no difference shown"
    if test.p_value <= alpha / correction:
        verdict = "better" if now > before else "worse"
    return _CellTest(min(1.0, correction * test.p_value), verdict)


def _compare_rates(pairs: Sequence[tuple[Tally, Tally]], alpha: float, agents: int) -> RateDifference | None:
    """The paired test of the pass rate. All `agents` that are compared with the first share the alpha."""
    confidence = 1 - alpha / agents
    rates = [(before.passed / before.decided, now.passed / now.decided) for before, now in pairs]
    difference = _estimate_difference(pairs, rates, confidence)
    if difference is None:
        return None
    p = min(1.0, agents * difference.p_value)
    interval: Interval | None = difference.interval
    return RateDifference(
        delta=difference.mean,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        p=p,
        confidence=confidence,
        pairs=len(pairs),
        differing=sum(before != now for before, now in rates),
        verdict="no difference shown" if p > alpha else "better" if difference.mean > 0 else "worse",
    )


def _estimate_difference(
    pairs: Sequence[tuple[Tally, Tally]], rates: Sequence[tuple[float, float]], confidence: float
) -> Difference | None:
    if all(tally.decided == 1 for pair in pairs for tally in pair):
        return estimate_difference_from_flips(
            mcnemar_test((before == 1.0, now == 1.0) for before, now in rates), confidence
        )
    return estimate_paired_difference(rates, confidence)


def _build_column(column: _AgentTrials, difference: RateDifference | None) -> MatrixColumn:
    statuses = column.statuses
    rate = estimate_suite_rate(trials.tally for trials in column.cases.values())
    times = sorted(column.times_ms)
    return MatrixColumn(
        name=column.name,
        cases=len(column.cases),
        trials=statuses.total(),
        passed_trials=statuses["passed"],
        failed_trials=statuses["failed"],
        errors=statuses["error"],
        skipped=statuses["skipped"],
        rate=rate.rate if rate else None,
        low=rate.interval.low if rate else None,
        high=rate.interval.high if rate else None,
        cost_usd=column.cost_usd if column.priced else None,
        unpriced_trials=column.unpriced,
        cost_per_trial_usd=column.cost_usd / column.priced if column.priced else None,
        mean_ms=sum(times) / len(times) if times else None,
        p95_ms=nearest_rank(times, 95) if times else None,
        difference=difference,
    )


def _list_notes(
    columns: Sequence[MatrixColumn], pairs: Mapping[str, Mapping[CaseName, tuple[Tally, Tally]]], alpha: float
) -> Iterator[str]:
    """The limits of the numbers, in words."""
    others = columns[1:]
    if len(others) > 1:
        yield (
            f"{len(others)} agents are compared with {columns[0].name}: each p is multiplied by {len(others)}, and the "
            f"intervals of the differences have a confidence of {(1 - alpha / len(others)) * 100:.4g} %"
        )
    fewest = min_differing_pairs(alpha / max(1, len(others)))
    few = [column for column in others if (difference := column.difference) and 0 < difference.differing < fewest]
    if few:
        names = ", ".join(column.name for column in few)
        yield f"{names}: fewer than {fewest} cases differ, which can never be significant at {alpha:g}"
    if unpaired := [column.name for column in others if not pairs[column.name]]:
        yield f"{', '.join(unpaired)}: no case has the same definition and a verdict on {columns[0].name} too"
    if unpriced := [column.name for column in columns if column.cost_usd is not None and column.unpriced_trials]:
        yield f"{', '.join(unpriced)}: some trials have no known price; their cost is not included"

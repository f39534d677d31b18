"""Compares two runs of the same cases: what is fixed, what is broken, and whether that is more than chance.

A case whose definition changed is a different test and is not compared. Every alarm has a known error rate: if nothing
changed, it is raised at most with probability `alpha`.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, get_args

from msgspec import Struct, structs

from viva.errors import natural_sort_key
from viva.history.index import ResultRow
from viva.model.record import Status
from viva.stats.paired import (
    CaseTest,
    Difference,
    estimate_difference_from_flips,
    estimate_paired_difference,
    fisher_test,
    mcnemar_test,
    min_differing_pairs,
    min_trials_to_detect,
    tarone_correction,
)
from viva.stats.pass_rate import decide_status_from_counts

ChangeKind = Literal[
    "broken", "suspect", "fixed", "maybe fixed", "flaky", "still failing", "not decided", "changed", "new", "gone", "still passing"
]  # fmt: skip
CHANGE_ORDER: tuple[ChangeKind, ...] = get_args(ChangeKind)
Gate = Literal["pass-rate", "score", "time", "cost", "broken"]
MetricVerdict = Literal["better", "worse", "no change shown", "not tested"]
CaseName = tuple[str, str]
"""Suite and case."""
CaseDefinition = tuple[str, str, str | None]
"""Suite, case and the digest of its definition."""
ALPHA = 0.05
_SummedField = Literal["score", "cost_usd", "duration_ms"]


class TrialCounts(Struct, frozen=True, gc=False):
    """The trials of a case in one run. `errors` are not among the `decided` ones."""

    passed: int
    decided: int
    errors: int = 0


class CaseChange(Struct, frozen=True, kw_only=True, gc=False):
    """One case in both runs. Cases with repeats have a `p`, corrected for the number of tested cases."""

    suite: str
    case: str
    change: ChangeKind
    base: Status | None = None
    head: Status | None = None
    error: str | None = None
    """Why the case did not pass in the head run."""
    base_error: str | None = None
    """Why the case did not pass in the base run."""
    base_trials: TrialCounts | None = None
    head_trials: TrialCounts | None = None
    p: float | None = None


class Metric(Struct, frozen=True, kw_only=True):
    """How a value changed over the cases (`pairs`) of both runs, and in how many of them it differs.

    `p` and the interval from `low` to `high` are corrected for the number of tested metrics: the interval contains 0 if
    and only if p is above alpha. A metric that is not tested has an uncorrected interval and no p.
    """

    name: str
    pairs: int
    differing: int
    base_trials: int
    head_trials: int
    base: float
    head: float
    delta: float
    confidence: float
    low: float | None
    high: float | None
    p: float | None
    verdict: MetricVerdict


class Comparison(Struct, frozen=True, kw_only=True):
    """The differences between two runs. `notes` explain the limits of the numbers."""

    base: str
    head: str
    alpha: float
    cases: tuple[CaseChange, ...]
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...]

    def count(self, change: ChangeKind) -> int:
        return sum(case.change == change for case in self.cases)

    def list_failed_gates(self, gates: Collection[Gate]) -> list[Gate]:
        """Return the gates by which the head is worse."""
        return [gate for gate in gates if self._is_worse(gate)]

    def _is_worse(self, gate: Gate) -> bool:
        if gate == "broken":
            return self.count("broken") > 0
        names = [_METRICS[gate], "pass rate"] if gate == "score" else [_METRICS[gate]]
        # A score that equals the pass rate in all cases is not listed.
        metric = next((metric for name in names for metric in self.metrics if metric.name == name), None)
        return metric is not None and metric.verdict == "worse"


_METRICS: dict[Gate, str] = {"pass-rate": "pass rate", "score": "score", "time": "time ms", "cost": "cost USD"}


class _TrialSums(Struct, gc=False):
    """The trials of one case in one run as sums: with 100,000 cases, there is no memory for every row.

    A sum covers the decided trials; it is None if one of them has no value.
    """

    digests: tuple[str | None, ...] = ()
    passed: int = 0
    failed: int = 0
    errors: int = 0
    error: str | None = None
    score: float | None = 0.0
    cost_usd: float | None = 0.0
    duration_ms: float | None = 0.0

    def add(self, row: ResultRow) -> None:
        if row.digest not in self.digests:
            self.digests = (*self.digests, row.digest)
        self.error = self.error or row.error or None
        self.errors += row.status == "error"
        if row.status in ("passed", "failed"):
            self.passed += row.status == "passed"
            self.failed += row.status == "failed"
            # A trial that failed before any check scores 0: leaving it out would make the run look better.
            score = 0.0 if row.score is None and row.status == "failed" else row.score
            self.score = _add_if_known(self.score, score)
            self.cost_usd = _add_if_known(self.cost_usd, row.cost_usd)
            self.duration_ms = _add_if_known(self.duration_ms, row.duration_ms)

    @property
    def status(self) -> Status:
        return decide_status_from_counts(self.passed, self.failed, self.errors)

    @property
    def counts(self) -> TrialCounts:
        return _get_shared_counts(self.passed, self.passed + self.failed, self.errors)

    def mean(self, metric: _SummedField) -> float | None:
        """Return the mean over the decided trials; None if one of them has no value, or none is decided."""
        total: float | None = getattr(self, metric)
        decided = self.passed + self.failed
        return total / decided if total is not None and decided else None


def _add_if_known(total: float | None, value: float | None) -> float | None:
    return None if total is None or value is None else total + value


@lru_cache(maxsize=10_000)
def _get_shared_counts(passed: int, decided: int, errors: int) -> TrialCounts:
    """One shared object for equal counts, to save memory: most cases have the same."""
    return TrialCounts(passed, decided, errors)


class _CaseInBothRuns(Struct, gc=False):
    """A case in both runs."""

    before: _TrialSums | None = None
    after: _TrialSums | None = None

    @property
    def has_same_definition(self) -> bool:
        return self.before is not None and self.after is not None and {*self.before.digests} == {*self.after.digests}

    @property
    def pair(self) -> "_ComparedCase | None":
        """Both sides, if they have the same definition and decided trials."""
        before, after = self.before, self.after
        if before is None or after is None or not self.has_same_definition:
            return None
        return _ComparedCase(before, after) if before.counts.decided and after.counts.decided else None


class _ComparedCase(Struct, frozen=True, gc=False):
    """A case with the same definition and decided trials in both runs."""

    before: _TrialSums
    after: _TrialSums

    @property
    def base(self) -> TrialCounts:
        return self.before.counts

    @property
    def head(self) -> TrialCounts:
        return self.after.counts

    @property
    def is_single(self) -> bool:
        return self.base.decided == self.head.decided == 1

    @property
    def rates(self) -> tuple[float, float]:
        return self.base.passed / self.base.decided, self.head.passed / self.head.decided

    @property
    def test(self) -> CaseTest:
        return fisher_test((self.base.passed, self.base.decided), (self.head.passed, self.head.decided))


def compare_runs(
    base: tuple[str, Iterable[ResultRow]],
    head: tuple[str, Iterable[ResultRow]],
    *,
    alpha: float = ALPHA,
    gates: Collection[Gate] = (),
    flaky: Collection[CaseDefinition] = frozenset(),
) -> Comparison:
    """Compare two runs, each given as its name and results.

    Time and cost are tested only if they are among the `gates`. Known `flaky` cases are never called broken.
    """
    cases = _collect_cases(base[1], head[1])
    pairs = [pair for case in cases.values() if (pair := case.pair) is not None]
    correction = tarone_correction((pair.test.min_p_value for pair in pairs if not pair.is_single), alpha)
    known = {
        (suite, case)
        for suite, case, digest in flaky
        if (entry := cases.get((suite, case))) and entry.after and digest in entry.after.digests
    }
    changes = [
        _mark_as_flaky(change) if name in known else change
        for name, case in cases.items()
        for change in (_describe_change(name, case, alpha, correction),)
    ]
    # Three stable sorts, since keys of all three at once would take more memory than the cases.
    changes.sort(key=lambda each: natural_sort_key(each.case))
    changes.sort(key=lambda each: _build_suite_sort_key(each.suite))
    changes.sort(key=lambda each: CHANGE_ORDER.index(each.change))
    metrics = tuple(_build_metrics(pairs, alpha, gates))
    notes = tuple(_iterate_notes(changes, metrics, pairs, alpha))
    return Comparison(base=base[0], head=head[0], alpha=alpha, cases=tuple(changes), metrics=metrics, notes=notes)


def _collect_cases(base: Iterable[ResultRow], head: Iterable[ResultRow]) -> dict[CaseName, _CaseInBothRuns]:
    cases: dict[CaseName, _CaseInBothRuns] = defaultdict(_CaseInBothRuns)
    for row in base:
        case = cases[row.suite, row.case]
        case.before = case.before or _TrialSums()
        case.before.add(row)
    for row in head:
        case = cases[row.suite, row.case]
        case.after = case.after or _TrialSums()
        case.after.add(row)
        if case.before and case.before.digests == case.after.digests:
            case.after.digests = case.before.digests  # one object instead of two equal ones
    return cases


_build_suite_sort_key = lru_cache(maxsize=1000)(natural_sort_key)


def _describe_change(name: CaseName, case: _CaseInBothRuns, alpha: float, correction: int) -> CaseChange:
    before, after, pair = case.before, case.after, case.pair
    return CaseChange(
        suite=name[0],
        case=name[1],
        change=_classify_change(case, pair, alpha, correction),
        base=before.status if before else None,
        head=after.status if after else None,
        error=after.error if after else None,
        base_error=before.error if before else None,
        base_trials=before.counts if before else None,
        head_trials=after.counts if after else None,
        p=None if pair is None or pair.is_single else min(1.0, correction * pair.test.p_value),
    )


def _mark_as_flaky(case: CaseChange) -> CaseChange:
    """Mark a change of a known flaky case as flaky."""
    is_finding = case.change in ("broken", "suspect", "fixed", "maybe fixed")
    return structs.replace(case, change="flaky") if is_finding else case


def _classify_change(case: _CaseInBothRuns, pair: _ComparedCase | None, alpha: float, correction: int) -> ChangeKind:
    if case.before is None or case.after is None:
        return "new" if case.before is None else "gone"
    if pair is None:
        return "not decided" if case.has_same_definition else "changed"
    was, now = pair.rates
    if was == now in (0.0, 1.0):
        return "still passing" if now else "still failing"
    if pair.is_single or pair.test.p_value <= alpha / correction:
        return "fixed" if now > was else "broken"
    # With too few trials for a finding: cases that would be one alone, or that changed completely.
    complete = fisher_test((pair.base.decided, pair.base.decided), (0, pair.head.decided)).p_value
    if complete > alpha / correction and (pair.test.p_value <= alpha or abs(now - was) == 1.0):
        return "maybe fixed" if now > was else "suspect"
    return "flaky"


def _build_metrics(pairs: Sequence[_ComparedCase], alpha: float, gates: Collection[Gate]) -> list[Metric]:
    """Return pass rate, score, cost and time, each over the cases that have it in both runs."""
    rates = _collect_values("pass rate", ((pair, *pair.rates) for pair in pairs))
    score = _collect_values("score", _iterate_means(pairs, "score"))
    cost = _collect_values("cost USD", _iterate_means(pairs, "cost_usd"), up_is_good=False)
    time = _collect_values("time ms", _iterate_means(pairs, "duration_ms"), up_is_good=False)
    tested = [rates]
    if any((before, after) != pair.rates for pair, before, after in _iterate_means(pairs, "score")):
        tested.append(score)
    tested += [values for values, gate in ((cost, "cost"), (time, "time")) if gate in gates]
    tested = [values for values in tested if values.before]
    shown = [values for values in (*tested, cost, time) if values.before]
    confidence = 1 - alpha / max(1, len(tested))
    metrics = [
        _build_metric(values, confidence, len(tested), alpha)
        if values in tested
        else _build_metric(values, 1 - alpha, None, alpha)
        for values in dict.fromkeys(shown)
    ]
    order = list(_METRICS.values())
    return sorted(metrics, key=lambda metric: order.index(metric.name))


class _MetricValues(Struct, eq=False):
    """The values of a metric for each case, before and after, and the number of trials behind them."""

    name: str
    before: "array[float]"
    after: "array[float]"
    base_trials: int = 0
    head_trials: int = 0
    up_is_good: bool = True

    @property
    def is_yes_or_no(self) -> bool:
        return all(value in (0.0, 1.0) for values in (self.before, self.after) for value in values)

    @property
    def differing(self) -> int:
        return sum(before != after for before, after in zip(self.before, self.after, strict=True))

    def difference(self, confidence: float) -> Difference | None:
        both = zip(self.before, self.after, strict=True)
        if self.name == "pass rate" and self.is_yes_or_no:
            return estimate_difference_from_flips(
                mcnemar_test((before == 1.0, after == 1.0) for before, after in both), confidence
            )
        return estimate_paired_difference(list(both), confidence)


def _iterate_means(pairs: Iterable[_ComparedCase], value: _SummedField) -> Iterator[tuple[_ComparedCase, float, float]]:
    """The mean before and after, for the cases that have it in both runs."""
    for pair in pairs:
        before, after = pair.before.mean(value), pair.after.mean(value)
        if before is not None and after is not None:
            yield pair, before, after


def _collect_values(
    name: str, means: Iterable[tuple[_ComparedCase, float, float]], *, up_is_good: bool = True
) -> _MetricValues:
    values = _MetricValues(name, array("d"), array("d"), up_is_good=up_is_good)
    for pair, before, after in means:
        values.before.append(before)
        values.after.append(after)
        values.base_trials += pair.base.decided
        values.head_trials += pair.head.decided
    return values


def _build_metric(values: _MetricValues, confidence: float, tested: int | None, alpha: float) -> Metric:
    """Return one metric. `tested` metrics share the alpha; None for a metric that is only shown."""
    difference = values.difference(confidence)
    assert difference is not None, "there are values"
    count = len(values.before)
    p = None if tested is None else min(1.0, tested * difference.p_value)
    verdict: MetricVerdict = "not tested"
    if p is not None:
        went_up = difference.mean > 0
        verdict = "no change shown" if p > alpha else "better" if went_up == values.up_is_good else "worse"
    interval = difference.interval
    return Metric(
        name=values.name,
        pairs=count,
        differing=values.differing,
        base_trials=values.base_trials,
        head_trials=values.head_trials,
        base=sum(values.before) / count,
        head=sum(values.after) / count,
        delta=difference.mean,
        confidence=confidence,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        p=p,
        verdict=verdict,
    )


def _iterate_notes(
    changes: Sequence[CaseChange], metrics: Sequence[Metric], pairs: Sequence[_ComparedCase], alpha: float
) -> Iterator[str]:
    """Yield what a reader should know about the numbers."""
    if not pairs:
        yield "nothing to compare: no case has the same definition and a verdict in both runs"
        return
    tested = [metric for metric in metrics if metric.p is not None]
    if len(tested) > 1:
        yield (
            f"{len(tested)} metrics are tested: each p is multiplied by {len(tested)}, and the intervals have a confidence "
            f"of {(1 - alpha / len(tested)) * 100:.4g} %"
        )
    fewest = min_differing_pairs(alpha / max(1, len(tested)))
    few = [m for m in tested if m.name in ("pass rate", "score") and (0 < m.differing < fewest or m.pairs < fewest)]
    for metric in few:
        cases = "case differs" if metric.differing == 1 else "cases differ"
        yield (
            f"{metric.name}: {metric.differing} of {metric.pairs} {cases}; fewer than {fewest} can never be significant "
            f"at {alpha:g}"
        )
    yield from _iterate_case_notes(changes, pairs, alpha)
    for metric in metrics:
        if metric.name == "time ms":
            test = "it is not tested" if metric.p is None else "the test assumes the same load in both runs"
            yield f"time: trials of one run share the machine's load, so unchanged agents differ in time; {test}"


def _iterate_case_notes(changes: Sequence[CaseChange], pairs: Sequence[_ComparedCase], alpha: float) -> Iterator[str]:
    """Yield what few trials cannot tell about single cases."""
    enough = min_trials_to_detect(alpha / len(pairs))
    counts = Counter(case.change for case in changes)
    if unsure := counts["suspect"] + counts["maybe fixed"]:
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in ("suspect", "maybe fixed") if counts[kind])
        yield (
            f"{kinds}: in {unsure} of {len(pairs)} cases there are too "
            f"few trials to tell even a change from all passed to none passed from chance; --runs {enough} on both sides "
            "can show a single broken case"
        )
    flips = [case for case in changes if case.change in ("broken", "fixed", "flaky") and case.p is None]
    if flips:
        yield (
            f"{len(flips)} of {len(pairs)} cases flipped in single trials: an unchanged case that passes 7 times in 10 goes "
            f"from passed to failed in 21 of 100 comparisons; --runs {enough} on both sides can show a single "
            "broken case"
        )

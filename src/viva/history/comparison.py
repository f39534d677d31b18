"""Two runs of the same cases, side by side: what is fixed, what is broken, and whether that is more than chance.

A case whose definition changed is set apart: it is another test, and no verdict on it compares.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct, structs

from viva.history.index import ResultRow
from viva.model.record import Status
from viva.model.verdicts import case_status, pass_rate
from viva.stats.paired import fisher, holm, mcnemar, paired_difference

Change = Literal["fixed", "broken", "still failing", "flaky", "still passing", "not judged", "new", "gone", "changed"]
ORDER: tuple[Change, ...] = (
    "broken",
    "fixed",
    "flaky",
    "still failing",
    "not judged",
    "changed",
    "new",
    "gone",
    "still passing",
)
_CHANCE = 0.05
"""A case that passes now and then has changed only where chance would seldom make so much of a difference."""
FailOn = Literal["broken", "significant", "any"]


class CaseChange(Struct, frozen=True, kw_only=True):
    """One case in both runs."""

    suite: str
    case: str
    change: Change
    base: Status | None = None
    head: Status | None = None
    why: str | None = None


class Metric(Struct, frozen=True, kw_only=True):
    """How a value changed over the cases that both runs have. `p` is Holm's, over all metrics shown."""

    name: str
    pairs: int
    base: float
    head: float
    delta: float
    low: float | None
    high: float | None
    p: float
    worse: bool


class Comparison(Struct, frozen=True, kw_only=True):
    """What differs between two runs."""

    base: str
    head: str
    cases: tuple[CaseChange, ...]
    metrics: tuple[Metric, ...]

    def count(self, change: Change) -> int:
        return sum(case.change == change for case in self.cases)

    def is_regression(self, fail_on: FailOn, alpha: float) -> bool:
        """Is the head worse, by the rule that was asked for?"""
        significant = any(metric.worse and metric.p <= alpha for metric in self.metrics)
        match fail_on:
            case "broken":
                return self.count("broken") > 0
            case "significant":
                return significant
            case "any":
                return self.count("broken") > 0 or any(metric.worse and metric.delta for metric in self.metrics)


class _Trials(Struct):
    """The trials of one case in one run."""

    rows: list[ResultRow]

    @property
    def statuses(self) -> list[Status]:
        return [row.status for row in self.rows]

    @property
    def status(self) -> Status:
        return case_status(self.statuses)

    @property
    def rate(self) -> float | None:
        return pass_rate(self.statuses).rate

    @property
    def passes(self) -> tuple[int, int]:
        """How many of how many judged trials passed."""
        rate = pass_rate(self.statuses)
        return rate.passed, rate.judged

    @property
    def is_flaky(self) -> bool:
        rate = self.rate
        return rate is not None and 0 < rate < 1

    @property
    def digests(self) -> set[str | None]:
        return {row.digest for row in self.rows}

    def mean(self, value: Callable[[ResultRow], float | None]) -> float | None:
        known = [found for row in self.rows if (found := value(row)) is not None]
        return sum(known) / len(known) if known and len(known) == len(self.rows) else None


def compare(base: tuple[str, Sequence[ResultRow]], head: tuple[str, Sequence[ResultRow]]) -> Comparison:
    """Compares two runs, each given as its name and its results."""
    before, after = _by_case(base[1]), _by_case(head[1])
    changes = [_change(key, before.get(key), after.get(key)) for key in {**before, **after}]
    changes.sort(key=lambda case: (ORDER.index(case.change), case.suite, case.case))
    comparable = [
        (before[key], after[key]) for key in before if key in after and before[key].digests == after[key].digests
    ]
    return Comparison(base=base[0], head=head[0], cases=tuple(changes), metrics=tuple(_metrics(comparable)))


def _by_case(rows: Iterable[ResultRow]) -> dict[tuple[str, str], _Trials]:
    found: dict[tuple[str, str], list[ResultRow]] = defaultdict(list)
    for row in rows:
        found[row.suite, row.case].append(row)
    return {key: _Trials(trials) for key, trials in found.items()}


def _change(key: tuple[str, str], before: _Trials | None, after: _Trials | None) -> CaseChange:
    base = before.status if before else None
    head = after.status if after else None
    why = next((row.error for row in after.rows if row.error), None) if after else None
    return CaseChange(suite=key[0], case=key[1], change=_kind(before, after), base=base, head=head, why=why)


def _kind(before: _Trials | None, after: _Trials | None) -> Change:
    if before is None or after is None:
        return "new" if before is None else "gone"
    if before.digests != after.digests:
        return "changed"
    if before.rate is None or after.rate is None:
        return "not judged"
    if (before.is_flaky or after.is_flaky) and fisher(before.passes, after.passes) > _CHANCE:
        return "flaky"
    if before.rate == after.rate:
        return "still passing" if after.rate else "still failing"
    return "fixed" if after.rate > before.rate else "broken"


def _metrics(pairs: Sequence[tuple[_Trials, _Trials]]) -> list[Metric]:
    """Pass rate, score, cost and time, each over the cases that have it on both sides."""
    judged = [(b.rate, a.rate) for b, a in pairs if b.rate is not None and a.rate is not None]
    single = all(rate in (0.0, 1.0) for pair in judged for rate in pair)
    found = [
        _metric("pass rate", judged, up_is_good=True, flips=single),
        _metric("score", _both(pairs, lambda row: row.score), up_is_good=True),
        _metric("cost USD", _both(pairs, lambda row: row.cost_usd), up_is_good=False),
        _metric("time ms", _both(pairs, lambda row: row.duration_ms), up_is_good=False),
    ]
    metrics = [metric for metric in found if metric is not None]
    adjusted = holm([metric.p for metric in metrics])
    return [structs.replace(metric, p=p) for metric, p in zip(metrics, adjusted, strict=True)]


def _both(
    pairs: Sequence[tuple[_Trials, _Trials]], value: Callable[[ResultRow], float | None]
) -> list[tuple[float, float]]:
    means = [(before.mean(value), after.mean(value)) for before, after in pairs]
    return [(before, after) for before, after in means if before is not None and after is not None]


def _metric(name: str, pairs: Sequence[tuple[float, float]], *, up_is_good: bool, flips: bool = False) -> Metric | None:
    difference = paired_difference(pairs)
    if difference is None:
        return None
    p = mcnemar((before == 1.0, after == 1.0) for before, after in pairs).p_value if flips else difference.p_value
    interval = difference.interval
    return Metric(
        name=name,
        pairs=difference.pairs,
        base=sum(before for before, _ in pairs) / len(pairs),
        head=sum(after for _, after in pairs) / len(pairs),
        delta=difference.mean,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        p=p,
        worse=difference.mean < 0 if up_is_good else difference.mean > 0,
    )

"""Suites that have a bar: what each case scored, cost and took, and where the suite stands. Pure folds over records."""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from viva.model.case import Suite, Threshold
from viva.model.event import SuiteSummary
from viva.model.finding import Finding
from viva.model.message import Usage
from viva.model.record import Status, TrialRecord
from viva.stats.pass_rule import PassRule
from viva.stats.values import nearest_rank

_EVERY = PassRule()
_JUDGED = ("passed", "failed")
_NEXT_TO_NOTHING = 1e-9
"""Means of decimal fractions miss their value by less than this."""


class TrialScore(Struct, frozen=True):
    """As much of a record as counts for a bar, so that transcripts need not stay in memory.

    Without any model call the cost is nothing; an unknown price is unknown. The latency is that of the agent alone, and
    None where nothing was sent.
    """

    status: Status
    score: float
    cost_usd: float | None
    latency_ms: float | None
    findings: tuple[Finding, ...] = ()
    trials: int = 1


class CaseScore(Struct, frozen=True):
    """What a case came to: the mean score and latency of its trials, the cost of all, and every kind of finding.

    Only trials that were judged count for the score: what is nobody's verdict is no zero of the agent's.
    """

    case: str
    status: Status
    score: float
    cost_usd: float | None
    latency_ms: int | None
    findings: tuple[Finding, ...] = ()


def trial_score(record: TrialRecord) -> TrialScore:
    """The score is from 0 to 1; a trial that ended before anything could be checked has none to show."""
    judged = record.status in _JUDGED and record.score is not None
    return TrialScore(
        status=record.status,
        score=min(1.0, max(0.0, record.score)) if judged and record.score is not None else 0.0,
        cost_usd=_cost_of(record.usage),
        latency_ms=math.fsum(turn.duration_ms for turn in record.turns) if record.turns else None,
        findings=record.findings,
        trials=record.trials,
    )


def _cost_of(usage: Usage | None) -> float | None:
    return 0.0 if usage is None else usage.cost_usd


def case_score(case: str, trials: Sequence[TrialScore], rule: PassRule = _EVERY) -> CaseScore:
    """All trials of one case, in the order of their start."""
    missing = max((trial.trials for trial in trials), default=0) - len(trials)
    taken = [trial.latency_ms for trial in trials if trial.latency_ms is not None]
    return CaseScore(
        case=case,
        status=rule.status([trial.status for trial in trials], max(0, missing)),
        score=_mean([trial.score for trial in trials if trial.status in _JUDGED]),
        cost_usd=_total(trial.cost_usd for trial in trials),
        latency_ms=round(_mean(taken)) if taken else None,
        findings=tuple(sorted({found for trial in trials for found in trial.findings})),
    )


def _mean(values: Sequence[float]) -> float:
    return round(math.fsum(values) / len(values), 6) if values else 0.0


def _total(costs: Iterable[float | None]) -> float | None:
    """The sum, unless one of them is unknown."""
    known = list(costs)
    return None if None in known else math.fsum(cost for cost in known if cost is not None)


class SuiteTally:
    """One suite with a bar, counted as its trials end. `cases` is how many of them shall run."""

    def __init__(
        self, suite: str, threshold: Threshold, cases: int, version: str = "", rule: PassRule = _EVERY
    ) -> None:
        self.suite = suite
        self._version = version
        self._threshold = threshold
        self._cases = cases
        self._rule = rule
        self._trials: dict[str, dict[int, TrialScore]] = {}
        self._vain: list[float | None] = []

    @classmethod
    def of(cls, suite: Suite, cases: int | None = None, rule: PassRule = _EVERY) -> "SuiteTally":
        """For a suite that has a bar."""
        return cls(
            suite.id, suite.threshold or Threshold(), suite.count if cases is None else cases, suite.version, rule
        )

    def add(self, record: TrialRecord) -> None:
        self._trials.setdefault(record.id, {})[record.trial] = trial_score(record)

    def add_cost(self, usage: Usage | None) -> None:
        """An attempt that was run again has no outcome, but what it cost was spent."""
        self._vain.append(_cost_of(usage))

    def scores(self) -> list[CaseScore]:
        """The cases that ran, in the order in which their first trial ended."""
        return [
            case_score(case, [trials[number] for number in sorted(trials)], self._rule)
            for case, trials in self._trials.items()
        ]

    def summary(self) -> SuiteSummary:
        scores = self.scores()
        statuses: list[Status] = [each.status for each in scores]
        trials = [trial for each in self._trials.values() for trial in each.values()]
        taken = sorted(round(trial.latency_ms) for trial in trials if trial.latency_ms is not None)
        score = _mean([each.score for each in scores])
        uncompared = tuple(_uncompared(self._threshold, scores))
        cost = _total([*(each.cost_usd for each in scores), *self._vain])
        p95 = int(nearest_rank(taken, 95)) if taken else None
        missed = (
            *_beside(self._cases, statuses),
            *_by_score(self._threshold, scores),
            *_by_limits(self._threshold, cost, p95),
        )
        return SuiteSummary(
            suite=self.suite,
            version=self._version,
            score=score,
            passed=not missed,
            cases=len(scores),
            passed_cases=statuses.count("passed"),
            failed_cases=statuses.count("failed"),
            threshold=self._threshold,
            cost_usd=cost,
            p95_ms=p95,
            unmet=missed,
            regression=None if uncompared else _regressed(self._threshold, score),
            worse_cases=tuple(_worse(self._threshold, scores)),
            uncompared_cases=uncompared,
        )


def _beside(cases: int, statuses: Sequence[Status]) -> Iterable[str]:
    """What keeps a suite from passing whatever it scored."""
    if not statuses:
        yield "no case ran"
    elif len(statuses) < cases:
        yield f"{len(statuses)} of {cases} cases ran"
    if errors := statuses.count("error"):
        yield f"{errors} {'case' if errors == 1 else 'cases'} ended in an error that is not the agent's"


def _by_score(threshold: Threshold, scores: Sequence[CaseScore]) -> Iterable[str]:
    """By the cases that have a verdict: what else keeps the suite from passing is no low score of the agent's."""
    judged = [each for each in scores if each.status in _JUDGED]
    score = _mean([each.score for each in judged])
    if threshold.pass_score is None:
        if failed := sum(each.status == "failed" for each in judged):
            yield f"{failed} of {len(scores)} cases failed"
    elif judged and score < threshold.pass_score - _NEXT_TO_NOTHING:
        yield f"score {score:.4g}, needs {threshold.pass_score:g}"


def _by_limits(threshold: Threshold, cost: float | None, p95: int | None) -> Iterable[str]:
    """Limits fail closed: what is not known is not kept."""
    if threshold.max_cost_usd is not None:
        if cost is None:
            yield f"cost unknown (a model call has no price), at most {_usd(threshold.max_cost_usd)}"
        elif cost > threshold.max_cost_usd + _NEXT_TO_NOTHING:
            yield f"cost {_usd(cost)}, at most {_usd(threshold.max_cost_usd)}"
    if threshold.max_p95_ms is not None:
        if p95 is None:
            yield f"p95 latency unknown (nothing was measured), at most {threshold.max_p95_ms:g} ms"
        elif p95 > threshold.max_p95_ms:
            yield f"p95 latency {p95} ms, at most {threshold.max_p95_ms:g} ms"


def _usd(amount: float) -> str:
    return f"${amount:.8f}".rstrip("0").rstrip(".")


def _uncompared(threshold: Threshold, scores: Sequence[CaseScore]) -> Iterable[str]:
    """The cases that have a verdict in one of the two runs only, or in none: an error is nobody's lower score."""
    before = threshold.baseline.cases.keys() if threshold.baseline is not None else ()
    if before:
        judged = {each.case for each in scores if each.status in _JUDGED}
        yield from sorted(({each.case for each in scores} | before) - (judged & before))


def _regressed(threshold: Threshold, score: float) -> str | None:
    if threshold.baseline is None or score >= threshold.baseline.score - _NEXT_TO_NOTHING:
        return None
    return f"score {score:.4g}, was {threshold.baseline.score:.4g} in {threshold.baseline.name}"


def _worse(threshold: Threshold, scores: Sequence[CaseScore]) -> Iterable[str]:
    before = threshold.baseline.cases if threshold.baseline is not None else {}
    for each in scores:
        if each.status in _JUDGED and each.score < before.get(each.case, 0.0) - _NEXT_TO_NOTHING:
            yield f"{each.case} {before[each.case]:.4g}, now {each.score:.4g}"

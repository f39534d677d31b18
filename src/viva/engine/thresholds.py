"""Compares a suite with its threshold: score, cost and latency of its cases, folded from records."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from viva.model.case import Threshold
from viva.model.event import PlannedSuite, SuiteSummary
from viva.model.finding import Finding
from viva.model.message import Usage
from viva.model.record import Status, TrialRecord
from viva.stats.pass_rule import PassRule
from viva.stats.values import nearest_rank

_ALL_MUST_PASS = PassRule()
_DECIDED_STATUSES = ("passed", "failed")
_TOLERANCE = 1e-9
"""Means of decimal fractions are off by less than this."""
_SCORE_TOLERANCE = 0.5e-6 + _TOLERANCE
"""Scores are rounded to six digits, so a score of 1/3 is a little below a threshold of 0.3333333333."""


class TrialScore(Struct, frozen=True):
    """The values of a record that a threshold needs, so that transcripts do not stay in memory.

    The cost is 0 without a model call and None if a price is unknown. The latency is that of the agent alone, and None if
    nothing was sent.
    """

    status: Status
    score: float
    cost_usd: float | None
    latency_ms: float | None
    findings: tuple[Finding, ...] = ()
    trials: int = 1


class CaseScore(Struct, frozen=True):
    """The mean score and latency of a case's trials, their total cost, and each distinct finding.

    Only trials that passed or failed count for the score: an error is not a 0 of the agent.
    """

    case: str
    status: Status
    score: float
    cost_usd: float | None
    latency_ms: int | None
    findings: tuple[Finding, ...] = ()


def score_trial(record: TrialRecord) -> TrialScore:
    """The score is from 0 to 1; a trial without a score counts as 0."""
    return TrialScore(
        status=record.status,
        score=record.score if record.status in _DECIDED_STATUSES and record.score is not None else 0.0,
        cost_usd=_cost_of_usage(record.usage),
        latency_ms=math.fsum(turn.duration_ms for turn in record.turns) if record.turns else None,
        findings=record.findings,
        trials=record.trials,
    )


def _cost_of_usage(usage: Usage | None) -> float | None:
    return 0.0 if usage is None else usage.cost_usd


def score_case(case: str, trials: Sequence[TrialScore], rule: PassRule) -> CaseScore:
    """The score of a case, from its trials in the order of their start."""
    missing = max((trial.trials for trial in trials), default=0) - len(trials)
    latencies = [trial.latency_ms for trial in trials if trial.latency_ms is not None]
    return CaseScore(
        case=case,
        status=rule.status([trial.status for trial in trials], max(0, missing)),
        score=_mean([trial.score for trial in trials if trial.status in _DECIDED_STATUSES]),
        cost_usd=_total_cost(trial.cost_usd for trial in trials),
        latency_ms=round(_mean(latencies)) if latencies else None,
        findings=tuple(sorted({finding for trial in trials for finding in trial.findings})),
    )


def _mean(values: Sequence[float]) -> float:
    return round(math.fsum(values) / len(values), 6) if values else 0.0


def _total_cost(costs: Iterable[float | None]) -> float | None:
    """The sum, or None if one cost is unknown."""
    all_costs = list(costs)
    return None if None in all_costs else math.fsum(cost for cost in all_costs if cost is not None)


class SuiteTally:
    """Collects the results of one suite on one agent, and compares them with its threshold. `cases` is how many will run."""

    def __init__(
        self, suite: PlannedSuite, cases: int | None = None, rule: PassRule = _ALL_MUST_PASS, agent: str = ""
    ) -> None:
        self.suite = suite.suite
        self.agent = agent
        self._suite = suite
        self._threshold = suite.threshold or Threshold()
        self._cases = suite.cases if cases is None else cases
        self._rule = rule
        self._trials: dict[str, dict[int, TrialScore]] = {}
        self._retry_costs: list[float | None] = []

    def count_trial(self, record: TrialRecord) -> None:
        self._trials.setdefault(record.id, {})[record.trial] = score_trial(record)

    def add_retry_cost(self, usage: Usage | None) -> None:
        """Adds the cost of a retried attempt, which has no outcome."""
        self._retry_costs.append(_cost_of_usage(usage))

    def score_cases(self) -> list[CaseScore]:
        """The cases that ran, in the order in which their first trial ended."""
        return [
            score_case(case, [trials[number] for number in sorted(trials)], self._rule)
            for case, trials in self._trials.items()
        ]

    def _count_cases_without_verdict(self, scores: Sequence[CaseScore]) -> Counter[str]:
        """Counts the cases that neither passed nor failed, by the reason. Their status is error, also without any error."""
        counts: Counter[str] = Counter()
        for case in scores:
            trials = self._trials[case.case]
            statuses: list[Status] = [trials[number].status for number in sorted(trials)]
            if case.status == "error" and self._rule.is_undecided(statuses):
                counts["undecided"] += 1
            elif case.status == "error":
                counts["error" if "error" in statuses else "not all trials"] += 1
        return counts

    def summary(self) -> SuiteSummary:
        scores, threshold = self.score_cases(), self._threshold
        statuses: list[Status] = [case.status for case in scores]
        trials = [trial for case in self._trials.values() for trial in case.values()]
        latencies = sorted(round(trial.latency_ms) for trial in trials if trial.latency_ms is not None)
        score = _mean([case.score for case in scores])
        uncompared = tuple(_find_uncompared_cases(threshold, scores))
        cost = _total_cost([*(case.cost_usd for case in scores), *self._retry_costs])
        p95 = int(nearest_rank(latencies, 95)) if latencies else None
        unmet = (
            *_explain_incomplete_suite(self._cases, len(scores), self._count_cases_without_verdict(scores)),
            *_explain_low_score(threshold, scores),
            *_explain_exceeded_limits(threshold, cost, p95),
        )
        return SuiteSummary(
            suite=self.suite,
            agent=self.agent,
            kind=self._suite.kind,
            version=self._suite.version,
            score=score,
            passed=not unmet,
            cases=len(scores),
            passed_cases=statuses.count("passed"),
            failed_cases=statuses.count("failed"),
            threshold=threshold,
            cost_usd=cost,
            p95_ms=p95,
            unmet=unmet,
            regression=None if uncompared else _describe_regression(threshold, score),
            worse_cases=tuple(_describe_worse_cases(threshold, scores)),
            uncompared_cases=uncompared,
        )


def _explain_incomplete_suite(cases: int, cases_run: int, without_verdict: Mapping[str, int]) -> Iterable[str]:
    if not cases_run:
        yield "no case ran"
    elif cases_run < cases:
        yield f"{cases_run} of {cases} cases ran"
    if undecided := without_verdict.get("undecided"):
        yield f"{_format_cases(undecided)} undecided"
    if incomplete := without_verdict.get("not all trials"):
        yield f"not all trials of {_format_cases(incomplete)} ran"
    if errors := without_verdict.get("error"):
        yield f"{_format_cases(errors)} ended in an error that is not the agent's"


def _format_cases(count: int) -> str:
    return f"{count} {'case' if count == 1 else 'cases'}"


def _explain_low_score(threshold: Threshold, scores: Sequence[CaseScore]) -> Iterable[str]:
    """Explains a score below the threshold. Cases in error do not count: an error is not a low score of the agent."""
    decided = [case for case in scores if case.status in _DECIDED_STATUSES]
    score = _mean([case.score for case in decided])
    if threshold.pass_score is None:
        if failed := sum(case.status == "failed" for case in decided):
            yield f"{failed} of {len(scores)} cases failed"
    elif decided and score < threshold.pass_score - _SCORE_TOLERANCE:
        yield f"score {score:.4g}, needs {threshold.pass_score:g}"


def _explain_exceeded_limits(threshold: Threshold, cost: float | None, p95: int | None) -> Iterable[str]:
    """Explains which limits are exceeded. An unknown value counts as above its limit."""
    if threshold.max_cost_usd is not None:
        if cost is None:
            yield f"cost unknown (a model call has no price), at most {_format_usd(threshold.max_cost_usd)}"
        elif cost > threshold.max_cost_usd + _TOLERANCE:
            yield f"cost {_format_usd(cost)}, at most {_format_usd(threshold.max_cost_usd)}"
    if threshold.max_p95_ms is not None:
        if p95 is None:
            yield f"p95 latency unknown (nothing was measured), at most {threshold.max_p95_ms:g} ms"
        elif p95 > threshold.max_p95_ms:
            yield f"p95 latency {p95} ms, at most {threshold.max_p95_ms:g} ms"


def _format_usd(amount: float) -> str:
    return f"${amount:.8f}".rstrip("0").rstrip(".")


def _find_uncompared_cases(threshold: Threshold, scores: Sequence[CaseScore]) -> Iterable[str]:
    """The cases that this run or the baseline has no verdict (passed or failed) for. None without a baseline.

    A baseline in which no case had a verdict can be compared with nothing: its score of 0 says nothing about the agent.
    """
    if threshold.baseline is not None and threshold.baseline.cases is not None:
        before = threshold.baseline.cases.keys()
        decided = {case.case for case in scores if case.status in _DECIDED_STATUSES}
        yield from sorted(({case.case for case in scores} | before) - (decided & before))


def _describe_regression(threshold: Threshold, score: float) -> str | None:
    if threshold.baseline is None or score >= threshold.baseline.score - _SCORE_TOLERANCE:
        return None
    return f"score {score:.4g}, was {threshold.baseline.score:.4g} in {threshold.baseline.name}"


def _describe_worse_cases(threshold: Threshold, scores: Sequence[CaseScore]) -> Iterable[str]:
    before = (threshold.baseline.cases if threshold.baseline is not None else None) or {}
    for case in scores:
        score = before.get(case.case)
        if case.status in _DECIDED_STATUSES and score is not None and case.score < score - _SCORE_TOLERANCE:
            yield f"{case.case} {score:.4g}, now {case.score:.4g}"

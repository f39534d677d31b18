"""Statistics of repeated cases (N33): pass rates with intervals, pass@k and pass^k, stability, and spread of turns, time
and cost.

A sequential test chooses the number of trials, so a pass rate would be biased: cases have an anytime-valid interval, and
the suite has no rate.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from viva.model.record import Status
from viva.reporters.formatting import format_count
from viva.reporters.report import CaseTrials, RecordHead
from viva.stats.pass_k import estimate_pass_k, pass_at_k, pass_hat_k
from viva.stats.pass_rate import Stability, pass_rate, stability
from viva.stats.pass_rule import PassRule
from viva.stats.proportions import Interval, Tally, anytime_interval, estimate_suite_rate, wilson_interval
from viva.stats.values import summarize_values

_MEASURES: dict[str, Callable[[RecordHead], float | None]] = {
    "turns": lambda head: head.total_turns,
    "duration_ms": lambda head: head.duration_ms,
    "tokens": lambda head: head.usage.total_tokens if head.usage else None,
    "cost_usd": lambda head: head.cost_usd,
}


def count_passes(statuses: Sequence[Status]) -> Tally:
    rate = pass_rate(statuses)
    return Tally(rate.passed, rate.decided)


def format_case_rate(statuses: Sequence[Status], rule: PassRule, missing: int = 0) -> str:
    """`7/10 passed (40 to 89 %), unstable`: the rate with its 95 % interval, and the stability or the test's decision.

    `missing` trials were planned and never ran.
    """
    tally = count_passes(statuses)
    text = f"{tally.passed}/{tally.decided} passed{_format_interval(compute_interval(tally, rule))}"
    if errors := statuses.count("error"):
        text += f", {errors} of {len(statuses) + missing} with errors"
    if rule.test is not None:
        return f"{text}, {rule.decided_as(statuses) or 'no verdict'}"
    if missing:
        text += f", {missing} of {len(statuses) + missing} not run"
    if tally.decided and (not tally.passed or rule.status(statuses, missing) == "error"):
        return text  # a case that always fails is not unstable; or there are too few verdicts for a class
    return f"{text}, {(stability(statuses) or 'no verdict').replace('_', ' ')}"


def compute_interval(tally: Tally, rule: PassRule) -> Interval | None:
    """The 95 % interval of a case's rate: Wilson's, or an anytime-valid one for sequential tests."""
    interval = wilson_interval if rule.test is None else anytime_interval
    return interval(tally.passed, tally.decided)


def explain_undetermined(statuses: Sequence[Status], rule: PassRule, missing: int = 0) -> str | None:
    """The reason why a case with verdicts is undecided or in error; None for any other case."""
    tally = count_passes(statuses)
    if not tally.decided or rule.status(statuses, missing) != "error":
        return None
    errors = statuses.count("error")
    if (test := rule.test) is not None:
        rate = format_case_rate(statuses, rule).rpartition(",")[0]
        bounds = f"{test.min_pass:.4g} or more passes, {test.too_low:.4g} or less fails"
        return f"undecided after {format_count(len(statuses), 'trial')}: {rate}; {bounds}"
    parts = [f"{count} {name}" for count, name in ((errors, "with errors"), (missing, "not run")) if count]
    total = format_count(tally.decided + errors + missing, "trial")
    return f"{tally.passed} of {total} passed, {', '.join(parts)}: not enough verdicts to pass or fail"


def _format_interval(interval: Interval | None) -> str:
    return f" ({interval.low * 100:.0f} to {interval.high * 100:.0f} %)" if interval is not None else ""


def format_suite_rate(cases: Iterable[Sequence[Status]], rule: PassRule) -> str | None:
    """The pass rate of all cases with verdicts, and pass@k and pass^k for the largest k that all of them allow."""
    tallies = [tally for statuses in cases if (tally := count_passes(statuses)).decided]
    rate = estimate_suite_rate(tallies)
    if rate is None or rule.test is not None:
        return None
    k = min(tally.decided for tally in tallies)
    estimate = estimate_pass_k(tallies, k)
    total = f"over {format_count(rate.cases, 'case')}, {format_count(rate.trials, 'trial')}"
    text = f"{rate.rate * 100:.1f} %{_format_interval(rate.interval)} {total}"
    if estimate is None or k < 2:
        return text
    return f"{text}; pass@{k} {estimate.pass_at_k * 100:.1f} %, pass^{k} {estimate.pass_hat_k * 100:.1f} %"


def compute_case_statistics(case: CaseTrials) -> dict[str, Any]:
    """The statistics of a repeated case, as fields of the `.json` report; empty for a case with one trial."""
    if len(case.heads) < 2:
        return {}
    tally = count_passes(case.statuses)
    interval = {"interval": compute_interval(tally, case.rule)}
    if case.rule.test is not None:
        return {"decision": case.rule.decided_as(case.statuses), **interval, **_summarize_measures(case.heads)}
    ks = range(1, tally.decided + 1)
    return {
        **interval,
        "pass_k": [{"k": k, "pass_at_k": pass_at_k(tally, k), "pass_hat_k": pass_hat_k(tally, k)} for k in ks],
        **_summarize_measures(case.heads),
    }


class RepeatStatistics:
    """Computes the statistics of repeats of a run; cases are added one by one."""

    def __init__(self, rule: PassRule) -> None:
        self._rule = rule
        self._statuses: list[list[Status]] = []
        self._heads: list[RecordHead] = []
        self._classes: Counter[Stability] = Counter()

    def add(self, case: CaseTrials) -> None:
        self._statuses.append(case.statuses)
        self._heads += case.heads
        if (name := stability(case.statuses)) is not None:
            self._classes[name] += 1

    @property
    def has_repeats(self) -> bool:
        return any(len(statuses) > 1 for statuses in self._statuses)

    def format_rate(self) -> str | None:
        return format_suite_rate(self._statuses, self._rule)

    def compute_statistics(self) -> dict[str, Any]:
        """The statistics of the run for `.json`."""
        spread = _summarize_measures(self._heads)
        if self._rule.test is not None:
            return spread
        tallies = [count_passes(statuses) for statuses in self._statuses]
        most = max((tally.decided for tally in tallies), default=0)
        estimates = [estimate for k in range(1, most + 1) if (estimate := estimate_pass_k(tallies, k)) is not None]
        return {
            "pass_rate": estimate_suite_rate(tallies),
            "pass_k": [
                {"k": each.k, "pass_at_k": each.pass_at_k, "pass_hat_k": each.pass_hat_k, "cases": each.cases}
                for each in estimates
            ],
            "classes": dict(self._classes),
            **spread,
        }


def _summarize_measures(heads: Sequence[RecordHead]) -> dict[str, Any]:
    """Count, mean, p50 and p95 of each measure, over the trials in which it is known."""
    ran = [head for head in heads if head.status != "skipped"]
    summaries = {
        name: summarize_values(value for head in ran if (value := measure(head)) is not None)
        for name, measure in _MEASURES.items()
    }
    return {name: summary for name, summary in summaries.items() if summary is not None}

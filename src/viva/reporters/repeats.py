"""What repeats tell (N33): pass rates with intervals, pass@k and pass^k, classes, and how turns, time and cost spread.

Where a sequential test chose how often a case ran, its rate is no fair sample: a case has an interval that holds all the
same, and the suite has no rate.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from viva.model.record import Status
from viva.reporters.numbers import format_count
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
    return Tally(rate.passed, rate.judged)


def format_case_rate(statuses: Sequence[Status], rule: PassRule) -> str:
    """`7/10 passed (40 to 89 %), unstable`: the rate of one case with its 95 % interval, and its class or what the test says."""
    tally = count_passes(statuses)
    text = f"{tally.passed}/{tally.judged} passed{_percents(compute_interval(tally, rule))}"
    if errors := statuses.count("error"):
        text += f", {errors} of {len(statuses)} in error"
    if rule.test is not None:
        return f"{text}, {rule.decide(statuses) or 'undecided'}"
    if tally.judged and rule.status(statuses) == "error":
        return text  # a class of too few verdicts would mislead
    return f"{text}, {(stability(statuses) or 'not judged').replace('_', ' ')}"


def compute_interval(tally: Tally, rule: PassRule) -> Interval | None:
    """The 95 % interval of a case's rate: Wilson's, or one that holds where a sequential test chose the number of trials."""
    interval = wilson_interval if rule.test is None else anytime_interval
    return interval(tally.passed, tally.judged)


def explain_undetermined(statuses: Sequence[Status], rule: PassRule, missing: int = 0) -> str | None:
    """Why a case is undecided or an error, where that is what its trials come to together; None for any other case."""
    tally = count_passes(statuses)
    if not tally.judged or rule.status(statuses, missing) != "error":
        return None
    if (test := rule.test) is not None:
        wanted = f"{test.min_pass:.4g} or more passes, {test.too_low:.4g} or less fails"
        return f"undecided after {format_count(len(statuses), 'trial')}: {format_case_rate(statuses, rule).rpartition(',')[0]}; {wanted}"
    open_ = [f"{many} {what}" for many, what in ((statuses.count("error"), "in error"), (missing, "not run")) if many]
    total = tally.judged + statuses.count("error") + missing
    return f"{tally.passed} of {format_count(total, 'trial')} passed, {', '.join(open_)}: too few verdicts to say whether it passes"


def _percents(interval: Interval | None) -> str:
    return f" ({interval.low * 100:.0f} to {interval.high * 100:.0f} %)" if interval is not None else ""


def format_suite_rate(cases: Iterable[Sequence[Status]], rule: PassRule) -> str | None:
    """The pass rate of all judged cases in one line, with the largest k that all of them have trials for."""
    tallies = [tally for statuses in cases if (tally := count_passes(statuses)).judged]
    rate = estimate_suite_rate(tallies)
    if rate is None or rule.test is not None:
        return None
    k = min(tally.judged for tally in tallies)
    repeats = estimate_pass_k(tallies, k)
    over = f"over {format_count(rate.cases, 'case')}, {format_count(rate.trials, 'trial')}"
    text = f"{rate.rate * 100:.1f} %{_percents(rate.interval)} {over}"
    if repeats is None or k < 2:
        return text
    return f"{text}; pass@{k} {repeats.pass_at_k * 100:.1f} %, pass^{k} {repeats.pass_hat_k * 100:.1f} %"


def compute_case_figures(case: CaseTrials) -> dict[str, Any]:
    """One case for `.json`: nothing for a case that was tried once."""
    if len(case.heads) < 2:
        return {}
    tally = count_passes(case.statuses)
    interval = {"interval": compute_interval(tally, case.rule)}
    if case.rule.test is not None:
        return {"decision": case.rule.decide(case.statuses) or "undecided", **interval, **_spread(case.heads)}
    ks = range(1, tally.judged + 1)
    return {
        **interval,
        "pass_k": [{"k": k, "pass_at_k": pass_at_k(tally, k), "pass_hat_k": pass_hat_k(tally, k)} for k in ks],
        **_spread(case.heads),
    }


class RepeatFigures:
    """Adds up a suite's cases as they pass by; keeps a few numbers of each trial, and no record."""

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

    def compute_figures(self) -> dict[str, Any]:
        """The whole run for `.json`."""
        spread = _spread(self._heads)
        if self._rule.test is not None:
            return spread
        tallies = [count_passes(statuses) for statuses in self._statuses]
        most = max((tally.judged for tally in tallies), default=0)
        repeats = [found for k in range(1, most + 1) if (found := estimate_pass_k(tallies, k)) is not None]
        return {
            "pass_rate": estimate_suite_rate(tallies),
            "pass_k": [
                {"k": r.k, "pass_at_k": r.pass_at_k, "pass_hat_k": r.pass_hat_k, "cases": r.cases} for r in repeats
            ],
            "classes": dict(self._classes),
            **spread,
        }


def _spread(heads: Sequence[RecordHead]) -> dict[str, Any]:
    """Mean, p50 and p95 of what was measured. A value that is not known (a price) is in none of them; `count` says so."""
    held = [head for head in heads if head.status != "skipped"]
    found = {
        name: summarize_values(v for head in held if (v := of(head)) is not None) for name, of in _MEASURES.items()
    }
    return {name: summary for name, summary in found.items() if summary is not None}

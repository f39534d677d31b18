"""What repeats tell (N33): pass rates with intervals, pass@k and pass^k, classes, and how turns, time and cost spread.

Where a sequential test chose how often a case ran, its rate is no fair sample: there are counts and decisions only.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from viva.model.record import Status
from viva.model.verdicts import Stability, pass_rate, stability
from viva.reporters.figures import counted
from viva.reporters.report import CaseTrials, Head
from viva.stats.deciding import Rule
from viva.stats.proportions import Interval, Tally, suite_rate, wilson
from viva.stats.repeats import pass_at_k, pass_hat_k, pass_k
from viva.stats.values import summarize

_MEASURES: dict[str, Callable[[Head], float | None]] = {
    "turns": lambda head: head.total_turns,
    "duration_ms": lambda head: head.duration_ms,
    "tokens": lambda head: head.usage.total_tokens if head.usage else None,
    "cost_usd": lambda head: head.cost_usd,
}


def tally_of(statuses: Sequence[Status]) -> Tally:
    rate = pass_rate(statuses)
    return Tally(rate.passed, rate.judged)


def case_text(statuses: Sequence[Status], rule: Rule) -> str:
    """`7/10 passed (40 to 89 %), unstable`: the rate of one case, with Wilson's 95 % interval; or what the test says."""
    tally = tally_of(statuses)
    counts = f"{tally.passed}/{tally.judged} passed"
    if rule.test is not None:
        return f"{counts}, {rule.decision(statuses) or 'undecided'}"
    name = (stability(statuses) or "not judged").replace("_", " ")
    return f"{counts}{_percents(wilson(tally.passed, tally.judged))}, {name}"


def _percents(interval: Interval | None) -> str:
    return f" ({interval.low * 100:.0f} to {interval.high * 100:.0f} %)" if interval is not None else ""


def suite_text(cases: Iterable[Sequence[Status]], rule: Rule) -> str | None:
    """The pass rate of all judged cases in one line, with the largest k that all of them have trials for."""
    tallies = [tally for statuses in cases if (tally := tally_of(statuses)).judged]
    rate = suite_rate(tallies)
    if rate is None or rule.test is not None:
        return None
    k = min(tally.judged for tally in tallies)
    repeats = pass_k(tallies, k)
    over = f"over {counted(rate.cases, 'case')}, {counted(rate.trials, 'trial')}"
    text = f"{rate.rate * 100:.1f} %{_percents(rate.interval)} {over}"
    if repeats is None or k < 2:
        return text
    return f"{text}; pass@{k} {repeats.at_least_one * 100:.1f} %, pass^{k} {repeats.all_of_them * 100:.1f} %"


def case_figures(case: CaseTrials) -> dict[str, Any]:
    """One case for `.json`: nothing for a case that was tried once."""
    if len(case.heads) < 2:
        return {}
    tally = tally_of(case.statuses)
    if case.rule.test is not None:
        return {"decision": case.rule.decision(case.statuses) or "undecided", **_spread(case.heads)}
    ks = range(1, tally.judged + 1)
    return {
        "interval": wilson(tally.passed, tally.judged),
        "pass_k": [{"k": k, "pass_at_k": pass_at_k(tally, k), "pass_hat_k": pass_hat_k(tally, k)} for k in ks],
        **_spread(case.heads),
    }


class Repeats:
    """Adds up a suite's cases as they pass by; keeps a few numbers of each trial, and no record."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._statuses: list[list[Status]] = []
        self._heads: list[Head] = []
        self._classes: Counter[Stability] = Counter()

    def add(self, case: CaseTrials) -> None:
        self._statuses.append(case.statuses)
        self._heads += case.heads
        if (name := stability(case.statuses)) is not None:
            self._classes[name] += 1

    @property
    def repeated(self) -> bool:
        return any(len(statuses) > 1 for statuses in self._statuses)

    def text(self) -> str | None:
        return suite_text(self._statuses, self._rule)

    def figures(self) -> dict[str, Any]:
        """The whole run for `.json`."""
        spread = _spread(self._heads)
        if self._rule.test is not None:
            return spread
        tallies = [tally_of(statuses) for statuses in self._statuses]
        most = max((tally.judged for tally in tallies), default=0)
        repeats = [found for k in range(1, most + 1) if (found := pass_k(tallies, k)) is not None]
        return {
            "pass_rate": suite_rate(tallies),
            "pass_k": [
                {"k": r.k, "pass_at_k": r.at_least_one, "pass_hat_k": r.all_of_them, "cases": r.cases} for r in repeats
            ],
            "classes": dict(self._classes),
            **spread,
        }


def _spread(heads: Sequence[Head]) -> dict[str, Any]:
    """Mean, p50 and p95 of what was measured. A value that is not known (a price) is in none of them; `count` says so."""
    held = [head for head in heads if head.status != "skipped"]
    found = {name: summarize(v for head in held if (v := of(head)) is not None) for name, of in _MEASURES.items()}
    return {name: summary for name, summary in found.items() if summary is not None}

"""How often people agree with verdicts, from their labels."""

from collections.abc import Iterable

from msgspec import Struct

from viva.model.label import Label
from viva.stats.proportions import Interval, wilson_interval


class Agreement(Struct, frozen=True):
    """How often people agree with verdicts: `agreed` of `decided` labels do. The other labels are `unsure`: their author is, or
    their check has no verdict.
    """

    agreed: int
    decided: int
    unsure: int
    false_passes: int
    """A person says that it should have failed."""
    false_failures: int
    """A person says that it should have passed."""
    rate: float | None
    interval: Interval | None
    kappa: float | None
    """Cohen's kappa: agreement beyond chance; None if all verdicts or all people's verdicts are the same."""


class LabelSummary(Struct, frozen=True):
    """The labels of a run that count, and how often people agree: with its judges, and with all its verdicts."""

    labels: list[Label]
    judges: Agreement | None
    all: Agreement | None


def summarize_labels(labels: list[Label]) -> LabelSummary:
    return LabelSummary(labels, measure_agreement(x for x in labels if x.is_judge), measure_agreement(labels))


def measure_agreement(labels: Iterable[Label]) -> Agreement | None:
    """The agreement of people with verdicts; None without labels. Several people on one check count once each."""
    all_labels = list(labels)
    if not all_labels:
        return None
    pairs = [(label.verdict, label.human_verdict) for label in all_labels if label.human_verdict is not None]
    agreed = sum(verdict == human for verdict, human in pairs)
    return Agreement(
        agreed=agreed,
        decided=len(pairs),
        unsure=len(all_labels) - len(pairs),
        false_passes=pairs.count(("passed", "failed")),
        false_failures=pairs.count(("failed", "passed")),
        rate=agreed / len(pairs) if pairs else None,
        interval=wilson_interval(agreed, len(pairs)),
        kappa=_compute_kappa([(verdict == "passed", human == "passed") for verdict, human in pairs]),
    )


def _compute_kappa(pairs: list[tuple[bool, bool]]) -> float | None:
    n = len(pairs)
    judge_rate, human_rate = (sum(pair[at] for pair in pairs) / n if n else 0.0 for at in (0, 1))
    if judge_rate in (0, 1) or human_rate in (0, 1):
        return None
    expected = judge_rate * human_rate + (1 - judge_rate) * (1 - human_rate)
    return (sum(left == right for left, right in pairs) / n - expected) / (1 - expected)

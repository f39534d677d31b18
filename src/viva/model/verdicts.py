"""What the trials of one case add up to (N33): its status, its pass rate, and how stable it is."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from viva.model.record import Status

Stability = Literal["stable", "mostly_stable", "unstable", "highly_unstable"]


class PassRate(Struct, frozen=True):
    """How many of the judged trials passed. Errors and skips are not judged; with none judged there is no rate."""

    passed: int
    judged: int
    rate: float | None


def pass_rate(trials: Sequence[Status]) -> PassRate:
    passed = trials.count("passed")
    judged = passed + trials.count("failed")
    return PassRate(passed, judged, passed / judged if judged else None)


def case_status(trials: Sequence[Status], min_pass: float | None = None) -> Status:
    """Passed if every judged trial did, or with `min_pass` at least that share of them.

    Without a judged trial it is an error, or skipped if all that happened is skips.
    """
    rate = pass_rate(trials).rate
    if rate is None:
        return "skipped" if trials and "error" not in trials else "error"
    return "passed" if rate >= (1.0 if min_pass is None else min_pass) else "failed"


def stability(trials: Sequence[Status]) -> Stability | None:
    """The class of a case by its pass rate; None where no trial was judged."""
    rate = pass_rate(trials).rate
    if rate is None:
        return None
    if rate == 1.0:
        return "stable"
    return "mostly_stable" if rate >= 0.8 else "unstable" if rate >= 0.5 else "highly_unstable"

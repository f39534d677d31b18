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


def case_status(trials: Sequence[Status], min_pass: float | None = None, trials_left: int = 0) -> Status:
    """Passed if every trial did, or with `min_pass` at least that share of them.

    A trial in error may have been either, and so may one of the `missing` trials that never ran. The case passes only if
    it would with all of them failed, fails only if it would with all of them passed, and is an error otherwise. Skipped
    trials do not count. Without a judged trial it is an error, or skipped if there are only skips.
    """
    passed, failed, errors = trials.count("passed"), trials.count("failed"), trials.count("error")
    if not passed + failed:
        return "skipped" if trials and not errors else "error"
    open_ = errors + trials_left
    total = passed + failed + open_
    needed = 1.0 if min_pass is None else min_pass
    if passed / total >= needed:
        return "passed"
    return "failed" if (passed + open_) / total < needed else "error"


def stability(trials: Sequence[Status]) -> Stability | None:
    """The class of a case by its pass rate; None where no trial was judged."""
    rate = pass_rate(trials).rate
    if rate is None:
        return None
    if rate == 1.0:
        return "stable"
    return "mostly_stable" if rate >= 0.8 else "unstable" if rate >= 0.5 else "highly_unstable"

"""Status, pass rate and stability of a case from its trials (N33)."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from viva.model.record import Status

Stability = Literal["stable", "mostly_stable", "unstable", "highly_unstable"]


class PassRate(Struct, frozen=True):
    """Passed and decided trials. Errors and skips are not decided; without decided trials there is no rate."""

    passed: int
    decided: int
    rate: float | None


def pass_rate(trials: Sequence[Status]) -> PassRate:
    passed = trials.count("passed")
    decided = passed + trials.count("failed")
    return PassRate(passed, decided, passed / decided if decided else None)


def decide_case_status(trials: Sequence[Status], min_pass: float | None = None, trials_left: int = 0) -> Status:
    """Return `passed` if every trial passed, or with `min_pass` at least that share.

    Trials in error and the `trials_left` that never ran could have passed or failed. The case passes only if it would
    with all of them failed, fails only if it would with all of them passed, and is an error otherwise. Skipped trials do
    not count. Without a decided trial the status is error, or skipped if there are only skips.
    """
    if not trials:
        return "error"
    counts = trials.count("passed"), trials.count("failed"), trials.count("error")
    return decide_status_from_counts(*counts, min_pass=min_pass, trials_left=trials_left)


def decide_status_from_counts(
    passed: int, failed: int, errors: int, *, min_pass: float | None = None, trials_left: int = 0
) -> Status:
    """Like `decide_case_status`, from the numbers of trials. There is at least one trial; it may be a skipped one."""
    if not passed + failed:
        return "error" if errors else "skipped"
    unknown = errors + trials_left
    total = passed + failed + unknown
    needed = 1.0 if min_pass is None else min_pass
    if passed / total >= needed:
        return "passed"
    return "failed" if (passed + unknown) / total < needed else "error"


def stability(trials: Sequence[Status]) -> Stability | None:
    """Return the stability class of a pass rate; None without decided trials."""
    rate = pass_rate(trials).rate
    if rate is None:
        return None
    if rate == 1.0:
        return "stable"
    return "mostly_stable" if rate >= 0.8 else "unstable" if rate >= 0.5 else "highly_unstable"

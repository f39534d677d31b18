"""Wald's sequential test (SPRT): repeats a case only until its pass rate is clearly high enough or too low."""

import math
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Literal

from msgspec import Struct, structs

Decision = Literal["passes", "fails", "undecided"]
_MAX_RUNS = 20_000
_NEGLIGIBLE = 1e-12
"""Sequences of runs less likely than this are ignored."""


class SequentialResult(Struct, frozen=True):
    """A decision and the runs it took. `errors` are runs without a verdict."""

    decision: Decision
    passed: int
    failed: int
    errors: int


class DecisionChances(Struct, frozen=True):
    """The probability of each decision for a given true pass rate. The sum is 1."""

    passes: float
    fails: float
    undecided: float


class SequentialTest(Struct, frozen=True, kw_only=True):
    """Decides whether the pass rate of one case is at least `min_pass` or at most `too_low`.

    No test can tell adjacent rates apart, so a `margin` separates the two: too_low = min_pass - margin (by default 0.2,
    or half of a `min_pass` below 0.4). After each run the likelihoods of the two rates are compared,

        L = passed · ln(min_pass / too_low) + failed · ln((1 - min_pass) / (1 - too_low))

    and the case passes once L ≥ ln(1/alpha), fails once L ≤ ln(beta). For any `max_runs`,

    - a case with a rate of `too_low` or lower passes with a probability of at most `alpha`,
    - a case with a rate of `min_pass` or higher fails with a probability of at most `beta`

    (Ville's inequality; Wald's own bounds, (1 - beta)/alpha and beta/(1 - alpha), are slightly shorter and hold only
    approximately). A rate in between may get either decision; a smaller margin makes these rates rarer and costs runs as
    1/margin². The case is undecided after `max_runs`, or as soon as the remaining runs cannot lead to a decision. With
    `max_runs` 0 the smallest number is taken with which a case of the rate `min_pass` stays undecided with a probability
    of at most `beta`.

    The guarantee is for independent trials of one case: not for pooled trials of several cases, and not for runs in the
    order of their end, because failures may be faster. `evaluate` takes them in the order of their start.
    """

    min_pass: float
    max_runs: int = 0
    alpha: float = 0.05
    beta: float = 0.1
    margin: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.min_pass <= 1:
            raise ValueError(f"min_pass is {self.min_pass}: must be above 0 and at most 1")
        if not 0 < self.too_low < self.min_pass:
            raise ValueError(f"margin is {self.margin}: must be above 0 and below min_pass ({self.min_pass})")
        if not (0 < self.alpha < 1 and 0 < self.beta < 1 and self.alpha + self.beta < 1):
            raise ValueError(f"alpha {self.alpha} and beta {self.beta}: each must be above 0 and their sum below 1")
        if self.max_runs < 0:
            raise ValueError(f"max_runs is {self.max_runs}: must be at least 1")
        if not self.max_runs:
            structs.force_setattr(self, "max_runs", self._find_sufficient_runs())  # frozen from here on

    @property
    def too_low(self) -> float:
        """The rate that fails: min_pass - margin."""
        return self.min_pass - (min(0.2, self.min_pass / 2) if self.margin is None else self.margin)

    @property
    def min_passes(self) -> int:
        """The number of passes in a row that decides. With a lower `max_runs` no case can pass."""
        runs = max(1, math.floor(-math.log(self.alpha) / math.log(self.min_pass / self.too_low)))
        while not self._is_passed(runs, 0):
            runs += 1
        return runs

    def chances(self, rate: float) -> DecisionChances:
        """Return the exact probability of each decision for a case with this pass rate."""
        passes = fails = 0.0
        still_open = 1.0
        for run, (passing, failing, still_open) in enumerate(self._iterate_run_probabilities(rate), 1):
            passes += passing
            fails += failing
            if run == self.max_runs or still_open < _NEGLIGIBLE:
                break
        return DecisionChances(passes, fails, still_open)

    def decide(self, passed: int, failed: int, errors: int = 0) -> Decision | None:
        """Return the decision after these runs; None if more are needed. An error uses up a run and has no other effect."""
        if self._is_passed(passed, failed):
            return "passes"
        if self._is_failed(passed, failed):
            return "fails"
        left = max(0, self.max_runs - passed - failed - errors)
        if self._is_passed(passed + left, failed) or self._is_failed(passed, failed + left):
            return None
        return "undecided"

    def min_trials_left(self, passed: int, failed: int, errors: int = 0) -> int:
        """Return a number of further runs that are surely needed, whatever their outcomes.

        The fastest decision is that all of them pass or all of them fail. A mixture, with errors, can only put both limits
        out of reach, and not before fewer runs are left than lie between the limits.
        """
        left = max(0, self.max_runs - passed - failed - errors)
        one_of_each = self._log_ratio(1, 0) - self._log_ratio(0, 1)
        between = -math.log(self.alpha * self.beta) / one_of_each
        most = min(left, max(1, math.floor(left - between)))
        for more in range(1, most):
            if self.decide(passed + more, failed, errors) or self.decide(passed, failed + more, errors):
                return more
        return most

    def evaluate(self, outcomes: Iterable[bool | None]) -> SequentialResult | None:
        """Return the first decision over the runs in the order of their start; None if more are needed.

        The outcome None is an error. Runs after the decision do not change it.
        """
        passed = failed = errors = 0
        for outcome in outcomes:
            if outcome is None:
                errors += 1
            elif outcome:
                passed += 1
            else:
                failed += 1
            if decision := self.decide(passed, failed, errors):
                return SequentialResult(decision, passed, failed, errors)
        return None

    def _find_sufficient_runs(self) -> int:
        """Return the smallest number of runs with which a rate of `min_pass` stays undecided with probability `beta` at most."""
        fewest = self.min_passes
        runs = range(1, _MAX_RUNS + 1) if fewest <= _MAX_RUNS else ()
        for run, (_, _, still_open) in zip(runs, self._iterate_run_probabilities(self.min_pass), strict=False):
            if still_open <= self.beta:
                return max(run, fewest)
        raise ValueError(
            f"distinguishing the pass rates {self.min_pass:g} and {self.too_low:g} takes more than {_MAX_RUNS:,} runs of a case; "
            "raise the margin, or set max_runs"
        )

    def _iterate_run_probabilities(self, rate: float) -> Iterator[tuple[float, float, float]]:
        """Yield, per run, the probabilities that it decides for a pass, for a failure, and that the test is still open."""
        least, most = 0, 0  # the range of passes with which the test is still open; both ends only grow
        still_open = [1.0]  # the probability of each
        for run in count(1):
            first = least
            while least <= run and self._is_failed(least, run - least):
                least += 1
            most += 1
            while most >= least and self._is_passed(most, run - most):
                most -= 1
            failing = [chance * (1 - rate) for chance in still_open]
            passing = [chance * rate for chance in still_open]
            reached = [a + b for a, b in zip([*failing, 0.0], [0.0, *passing], strict=True)]
            still_open = reached[least - first : most - first + 1]
            passes, fails = sum(reached[most - first + 1 :]), sum(reached[: least - first])
            yield passes, fails, math.fsum(still_open)

    def _is_passed(self, passed: int, failed: int) -> bool:
        return self._log_ratio(passed, failed) >= -math.log(self.alpha)

    def _is_failed(self, passed: int, failed: int) -> bool:
        return self._log_ratio(passed, failed) <= math.log(self.beta)

    def _log_ratio(self, passed: int, failed: int) -> float:
        gain = passed * math.log(self.min_pass / self.too_low)
        if not failed:
            return gain
        if self.min_pass == 1:
            return -math.inf  # a case that must always pass has failed
        return gain + failed * math.log((1 - self.min_pass) / (1 - self.too_low))

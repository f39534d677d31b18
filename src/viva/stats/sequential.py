"""Runs a case again only until it is clear whether its pass rate is high enough: Wald's sequential test (SPRT)."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

Decision = Literal["passes", "fails", "undecided"]
_MOST_RUNS = 20_000
_NEGLIGIBLE = 1e-12
"""A course of the runs that is less likely than this is not followed further."""


@dataclass(frozen=True, slots=True)
class SequentialResult:
    """A decision and what it took. `errors` are runs that judged nothing."""

    decision: Decision
    passed: int
    failed: int
    errors: int


@dataclass(frozen=True, slots=True)
class DecisionChances:
    """How likely each decision is for a case of some true pass rate. They add up to 1."""

    passes: float
    fails: float
    undecided: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialTest:
    """Is the pass rate of one case `min_pass` or more, or is it `too_low`?

    No test can tell apart rates that touch, so there is a `margin` between the two: too_low = min_pass - margin (by
    default 0.2, or half of a `min_pass` below 0.4). After each run the likelihoods of the two rates are compared,

        L = passed · ln(min_pass / too_low) + failed · ln((1 - min_pass) / (1 - too_low))

    and the case passes once L ≥ ln(1/alpha), fails once L ≤ ln(beta). Whatever `max_runs` is,

    - a case whose rate is `too_low` or lower passes with a chance of at most `alpha`,
    - a case whose rate is `min_pass` or higher fails with a chance of at most `beta`

    (Ville's inequality; Wald's own bounds, (1 - beta)/alpha and beta/(1 - alpha), are a hair shorter and only nearly
    hold). A rate in between may get either decision; a smaller margin makes such rates rarer, and costs runs as
    1/margin². It is undecided when `max_runs` are used up, or as soon as those left could not lead to a decision. Without
    a number (0), `max_runs` is the smallest one with which a case of the rate `min_pass` stays undecided with a chance of
    at most `beta`.

    The promise is for independent trials of one case: not for the pooled trials of several cases, and not for runs
    looked at in the order in which they end, since failures may be quicker. `follow` goes by the order of their start.
    """

    min_pass: float
    max_runs: int = 0
    alpha: float = 0.05
    beta: float = 0.1
    margin: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.min_pass <= 1:
            raise ValueError(f"min_pass is {self.min_pass}: it is a rate above 0, at most 1")
        if not 0 < self.too_low < self.min_pass:
            raise ValueError(f"margin is {self.margin}: it is above 0 and below min_pass ({self.min_pass})")
        if not (0 < self.alpha < 1 and 0 < self.beta < 1 and self.alpha + self.beta < 1):
            raise ValueError(f"alpha {self.alpha} and beta {self.beta}: each is above 0, and together they are below 1")
        if self.max_runs < 0:
            raise ValueError(f"max_runs is {self.max_runs}: it is at least 1")
        if not self.max_runs:
            object.__setattr__(self, "max_runs", self._enough_runs())  # frozen from here on

    @property
    def too_low(self) -> float:
        """The rate that is too bad: min_pass less the margin."""
        return self.min_pass - (min(0.2, self.min_pass / 2) if self.margin is None else self.margin)

    @property
    def min_passes(self) -> int:
        """With `max_runs` below this number the case cannot pass, however good it is."""
        runs = max(1, math.floor(-math.log(self.alpha) / math.log(self.min_pass / self.too_low)))
        while not self._can_say_passes(runs, 0):
            runs += 1
        return runs

    def chances(self, rate: float) -> DecisionChances:
        """Exact: follows every course that independent runs of a case with this pass rate can take."""
        passes = fails = 0.0
        still_open = 1.0
        for run, (passing, failing, still_open) in enumerate(self._walk(rate), 1):
            passes += passing
            fails += failing
            if run == self.max_runs or still_open < _NEGLIGIBLE:
                break
        return DecisionChances(passes, fails, still_open)

    def decide(self, passed: int, failed: int, errors: int = 0) -> Decision | None:
        """The decision after these runs, if it was not made before; None: run again. An error uses up a run, no more."""
        if self._can_say_passes(passed, failed):
            return "passes"
        if self._can_say_fails(passed, failed):
            return "fails"
        left = max(0, self.max_runs - passed - failed - errors)
        if self._can_say_passes(passed + left, failed) or self._can_say_fails(passed, failed + left):
            return None
        return "undecided"

    def min_trials_left(self, passed: int, failed: int, errors: int = 0) -> int:
        """How many more runs it takes at the least, after these: if all of them pass, or if all of them fail."""
        left = max(0, self.max_runs - passed - failed - errors)
        for more in range(1, left):
            if self.decide(passed + more, failed, errors) or self.decide(passed, failed + more, errors):
                return more
        return left

    def evaluate(self, outcomes: Iterable[bool | None]) -> SequentialResult | None:
        """The first decision on the way through the runs in the order in which they were started; None: run again.

        `None` among the outcomes is an error. Runs behind the decision (they were under way) do not change it.
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

    def _enough_runs(self) -> int:
        """The smallest number of runs that leaves a case of the rate `min_pass` undecided in at most `beta`."""
        fewest = self.min_passes
        runs = range(1, _MOST_RUNS + 1) if fewest <= _MOST_RUNS else ()
        for run, (_, _, still_open) in zip(runs, self._walk(self.min_pass), strict=False):
            if still_open <= self.beta:
                return max(run, fewest)
        raise ValueError(
            f"to tell {self.min_pass:g} from {self.too_low:g} takes more than {_MOST_RUNS:,} runs of a case; "
            "raise the margin, or set max_runs"
        )

    def _walk(self, rate: float) -> Iterator[tuple[float, float, float]]:
        """For each run, the chances that it brings a pass, that it brings a failure, and that the test is still open then."""
        least, most = 0, 0  # the numbers of passes with which the test is still open; neither of them ever falls
        still_open = [1.0]  # the chance of each of them
        for run in count(1):
            first = least
            while least <= run and self._can_say_fails(least, run - least):
                least += 1
            most += 1
            while most >= least and self._can_say_passes(most, run - most):
                most -= 1
            failing = [chance * (1 - rate) for chance in still_open]
            passing = [chance * rate for chance in still_open]
            reached = [a + b for a, b in zip([*failing, 0.0], [0.0, *passing], strict=True)]
            still_open = reached[least - first : most - first + 1]
            passes, fails = sum(reached[most - first + 1 :]), sum(reached[: least - first])
            yield passes, fails, math.fsum(still_open)

    def _can_say_passes(self, passed: int, failed: int) -> bool:
        return self._evidence(passed, failed) >= -math.log(self.alpha)

    def _can_say_fails(self, passed: int, failed: int) -> bool:
        return self._evidence(passed, failed) <= math.log(self.beta)

    def _evidence(self, passed: int, failed: int) -> float:
        for_it = passed * math.log(self.min_pass / self.too_low)
        if not failed:
            return for_it
        if self.min_pass == 1:
            return -math.inf  # a case that must always pass has failed
        return for_it + failed * math.log((1 - self.min_pass) / (1 - self.too_low))

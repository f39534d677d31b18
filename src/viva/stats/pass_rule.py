"""When a case passes: by the share of passed trials, or by a sequential test.

Trials are in the order of their start. An undecided case has the status error and is counted separately.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from viva.model.record import Status
from viva.stats.pass_rate import decide_case_status
from viva.stats.sequential import Decision, SequentialTest

_STATUSES: dict[Decision, Status] = {"passes": "passed", "fails": "failed", "undecided": "error"}
_OUTCOMES: dict[Status, bool | None] = {"passed": True, "failed": False, "error": None, "skipped": None}


class PassRule(Struct, frozen=True):
    """A case passes if all trials pass; with `min_pass`, if that share does; with a `test`, if the test decides so."""

    min_pass: float | None = None
    test: SequentialTest | None = None

    def decide(self, trials: Sequence[Status]) -> Decision | None:
        """Return the decision of the sequential test; None if there is no test or more trials are needed."""
        if self.test is None:
            return None
        result = self.test.evaluate(_OUTCOMES[status] for status in trials)
        return result.decision if result else None

    def needs_no_more_trials(self, trials: Sequence[Status]) -> bool:
        """Return whether no more trials are needed: the case is decided, or was skipped when it was first tried.

        A later skip, because the agent happened to wait for input, is no verdict, like an error.
        """
        return self.decide(trials) is not None or (bool(trials) and trials[0] == "skipped")

    def min_trials_left(self, trials: Sequence[Status]) -> int:
        """Return the minimum number of further trials that a sequential test needs."""
        if self.test is None:
            return 0
        passed, failed = trials.count("passed"), trials.count("failed")
        return self.test.min_trials_left(passed, failed, len(trials) - passed - failed)

    def status(self, trials: Sequence[Status], missing: int = 0) -> Status:
        """Return the status of the case. `missing` trials were planned and never ran."""
        if self.test is None:
            return decide_case_status(trials, self.min_pass, missing)
        if trials and all(status == "skipped" for status in trials):
            return "skipped"
        return _STATUSES[self.decide(trials) or "undecided"]

    def is_undecided(self, trials: Sequence[Status]) -> bool:
        """Return whether a sequential test saw verdicts and reached no decision."""
        if self.test is None or self.decide(trials) in ("passes", "fails"):
            return False
        return "passed" in trials or "failed" in trials

    def decided_as(self, trials: Sequence[Status]) -> Decision | None:
        """Return the decision as the summary of the run counts it: a case that never had a verdict is not undecided."""
        decision = self.decide(trials)
        if decision in ("passes", "fails"):
            return decision
        return "undecided" if self.is_undecided(trials) else None

    def count_missing(self, ended: int, planned: int) -> int:
        """Return how many of the planned trials never ran. A sequential test plans no fixed number."""
        return 0 if self.test is not None else max(0, planned - ended)

    def can_pass(self, trials: Sequence[Status], planned: int) -> bool:
        """Return whether a case with a fixed number of trials passes if all remaining trials pass."""
        remaining: list[Status] = ["passed"] * (planned - len(trials))
        return self.status([*trials, *remaining]) in ("passed", "skipped")

    def to_settings(self) -> dict[str, Any]:
        """Return the settings for the first event of the run, so that reports use the same rule."""
        return {"min_pass": self.min_pass, "sequential": structs.asdict(self.test) if self.test else None}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "PassRule":
        min_pass, test = settings.get("min_pass"), settings.get("sequential")
        return cls(None if min_pass is None else float(min_pass), SequentialTest(**test) if test else None)

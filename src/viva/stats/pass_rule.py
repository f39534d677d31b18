"""What the trials of a case come to: by the share that passed or, for a sequential test, as soon as that is decided.

Trials are in the order of their start. A case that stays undecided has the status error and is counted apart: neither
that it is good enough nor that it is not has been shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from msgspec import Struct

from viva.model.record import Status
from viva.stats.pass_rate import case_status
from viva.stats.sequential import Decision, SequentialTest

_STATUSES: dict[Decision, Status] = {"passes": "passed", "fails": "failed", "undecided": "error"}
_OUTCOMES: dict[Status, bool | None] = {"passed": True, "failed": False, "error": None, "skipped": None}


class PassRule(Struct, frozen=True):
    """When does a case pass? If all trials did; with `min_pass`, that share of them; with a `test`, if it says so."""

    min_pass: float | None = None
    test: SequentialTest | None = None

    def decide(self, trials: Sequence[Status]) -> Decision | None:
        """What a sequential test says; None: run again, or there is none."""
        if self.test is None:
            return None
        found = self.test.evaluate(_OUTCOMES[status] for status in trials)
        return found.decision if found else None

    def is_over(self, trials: Sequence[Status]) -> bool:
        """Need no more trials be run? A case that is left out once is left out each time."""
        return self.decide(trials) is not None or "skipped" in trials

    def min_trials_left(self, trials: Sequence[Status]) -> int:
        """How many more trials a sequential test takes at the least, whatever the order of these."""
        if self.test is None:
            return 0
        passed, failed = trials.count("passed"), trials.count("failed")
        return self.test.min_trials_left(passed, failed, len(trials) - passed - failed)

    def status(self, trials: Sequence[Status], missing: int = 0) -> Status:
        """The case's status; `missing` trials were planned and never ran. One that was cut off before a decision is undecided."""
        if self.test is None:
            return case_status(trials, self.min_pass, missing)
        if trials and all(status == "skipped" for status in trials):
            return "skipped"
        return _STATUSES[self.decide(trials) or "undecided"]

    def is_undecided(self, trials: Sequence[Status]) -> bool:
        """Has a sequential test seen verdicts and come to no decision? Without any verdict the case is just an error."""
        if self.test is None or self.decide(trials) in ("passes", "fails"):
            return False
        return "passed" in trials or "failed" in trials

    def can_pass(self, trials: Sequence[Status], planned: int) -> bool:
        """Would a case with a fixed number of trials not fail, if all of those that are still to come passed?"""
        still_to_come: list[Status] = ["passed"] * (planned - len(trials))
        return self.status([*trials, *still_to_come]) in ("passed", "skipped")

    def to_settings(self) -> dict[str, Any]:
        """For the run's first event, so that reports judge as the run did."""
        return {"min_pass": self.min_pass, "sequential": asdict(self.test) if self.test else None}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "PassRule":
        asked, test = settings.get("min_pass"), settings.get("sequential")
        return cls(None if asked is None else float(asked), SequentialTest(**test) if test else None)

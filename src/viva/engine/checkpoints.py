"""How far a conversation has come: which checkpoints are reached, and how close the others came."""

import inspect

from viva.model.case import Checkpoint, Goal
from viva.model.turn import CheckpointState, Turn
from viva.state.evaluation import evaluate
from viva.state.trial_state import CheckContext, TrialState


class CheckpointTracker:
    """Looks for checkpoints after each reply and writes what it saw into `talk.sightings`."""

    def __init__(self, state: TrialState, goal: Goal) -> None:
        self._state = state
        self._goal = goal
        for checkpoint in goal.checkpoints:
            state.checkpoints[checkpoint.id] = CheckpointState()

    @property
    def missing(self) -> list[Checkpoint]:
        return [c for c in self._goal.checkpoints if c.required and not self._reached(c.id)]

    @property
    def is_met(self) -> bool:
        return not self.missing

    async def update(self, turn: Turn, *, is_last: bool = False) -> None:
        """Tries each pending checkpoint at most once, free ones first, so one reply can reach a whole chain.

        `over` is the last look: a patient goal then asks costly checks that it has put off, and only those.
        """
        if not self._goal.checkpoints:
            return
        tried: set[str] = set()
        if not is_last:
            self._forget_passing_ones()
        while (checkpoint := self._next(tried, over=is_last)) is not None:
            tried.add(checkpoint.id)
            await self._try(checkpoint, turn)
        for checkpoint in self._goal.checkpoints:
            unmet = tuple(name for name in checkpoint.after if not self._reached(name))
            self._state.checkpoints[checkpoint.id].unmet_after = unmet

    def _next(self, tried: set[str], *, over: bool) -> Checkpoint | None:
        """The first free checkpoint that is cheap, else the first that is free and may be asked now."""
        free = [
            c
            for c in self._goal.checkpoints
            if c.id not in tried and not self._reached(c.id) and all(map(self._reached, c.after))
        ]
        cheap = [] if over else [c for c in free if not c.assertion.check.costly]
        if cheap:
            return cheap[0]
        costly = [c for c in free if c.assertion.check.costly]
        if over:
            return next((c for c in costly if self._goal.defers_costly), None)
        return next(iter(costly), None) if not self._goal.defers_costly or self._cheap_ones_hold() else None

    def _cheap_ones_hold(self) -> bool:
        return all(self._reached(c.id) for c in self._goal.checkpoints if c.required and not c.assertion.check.costly)

    def _forget_passing_ones(self) -> None:
        """What does not last (a file) has to hold again now."""
        for checkpoint in self._goal.checkpoints:
            if not checkpoint.is_lasting:
                self._state.checkpoints[checkpoint.id].turn = None

    def _reached(self, checkpoint_id: str) -> bool:
        return self._state.checkpoints[checkpoint_id].turn is not None

    async def _try(self, checkpoint: Checkpoint, turn: Turn) -> None:
        context = CheckContext(self._state, turn, checkpoint.assertion.on, checkpoint.assertion.over)
        found = evaluate(checkpoint.assertion, context)
        verdict = (await found if inspect.isawaitable(found) else found).verdict
        checkpoint_state = self._state.checkpoints[checkpoint.id]
        checkpoint_state.verdict = verdict
        if verdict.passed:
            checkpoint_state.turn = turn.number

"""How far a conversation has come: which checkpoints are reached, and how close the others came."""

import inspect

from viva.model.case import Checkpoint, Goal
from viva.model.judging import judge
from viva.model.talk import Evidence, Sighting, Talk, Turn


class Progress:
    """Looks for checkpoints after each reply and writes what it saw into `talk.sightings`."""

    def __init__(self, talk: Talk, goal: Goal) -> None:
        self._talk = talk
        self._goal = goal
        for checkpoint in goal.checkpoints:
            talk.sightings[checkpoint.id] = Sighting()

    @property
    def missing(self) -> list[Checkpoint]:
        return [c for c in self._goal.checkpoints if c.required and not self._reached(c.id)]

    @property
    def met(self) -> bool:
        return not self.missing

    async def look(self, turn: Turn, *, over: bool = False) -> None:
        """Tries each pending checkpoint at most once, free ones first, so one reply can reach a whole chain.

        `over` is the last look: a patient goal then asks costly checks that it has put off, and only those.
        """
        if not self._goal.checkpoints:
            return
        tried: set[str] = set()
        if not over:
            self._forget_passing_ones()
        while (checkpoint := self._next(tried, over=over)) is not None:
            tried.add(checkpoint.id)
            await self._try(checkpoint, turn)
        for checkpoint in self._goal.checkpoints:
            unmet = tuple(name for name in checkpoint.after if not self._reached(name))
            self._talk.sightings[checkpoint.id].unmet = unmet

    def _next(self, tried: set[str], *, over: bool) -> Checkpoint | None:
        """The first free checkpoint that is cheap, else the first that is free and may be asked now."""
        free = [
            c
            for c in self._goal.checkpoints
            if c.id not in tried and not self._reached(c.id) and all(map(self._reached, c.after))
        ]
        cheap = [] if over else [c for c in free if not c.claim.check.costly]
        if cheap:
            return cheap[0]
        costly = [c for c in free if c.claim.check.costly]
        if over:
            return next((c for c in costly if self._goal.patient), None)
        return next(iter(costly), None) if not self._goal.patient or self._cheap_ones_hold() else None

    def _cheap_ones_hold(self) -> bool:
        return all(self._reached(c.id) for c in self._goal.checkpoints if c.required and not c.claim.check.costly)

    def _forget_passing_ones(self) -> None:
        """What does not last (a file) has to hold again now."""
        for checkpoint in self._goal.checkpoints:
            if not checkpoint.lasting:
                self._talk.sightings[checkpoint.id].turn = None

    def _reached(self, checkpoint_id: str) -> bool:
        return self._talk.sightings[checkpoint_id].turn is not None

    async def _try(self, checkpoint: Checkpoint, turn: Turn) -> None:
        evidence = Evidence(self._talk, turn, checkpoint.claim.on, checkpoint.claim.over)
        found = judge(checkpoint.claim, evidence)
        verdict = (await found if inspect.isawaitable(found) else found).verdict
        sighting = self._talk.sightings[checkpoint.id]
        sighting.verdict = verdict
        if verdict.passed:
            sighting.turn = turn.number

"""Tracks which checkpoints of a conversation are reached, and how close the others came."""

from viva.model.case import Checkpoint, Goal
from viva.model.turn import CheckpointState, Turn
from viva.state.evaluation import evaluate_assertion
from viva.state.trial_state import CheckContext, TrialState


class CheckpointTracker:
    """Evaluates checkpoints after each reply and stores the results in `state.checkpoints`."""

    def __init__(self, state: TrialState, goal: Goal) -> None:
        self._state = state
        self._goal = goal
        self._turn = 0
        self._tried: set[str] = set()
        """The checkpoints that were evaluated after the reply of the newest turn."""
        for checkpoint in goal.checkpoints:
            state.checkpoints[checkpoint.id] = CheckpointState()

    @property
    def missing_checkpoints(self) -> list[Checkpoint]:
        """The required checkpoints that are not reached."""
        return [c for c in self._goal.checkpoints if c.required and not self._is_reached(c.id)]

    @property
    def is_goal_met(self) -> bool:
        return not self.missing_checkpoints

    async def evaluate_open_checkpoints(self, turn: Turn, *, is_conversation_over: bool = False) -> None:
        """Evaluates each open checkpoint at most once per turn, cheap ones first, so that one reply can reach a chain of them.

        With `is_conversation_over`, only costly checks that the goal has deferred are evaluated.
        """
        if not self._goal.checkpoints:
            return
        if turn.number != self._turn:
            self._turn, self._tried = turn.number, set()
        if not is_conversation_over:
            self._reopen_not_lasting()
        while (checkpoint := self._next_to_evaluate(is_conversation_over=is_conversation_over)) is not None:
            self._tried.add(checkpoint.id)
            assertion = checkpoint.assertion
            context = CheckContext(self._state, turn, assertion.on, assertion.over)
            checkpoint_state = self._state.checkpoints[checkpoint.id]
            result = await evaluate_assertion(assertion, context)
            checkpoint_state.verdict, checkpoint_state.helper_calls = result.verdict, result.helper_calls
            if checkpoint_state.verdict.passed:
                checkpoint_state.turn = turn.number
        for checkpoint in self._goal.checkpoints:
            unmet = tuple(name for name in checkpoint.after if not self._is_reached(name))
            self._state.checkpoints[checkpoint.id].unmet_after = unmet

    def _next_to_evaluate(self, *, is_conversation_over: bool) -> Checkpoint | None:
        """The first open checkpoint that is cheap, else the first costly one that may run now."""
        open_ = [
            c
            for c in self._goal.checkpoints
            if c.id not in self._tried and not self._is_reached(c.id) and all(map(self._is_reached, c.after))
        ]
        costly = next((c for c in open_ if c.assertion.check.costly), None)
        if is_conversation_over:
            return costly if self._goal.defers_costly_checks else None
        cheap = next((c for c in open_ if not c.assertion.check.costly), None)
        if cheap is not None:
            return cheap
        return costly if not self._goal.defers_costly_checks or self._are_required_cheap_reached() else None

    def _are_required_cheap_reached(self) -> bool:
        return all(
            self._is_reached(c.id) for c in self._goal.checkpoints if c.required and not c.assertion.check.costly
        )

    def _reopen_not_lasting(self) -> None:
        """Reopen the checkpoints that do not last (files): they must hold again now."""
        for checkpoint in self._goal.checkpoints:
            if not checkpoint.stays_reached:
                self._state.checkpoints[checkpoint.id].turn = None

    def _is_reached(self, checkpoint_id: str) -> bool:
        return self._state.checkpoints[checkpoint_id].turn is not None

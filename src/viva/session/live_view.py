"""Writes the state of running conversations to a file, for `viva view`."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from viva.engine.records import build_turn_record
from viva.engine.trial import RunContext
from viva.model.live import LiveTrial, LiveView
from viva.model.turn import Turn
from viva.protocols import Workers
from viva.record.live_files import is_watched, remove_live_files, write_live_view
from viva.session.run_plan import RunPlan
from viva.state.trial_state import TrialState, format_current_time

_MIN_INTERVAL_S = 1.0
_MAX_TIME_SHARE = 0.05
"""Writing views takes at most this share of the time."""
_MAX_DETAILED_TRIALS = 32
_MAX_TURNS = 50
_MAX_CHARS = 200_000
"""Maximum length of the text shown of one conversation: its newest turns."""


class LiveViewWriter:
    """Writes the live view of a run about once a second while a viewer watches it."""

    def __init__(self, run_context: RunContext, journal: Path, plan: RunPlan, workers: Workers | None) -> None:
        self._run_context = run_context
        self._journal = journal
        self._plan = plan
        self._workers = workers

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Writes views while the block runs, then deletes their files."""
        task = asyncio.create_task(self._write_views())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            remove_live_files(self._journal)

    async def _write_views(self) -> None:
        delay_s = _MIN_INTERVAL_S
        while True:
            await asyncio.sleep(delay_s)
            if is_watched(self._journal):
                started = time.perf_counter()
                with suppress(Exception):  # a full disk, a reply that has no JSON: the run goes on without being shown
                    write_live_view(self._journal, self.build_view())
                delay_s = max(_MIN_INTERVAL_S, (time.perf_counter() - started) / _MAX_TIME_SHARE)

    def build_view(self) -> LiveView:
        states = list(self._run_context.running_trials.values())
        trials = [self._build_live_trial(state, at < _MAX_DETAILED_TRIALS) for at, state in enumerate(states)]
        return LiveView(
            at=format_current_time(),
            trials=trials,
            limit=self._plan.conversations.limit,
            workers=self._workers.count if self._workers else None,
            cost_usd=self._plan.budget.spent_usd or None,
        )

    def _build_live_trial(self, state: TrialState, has_turns: bool) -> LiveTrial:
        case, key, redactor = state.case, state.key, self._run_context.redactor
        shown = _select_newest_turns(state.turns) if has_turns else ()
        turns = [redactor.redact(build_turn_record(turn)) for turn in shown]
        return LiveTrial(
            suite=key.suite,
            case=key.case,
            agent=key.agent if len(self._plan.tested_agents) > 1 else "",
            name=case.name or "",
            trial=key.trial,
            attempt=key.attempt,
            started_at=state.started_at,
            waiting_for=state.waiting_for,
            planned_turns=len(case.user.planned_messages),
            turn_count=len(state.turns),
            is_turn_open=bool(state.turns) and state.turns[-1].reply is None and state.turns[-1].error is None,
            turns=turns,
        )


def _select_newest_turns(turns: Sequence[Turn]) -> Sequence[Turn]:
    """The newest turns that fit into the maximum length, in order."""
    room, first = _MAX_CHARS, len(turns)
    for turn in reversed(turns[-_MAX_TURNS:]):
        room -= len(turn.user_message.message.text) + len(turn.reply.content if turn.reply else "")
        if room < 0:
            break
        first -= 1
    return turns[first:]

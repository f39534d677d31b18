"""The turn loop: five ways of talking are five fillings of it. No I/O of its own.

for each line that the user says:
    the agent answers; the line's claims are judged; checkpoints are looked for
    a failed claim ends it                                    -> failed
    (the goal cannot end it while lines that are planned are still to come)
    the goal is met                                           -> the checks decide
    the agent declares itself done with checkpoints missing   -> failed
    `max_turns` is used up, before the user is asked again    -> failed
the user has nothing more to say                              -> the checks decide, or checkpoints are missing
"""

import inspect
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from msgspec import structs

from viva.awaiting.detector import detect
from viva.engine.checkpoints import CheckpointTracker
from viva.engine.outcome import (
    Outcome,
    outcome_of_check_error,
    outcome_of_fault,
    outcome_of_missing_checkpoints,
    outcome_of_missing_input,
)
from viva.engine.sending import Send
from viva.errors import TrialFault
from viva.model.case import Assertion, UserMessage
from viva.model.progress import CallProgress
from viva.model.tracebacks import PrintedOutput, printed_output
from viva.model.turn import AssertionResult, Turn
from viva.protocols import User
from viva.state.evaluation import evaluate
from viva.state.trial_state import CheckContext, TrialState, look_up
from viva.text.duration import format_duration

TurnListener = Callable[[Turn], None]
"""Hears of a turn twice: when the user has spoken (no reply yet) and when it has ended."""


async def run_conversation(state: TrialState, user: User, send: Send, watch: TurnListener) -> Outcome | None:
    """Holds the conversation. None: nothing went wrong on the way, so the checks decide."""
    progress = CheckpointTracker(state, state.case.goal)
    planned = len(user.planned_messages)
    async with aclosing(user.speak(state)) as lines:
        line = await anext(lines, None)
        while line is not None:
            turn = Turn(len(state.turns) + 1, line)
            state.turns.append(turn)
            watch(turn)
            try:
                await run_turn(state, turn, send)
            except TrialFault as fault:
                line = await _told(lines, fault)
                state.progress.reset()
                continue
            finally:
                watch(turn)
            if outcome := _ended_by_assertions(turn):
                return outcome
            if turn.number >= planned:
                await progress.update(turn)
                if outcome := await _ended_by_goal(state, progress, turn):
                    return None if outcome.status == "passed" else outcome
            line = await anext(lines, None)
    return await _ended_by_user(state, progress)


async def _told(lines: AsyncGenerator[UserMessage, None], fault: TrialFault) -> UserMessage | None:
    """A fault is raised where the line was said. Only a script test may live with it; from all others it comes back."""
    try:
        return await lines.athrow(fault)
    except StopAsyncIteration:
        return None


async def run_turn(state: TrialState, turn: Turn, send: Send) -> None:
    """One turn: the agent's answer, what is remembered of it, and what is claimed of it."""
    state.waiting_for = "agent"
    progress = state.progress
    progress.reset()
    printed_output.set(PrintedOutput())
    clock = _Clock(progress)
    try:
        turn.reply = reply = await send(turn.user_message)
    except BaseException as raised:
        turn.latency_ms = clock.latency_ms(progress.elapsed_ms)
        turn.partial_reply = progress.partial
        if isinstance(raised, TrialFault):
            turn.error = outcome_of_fault(raised).message
        raise
    finally:
        _keep_progress(state, turn)
    turn.latency_ms = clock.latency_ms(reply.elapsed_ms)
    progress.reset()  # what was known of this call is not known of what comes next
    turn.awaiting = detect(reply, state.confirmation_tools)
    if turn.user_message.variables:
        _set_variables(state, turn)
    context = CheckContext(state, turn)
    for assertion in turn.user_message.assertions:
        seen = context if assertion.on == context.text_scope else CheckContext(state, turn, assertion.on)
        turn.results.append(await evaluate_assertion(assertion, seen))


class _Clock:
    """Times a call by our clock, less the time for which its answer waited while another agent blocked the event loop."""

    def __init__(self, progress: CallProgress) -> None:
        self._progress = progress
        self._began = time.perf_counter()

    def latency_ms(self, known_ms: float | None) -> float:
        """A cassette or a time limit may know it better."""
        if known_ms is not None:
            return known_ms
        waited_s = self._progress.lag.waited_s(self._began, self._progress)
        return (time.perf_counter() - self._began - waited_s) * 1e3


def _keep_progress(state: TrialState, turn: Turn) -> None:
    """What the trial has to know of a call, however it ended."""
    progress = state.progress
    state.tracebacks += (structs.replace(each, turn=turn.number) for each in progress.tracebacks)
    state.warnings += (f"turn {turn.number}: {each}" for each in progress.warnings)
    if progress.blocked_s:
        state.warnings.append(
            f"turn {turn.number}: the agent blocked the event loop for {format_duration(progress.blocked_s)}, "
            "and every other conversation with it; make it a plain function, or await what takes long"
        )


def _set_variables(state: TrialState, turn: Turn) -> None:
    """Remembers what the turn's `set` finds. What it does not find is said now, and again where it is used."""
    for name, path in turn.user_message.variables.items():
        if found := look_up(path, CheckContext(state, turn, turn_scope="case")):
            state.variables[name] = found[0] if len(found) == 1 else found
            continue
        state.unset_variables[name] = f"`set` of turn {turn.number} found nothing at {path}"
        before = f"; {{{{{name}}}}} keeps its earlier value" if name in state.variables else ""
        state.warnings.append(f"turn {turn.number}: `set` {name}: found nothing at {path}{before}")


async def evaluate_assertion(assertion: Assertion, context: CheckContext) -> AssertionResult:
    """A claim's verdict, whether or not its check has to wait for someone."""
    found = evaluate(assertion, context)
    return await found if inspect.isawaitable(found) else found


def _ended_by_assertions(turn: Turn) -> Outcome | None:
    in_error = None
    for each in turn.results:
        if each.verdict.status == "failed":
            return Outcome.failed(None)
        if each.verdict.status == "error":
            in_error = in_error or each.verdict
    return outcome_of_check_error(in_error) if in_error else None


async def _ended_by_goal(state: TrialState, progress: CheckpointTracker, turn: Turn) -> Outcome | None:
    if not state.case.goal.checkpoints:
        return None
    if progress.is_met:
        return Outcome("passed")
    declared_done = turn.reply is not None and turn.reply.declared_state == "done"
    limits = state.case.limits
    used_up = limits.total_turns is not None and turn.number >= limits.total_turns
    if not (declared_done or used_up):
        return None
    await progress.update(turn, is_last=True)
    if progress.is_met:
        return Outcome("passed")
    said = None if declared_done else f"max turns ({limits.max_turns}) exceeded"
    return outcome_of_missing_checkpoints(state, progress.missing, said)


async def _ended_by_user(state: TrialState, progress: CheckpointTracker) -> Outcome | None:
    if not state.case.goal.checkpoints or progress.is_met or not state.turns:
        return None
    if (outcome := outcome_of_missing_input(state)) is not None:
        return outcome
    await progress.update(state.turns[-1], is_last=True)
    return None if progress.is_met else outcome_of_missing_checkpoints(state, progress.missing)

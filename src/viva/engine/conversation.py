"""The turn loop, shared by all kinds of users. It does no I/O of its own.

for each message of the user:
    the agent replies; the assertions of the message run; checkpoints are updated
    an assertion failed                                           -> failed
    (while planned messages are left, the goal cannot end it)
    the goal is met                                               -> the checks decide
    the agent declares itself done with checkpoints missing       -> failed
    `max_turns` is reached                                        -> failed
the user has no more messages                                     -> the checks decide, or checkpoints are missing
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from msgspec import structs

from viva.awaiting.detector import detect_awaiting
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
from viva.model.case import UserMessage
from viva.model.progress import CallProgress
from viva.model.tracebacks import PrintedOutput, printed_output
from viva.model.turn import Turn
from viva.protocols import User
from viva.state.evaluation import evaluate_assertion
from viva.state.trial_state import CheckContext, TrialState, find_values_in_reply
from viva.text.duration import format_duration

TurnListener = Callable[[Turn], None]
"""Is called twice for each turn: when the user has sent a message (no reply yet) and when the turn has ended."""


async def run_conversation(state: TrialState, user: User, send: Send, on_turn: TurnListener) -> Outcome | None:
    """Runs the conversation. Returns why the trial cannot pass, or None if its checks decide."""
    checkpoints = CheckpointTracker(state, state.case.goal)
    planned = len(user.planned_messages)
    async with aclosing(user.speak(state)) as messages:
        message = await anext(messages, None)
        while message is not None:
            turn = Turn(len(state.turns) + 1, message)
            state.turns.append(turn)
            on_turn(turn)
            try:
                await run_turn(state, turn, send)
            except TrialFault as fault:
                message = await _throw_fault_into_user(messages, fault)
                state.progress.reset()
                continue
            finally:
                on_turn(turn)
            if outcome := _outcome_of_assertions(turn):
                return outcome
            if turn.number >= planned:
                await checkpoints.evaluate_open_checkpoints(turn)
                if outcome := await _outcome_of_goal(state, checkpoints, turn):
                    return None if outcome.status == "passed" else outcome
            message = await anext(messages, None)
    return await _outcome_when_user_ends(state, checkpoints)


async def _throw_fault_into_user(messages: AsyncGenerator[UserMessage, None], fault: TrialFault) -> UserMessage | None:
    """Raise the fault in the user's generator, at its `yield`. A script test may catch it and send another message."""
    try:
        return await messages.athrow(fault)
    except StopAsyncIteration:
        return None


async def run_turn(state: TrialState, turn: Turn, send: Send) -> None:
    """Runs one turn: gets the agent's reply, sets variables from it, and evaluates the assertions."""
    state.waiting_for = "agent"
    turn.start_ms = state.ms_since_start()
    progress = state.progress
    progress.reset()
    printed_output.set(PrintedOutput())
    stopwatch = _Stopwatch(progress)
    try:
        reply = await send(turn.user_message)
        if state.clock.is_over:
            raise TimeoutError  # the agent blocked the event loop, so the timer could not fire
        turn.reply = reply
    except BaseException as raised:
        turn.latency_ms = stopwatch.latency_ms(progress.elapsed_ms)
        turn.partial_reply = progress.partial
        if isinstance(raised, TrialFault):
            turn.error = outcome_of_fault(raised).message
        raise
    finally:
        _copy_progress_to_trial(state, turn)
    turn.latency_ms = stopwatch.latency_ms(reply.elapsed_ms)
    if reply.elapsed_ms is not None:
        state.add_replayed_time(turn.start_ms, reply.elapsed_ms)
    progress.reset()  # the state of this call must not be charged to what comes next
    turn.awaiting = detect_awaiting(reply, state.confirmation_tools)
    if turn.user_message.variables:
        _set_variables_from_reply(state, turn)
    context = CheckContext(state, turn)
    began = state.ms_since_start()
    for assertion in turn.user_message.assertions:
        own_context = context if assertion.on == context.text_scope else CheckContext(state, turn, assertion.on)
        turn.results.append(await evaluate_assertion(assertion, own_context))
    turn.checks_ms = state.ms_since_start() - began


class _Stopwatch:
    """Times a call, without the time that the reply waited because another agent blocked the event loop."""

    def __init__(self, progress: CallProgress) -> None:
        self._progress = progress
        self._started = time.perf_counter()

    def latency_ms(self, recorded_ms: float | None) -> float:
        """The recorded time if there is one (a replay, a time limit), else the measured time."""
        if recorded_ms is not None:
            return recorded_ms
        return self._progress.compute_elapsed_ms(self._started)


def _copy_progress_to_trial(state: TrialState, turn: Turn) -> None:
    """Copies the tracebacks and warnings of a call into the trial, however the call ended."""
    progress = state.progress
    for traceback in progress.tracebacks:
        state.tracebacks.append(structs.replace(traceback, turn=turn.number))
    for warning in progress.warnings:
        state.warnings.append(f"turn {turn.number}: {warning}")
    progress.tracebacks, progress.warnings = [], []  # what comes later is not of this turn
    if progress.blocked_s:
        state.warnings.append(
            f"turn {turn.number}: the agent blocked the event loop for {format_duration(round(progress.blocked_s, 2))}, "
            "and with it all other conversations; make it a plain function, or await what takes long"
        )


def _set_variables_from_reply(state: TrialState, turn: Turn) -> None:
    """Sets the variables of the turn's `set`. A path without a value gives a warning, and an error where it is used."""
    for name, path in turn.user_message.variables.items():
        if values := find_values_in_reply(path, CheckContext(state, turn, turn_scope="case")):
            state.variables[name] = values[0] if len(values) == 1 else values
            continue
        state.unset_variables[name] = f"`set` of turn {turn.number} found nothing at {path}"
        earlier = f"; {{{{{name}}}}} keeps its earlier value" if name in state.variables else ""
        state.warnings.append(f"turn {turn.number}: `set` {name}: found nothing at {path}{earlier}")


def _outcome_of_assertions(turn: Turn) -> Outcome | None:
    """The outcome if an assertion of the turn failed or could not be evaluated; None if the conversation goes on.

    A turn without assertions may have results of a script test, which records them while a call runs, and goes on.
    """
    if not turn.user_message.assertions:
        return None
    error = None
    for result in turn.results:
        if result.verdict.status == "failed":
            return Outcome.failed(None)
        if result.verdict.status == "error":
            error = error or result.verdict
    return outcome_of_check_error(error) if error else None


async def _outcome_of_goal(state: TrialState, checkpoints: CheckpointTracker, turn: Turn) -> Outcome | None:
    """The outcome if the goal is met, the agent declares itself done, or `max_turns` is reached; else None."""
    if not state.case.goal.checkpoints:
        return None
    if checkpoints.is_goal_met:
        return Outcome("passed")
    limits = state.case.limits
    # An agent that is done with the steps has not met the persona, who goes on.
    is_declared_done = (
        turn.reply is not None and turn.reply.declared_state == "done" and turn.number > limits.setup_turns
    )
    is_used_up = limits.total_turns is not None and turn.number >= limits.total_turns
    if not (is_declared_done or is_used_up):
        return None
    await checkpoints.evaluate_open_checkpoints(turn, is_conversation_over=True)
    if checkpoints.is_goal_met:
        return Outcome("passed")
    message = None if is_declared_done else f"max turns ({limits.max_turns}) exceeded"
    return outcome_of_missing_checkpoints(state, checkpoints.missing_checkpoints, message)


async def _outcome_when_user_ends(state: TrialState, checkpoints: CheckpointTracker) -> Outcome | None:
    """The outcome when the user has no more messages; None if no checkpoint is missing, so that the checks decide."""
    if not state.case.goal.checkpoints or checkpoints.is_goal_met or not state.turns:
        return None
    if (outcome := outcome_of_missing_input(state)) is not None:
        return outcome
    await checkpoints.evaluate_open_checkpoints(state.turns[-1], is_conversation_over=True)
    return None if checkpoints.is_goal_met else outcome_of_missing_checkpoints(state, checkpoints.missing_checkpoints)

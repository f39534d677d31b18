"""One trial: open -> converse -> check -> close, and in the end a record, whatever happened on the way.

what is raised                          what becomes of the trial
AgentFailed                             failed, the agent's fault
Unreachable, HelperFailed, Undecidable  error, the fault it carries
NotRecorded                             error, infra; it is not tried again
the case's time is up (or was: CutOff)  charged to the one we waited for
a `before` hook breaks                  error, undetermined; its `after` is not called
cancelled (Ctrl-C, fail-fast)           no record: it was not run
anything else                           our own bug: it ends the run
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, Struct, field, structs

from viva.concurrency.threads import is_being_cancelled
from viva.engine.conversation import evaluate_assertion, run_conversation
from viva.engine.event_bus import EventBus
from viva.engine.outcome import (
    Outcome,
    keep_proven_failure,
    outcome_of_checks,
    outcome_of_fault,
    outcome_of_missing_input,
)
from viva.engine.records import trial_record, turn_record
from viva.engine.sending import AgentCaller, NamedAgent, merge_options, send_and_track_files, send_in_session
from viva.errors import CallCutOff, HelperFailed, TrialFault, Undetermined, Unreachable
from viva.model.case import Case, Key, Limits
from viva.model.connector import Connector
from viva.model.event import TrialStarted, TurnEnded, TurnStarted
from viva.model.message import ModelCall
from viva.model.progress import CallProgress, LoopLag
from viva.model.record import TrialRecord, TurnRecord
from viva.model.turn import Turn
from viva.protocols import Agent, Helpers, Hooks, Meter, PlannedTrial, SessionContext, Transport, WorkspaceFactory
from viva.state.trial_state import CheckContext, TrialState
from viva.text.duration import format_duration
from viva.text.template import fill_message, is_template

_NO_HELPERS = ("agent", "person", "script")


class RunContext(Struct, kw_only=True):
    """What every trial of a run shares. The session builds it once."""

    run: str
    agent: Agent
    agent_name: str
    http: Transport
    helpers: Helpers
    bus: EventBus
    agent_options: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    connectors: Mapping[str, Connector] = {}
    meter: Callable[[ModelCall], None] | None = None
    redact: Callable[[TrialRecord], TrialRecord] = lambda record: record
    redact_turn: Callable[[TurnRecord], TurnRecord] = lambda record: record
    redact_text: Callable[[str], str] = str
    find_agent: Callable[[str], NamedAgent] | None = None
    recorded_ms: Callable[[Key], float | None] = lambda _key: None
    may_retry: Callable[[Key], bool] = lambda _key: True
    live_warning: Callable[[Key], str | None] = lambda _key: None
    hooks: Hooks | None = None
    workspaces: WorkspaceFactory | None = None
    empty_workspaces: WorkspaceFactory | None = None
    uses_cassette: bool = False
    lag: LoopLag = field(default_factory=LoopLag)
    confirmation_tools: frozenset[str] = frozenset()

    def caller(self, key: Key, meter: Meter, session_id: str, state: TrialState | None = None) -> AgentCaller:
        """How code of the user's own calls agents by name, from a trial or from outside of any."""
        case = state.case if state else None
        return AgentCaller(
            find=self._listed,
            key=key,
            http=self.http,
            connectors=self.connectors,
            meter=meter,
            progress=state.progress if state else CallProgress(),
            base_options=_ours(session_id),
            case_options=_asked(case) if case else {},
            override_options=self.options,
            limits=case.limits if case else Limits(),
            spare_workspaces=self.empty_workspaces,
        )

    def _listed(self, name: str | None) -> NamedAgent:
        if name is None or name == self.agent_name or self.find_agent is None:
            return _UnderTest(self.agent, self.agent_options)
        return self.find_agent(name)


class _UnderTest(Struct, frozen=True):
    agent: Agent
    options: Mapping[str, Any]


class Deadline:
    """The case's clock. It stands still while a person thinks."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout

    @asynccontextmanager
    async def pause(self) -> AsyncGenerator[None]:
        due = self._timeout.when()
        left = None if due is None else due - asyncio.get_running_loop().time()
        self._timeout.reschedule(None)
        try:
            yield
        finally:
            self._timeout.reschedule(None if left is None else asyncio.get_running_loop().time() + left)


async def run_trial(
    run_context: RunContext, planned: PlannedTrial, attempt: int = 1, keep: Collection[str] = ("failed", "error")
) -> TrialRecord:
    """Runs one case once. A workspace in which it came to one of the statuses to `keep` is left to be looked at."""
    case = planned.case
    key = Key(case.suite, case.id, planned.trial, attempt)
    session_id = f"viva-{run_context.run}-{planned.index}.{attempt}"
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    limit = asyncio.timeout(case.limits.timeout_s)
    asking = run_context.confirmation_tools
    progress = CallProgress(agent=run_context.agent_name, lag=run_context.lag)
    state = TrialState(
        case,
        key,
        run_context.helpers,
        Deadline(limit),
        session_id=session_id,
        confirmation_tools=asking,
        progress=progress,
    )
    state.uses_cassette = run_context.uses_cassette
    if case.skip_reason is not None:
        outcome = Outcome("skipped", None, case.skip_reason)
    else:
        if run_context.bus.live:
            run_context.bus.emit(
                TrialStarted(
                    key, planned.index, case.name or case.id, len(case.user.planned_messages), case.user.simulator
                )
            )
        outcome = await _placed(run_context, state, limit, session_id, keep)
    not_run = _lines_not_said(state) if outcome.status in ("failed", "error") else []
    record = trial_record(
        state,
        outcome,
        agent=run_context.agent_name,
        session_id=session_id,
        started_at=started_at,
        not_run=not_run,
        trials=planned.total,
    )
    if (took_ms := run_context.recorded_ms(key)) is not None:
        record.duration_ms = took_ms
    if (why_live := run_context.live_warning(key)) is not None:
        record.warnings = [*(record.warnings or ()), why_live]
    record = run_context.redact(record)
    if run_context.hooks is not None and state.before_result is not UNSET:
        trouble = await run_context.hooks.after(state, record)
        if trouble is not None:
            record.warnings = [*(record.warnings or ()), trouble]
            record.tracebacks = tuple(state.tracebacks)
            record = run_context.redact(record)
    return record


async def _placed(
    run_context: RunContext, state: TrialState, limit: asyncio.Timeout, session_id: str, keep: Collection[str]
) -> Outcome:
    """The conversation, in a workspace if the case has one."""
    spec = state.case.workspace
    if spec is None or run_context.workspaces is None:
        return keep_proven_failure(state, await _held(run_context, state, limit, session_id))
    try:
        async with run_context.workspaces(spec, state.key) as workspace:
            state.workspace = workspace
            outcome = keep_proven_failure(state, await _held(run_context, state, limit, session_id))
            state.warnings += await workspace.warnings()
            if outcome.status in keep and state.turns:  # without a turn there is nothing to see
                workspace.keep()
            if workspace.is_kept:
                state.kept_workspace = workspace.path
            return outcome
    except TrialFault as fault:
        return outcome_of_fault(fault)


async def _held(run_context: RunContext, state: TrialState, limit: asyncio.Timeout, session_id: str) -> Outcome:
    """The conversation within its time, and who is to blame if it did not come to its end."""
    try:
        async with limit:
            with run_context.lag.extend_limit(limit, state.progress):
                if run_context.hooks is not None:
                    await run_context.hooks.before(state)
                _fill_history(state)
                return await _conversation(run_context, state, session_id)
    except (TimeoutError, CallCutOff) as expired:
        if not (limit.expired() or isinstance(expired, CallCutOff)):
            raise
        _keep_stderr(state)
        said = f"timeout after {format_duration(state.case.limits.timeout_s or 0)}"
        if trouble := _provider_trouble(state):
            return _provider_hung(state, f"{said}: {trouble}")
        if state.waiting_for == "script":
            return outcome_of_fault(Undetermined(f"{said}, in code of the test's own"))
        if state.waiting_for == "agent":
            if state.turns and state.turns[-1].reply is None:
                state.turns[-1].error = said
            return Outcome.failed(said)
        role = "simulator" if state.waiting_for == "person" else state.waiting_for
        return outcome_of_fault(HelperFailed(role, said))
    except TrialFault as fault:
        _keep_stderr(state)
        return outcome_of_fault(fault)
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        return outcome_of_fault(
            Undetermined("code of the test's own cancelled itself")
        )  # a hook, a plugin: the run goes on


def _fill_history(state: TrialState) -> None:
    """What was said before the first turn may hold variables that `before` set."""
    history = state.case.history
    if history and is_template([message.text for message in history]):
        history = tuple(fill_message(message, state.variables) for message in history)
        state.case = structs.replace(state.case, history=history)


def _keep_stderr(state: TrialState) -> None:
    if state.waiting_for == "agent" and state.progress.stderr_tail:
        state.warnings.append(f"stderr: {state.progress.stderr_tail}")


def _provider_trouble(state: TrialState) -> str | None:
    """The provider failure that the call we waited for was being retried for."""
    return state.progress.provider_trouble if state.waiting_for in _NO_HELPERS else state.helper_trouble


def _provider_hung(state: TrialState, said: str) -> Outcome:
    if state.waiting_for in _NO_HELPERS:
        return outcome_of_fault(Unreachable(said))
    return outcome_of_fault(HelperFailed(state.waiting_for, said))


async def _conversation(run_context: RunContext, state: TrialState, session_id: str) -> Outcome:
    case = state.case

    def meter(call: ModelCall) -> None:
        state.calls.append(call)
        if run_context.meter is not None:
            run_context.meter(call)

    if case.one_session:
        context = SessionContext(
            key=state.key,
            history=case.history,
            fixtures=case.fixtures,
            workspace=state.workspace,
            empty_workspaces=run_context.empty_workspaces,
            options=run_context.agent_options,
            meter=meter,
            http=run_context.http,
            progress=state.progress,
            connectors=run_context.connectors,
        )
        async with run_context.agent.open(context) as session:
            base = merge_options(_ours(session_id), run_context.agent_options, _asked(case), run_context.options)
            if state.workspace is not None:
                base["workspace"] = state.workspace.path
            send = send_in_session(session, base, run_context.options, case.limits, state.progress)
            if state.workspace is not None:
                send = send_and_track_files(send, state, state.workspace)
            outcome = await run_conversation(state, case.user, send, _watcher(run_context, state.key))
    else:
        calls = run_context.caller(state.key, meter, session_id, state)
        # Nobody watches: such a user judges a turn after its end, so only the whole can be shown.
        outcome = await run_conversation(state, case.user, calls.send, lambda _turn: None)
    if outcome is not None:
        return outcome
    if (outcome := outcome_of_missing_input(state)) is not None:
        return outcome
    await _judge_finals(state)
    return outcome_of_checks(state)


def _ours(session_id: str) -> dict[str, Any]:
    return {"session_id": session_id, "referer": "agent-test"}


def _asked(case: Case) -> Mapping[str, Any]:
    return merge_options({"metadata": case.metadata}, case.options) if case.metadata else case.options


def _watcher(run_context: RunContext, key: Key) -> Callable[[Turn], None]:
    if not run_context.bus.live:
        return lambda _turn: None
    begun: set[int] = set()

    def watch(turn: Turn) -> None:
        if turn.number not in begun:
            begun.add(turn.number)
            line = turn.user_message
            run_context.bus.emit(TurnStarted(key, turn.number, run_context.redact_text(line.message.text), line.source))
        else:
            run_context.bus.emit(TurnEnded(key, run_context.redact_turn(turn_record(turn))))

    return watch


async def _judge_finals(state: TrialState) -> None:
    """`final_assertions`: once, after a conversation that ended without failure."""
    if state.last_turn is None:
        return
    for assertion in state.case.final_assertions:
        state.final_results.append(
            await evaluate_assertion(assertion, CheckContext(state, state.last_turn, assertion.on, assertion.over))
        )


def _lines_not_said(state: TrialState) -> list[str]:
    """The planned lines that were still to come, for the report."""
    return [line.message.text for line in state.case.user.planned_messages[len(state.turns) :]]

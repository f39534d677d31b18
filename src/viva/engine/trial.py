"""Runs one trial: opens a session, runs the conversation and the checks, and always returns a record.

what is raised                               the outcome of the trial
AgentFailed                                  failed, the agent's fault
Unreachable, HelperFailed, Undetermined      error, with the fault of the exception
NotRecorded                                  error, infra; not retried
the case's timeout (or a replayed CallCutOff)  charged to whatever the trial was waiting for
a CallCutOff before any of today's limits      error, infra; not retried
a `before` hook fails                        error, undetermined; its `after` does not run
cancelled (Ctrl-C, fail-fast)                no record: the trial did not run
anything else                                a bug of Viva: it ends the run
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from msgspec import UNSET, Struct, field, structs

from viva.concurrency.threads import is_being_cancelled
from viva.engine.conversation import TurnListener, run_conversation
from viva.engine.event_bus import EventBus
from viva.engine.outcome import (
    Outcome,
    keep_assertion_failure,
    outcome_of_checks,
    outcome_of_fault,
    outcome_of_missing_input,
)
from viva.engine.records import build_trial_record, build_turn_record
from viva.engine.sending import (
    AgentCaller,
    build_session_options,
    create_session_sender,
    merge_options,
    was_cut_off_by_limit,
    wrap_with_file_tracking,
)
from viva.errors import CallCutOff, HelperFailed, NotRecorded, TrialFault, Undetermined, Unreachable
from viva.model.case import Case, Key, Limits
from viva.model.connector import Connector
from viva.model.event import TrialStarted, TurnEnded, TurnStarted
from viva.model.message import ModelCall
from viva.model.progress import CallProgress, LoopLag
from viva.model.record import TrialRecord
from viva.model.turn import Turn
from viva.protocols import (
    CassetteInfo,
    Helpers,
    Hooks,
    Meter,
    NamedAgent,
    PlannedTrial,
    RedactorProtocol,
    SessionContext,
    Transport,
    WorkspaceSource,
)
from viva.state.evaluation import evaluate_assertion
from viva.state.trial_state import CheckContext, TrialState
from viva.text.duration import format_duration
from viva.text.template import fill_variables_in_message, is_template

_NOT_HELPERS = ("agent", "person", "script")


class RunContext(Struct, frozen=True, kw_only=True):
    """What all trials of a run share. `agents` are under test, by name; `options` come from the command line and replace all
    others.
    """

    run_id: str
    agents: Mapping[str, NamedAgent]
    http: Transport
    helpers: Helpers
    bus: EventBus
    redactor: RedactorProtocol
    cassette: CassetteInfo
    options: Mapping[str, Any] = {}
    connectors: Mapping[str, Connector] = {}
    meter: Meter = lambda _call: None
    find_agent: Callable[[str], NamedAgent] | None = None
    workspaces: WorkspaceSource | None = None
    hooks: Hooks | None = None
    loop_lag: LoopLag = field(default_factory=LoopLag)
    confirmation_tools: frozenset[str] = frozenset()
    running_trials: dict[str, TrialState] = {}
    """The trials that run now, by session id, oldest first."""

    def create_agent_caller(self, key: Key, meter: Meter, session_id: str, state: TrialState | None) -> AgentCaller:
        """Creates the object by which the user's code calls agents by name, inside or outside of a trial."""
        case = state.case if state else None
        return AgentCaller(
            find_agent=lambda name: self._find_agent(name, key.agent),
            key=key,
            http=self.http,
            connectors=self.connectors,
            meter=meter,
            progress=state.progress if state else CallProgress(),
            base_options=build_session_options(session_id),
            case_options=_merge_case_options(case) if case else {},
            override_options=self.options,
            limits=case.limits if case else Limits(),
            empty_workspaces=self.workspaces.empty_workspaces if self.workspaces else None,
        )

    @contextmanager
    def list_as_running(self, state: TrialState) -> Generator[None]:
        """Lists the trial in `running_trials` while the block runs."""
        self.running_trials[state.session_id] = state
        try:
            yield
        finally:
            del self.running_trials[state.session_id]

    def _find_agent(self, name: str | None, under_test: str) -> NamedAgent:
        """An agent by its name; without a name the one under test, which outside of a trial is the first."""
        if (agent := self.agents.get(under_test if name is None else name)) is not None:
            return agent
        return next(iter(self.agents.values())) if name is None or self.find_agent is None else self.find_agent(name)


class Deadline:
    """The time limit of a case, which can be paused while a person thinks."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout

    @property
    def is_over(self) -> bool:
        due = self._timeout.when()
        return due is not None and asyncio.get_running_loop().time() > due

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
    """Runs one case once. If the status is one of `keep`, or an error that no retry can help, the workspace stays for inspection."""
    case = planned.case
    limit = asyncio.timeout(case.limits.timeout_s)
    state = create_trial_state(run_context, planned, attempt, limit)
    key = state.key
    if case.skip_reason is not None:
        outcome = Outcome("skipped", None, case.skip_reason)
    else:
        if run_context.bus.live:
            user = case.user
            run_context.bus.emit(
                TrialStarted(key, planned.index, case.name or case.id, len(user.planned_messages), user.simulator)
            )
        with run_context.list_as_running(state):
            outcome = await _run_in_workspace(run_context, state, limit, keep)
    record = build_trial_record(state, outcome, planned.total)
    if (recorded_ms := run_context.cassette.get_recorded_duration(key)) is not None:
        record.duration_ms = recorded_ms
    if (warning := run_context.cassette.explain_live_call(key)) is not None:
        record.warnings = [*(record.warnings or ()), warning]
    record = run_context.redactor.redact(record)
    if run_context.hooks is not None and state.before_result is not UNSET:
        problem = await run_context.hooks.after(state, record)
        if problem is not None:
            record.warnings = [*(record.warnings or ()), problem]
            record.tracebacks = tuple(state.tracebacks)
            record = run_context.redactor.redact(record)
    return record


def create_trial_state(
    run_context: RunContext, planned: PlannedTrial, attempt: int, limit: asyncio.Timeout | None = None
) -> TrialState:
    """The state of a trial that has not begun."""
    case = planned.case
    return TrialState(
        case,
        Key(case.suite, case.id, planned.trial, attempt, planned.agent),
        run_context.helpers,
        Deadline(limit or asyncio.timeout(None)),
        session_id=f"viva-{run_context.run_id}-{planned.index}.{attempt}",
        confirmation_tools=run_context.confirmation_tools,
        progress=CallProgress(agent=planned.agent, loop_lag=run_context.loop_lag),
        uses_cassette=run_context.cassette.is_active,
    )


async def _run_in_workspace(
    run_context: RunContext, state: TrialState, limit: asyncio.Timeout, keep: Collection[str]
) -> Outcome:
    """Runs the trial, in a workspace if the case has one."""
    spec = state.case.workspace
    if spec is None or run_context.workspaces is None:
        return keep_assertion_failure(state, await _run_within_timeout(run_context, state, limit))
    try:
        async with run_context.workspaces.open_workspace(spec, state.key) as workspace:
            state.workspace = workspace
            outcome = keep_assertion_failure(state, await _run_within_timeout(run_context, state, limit))
            state.warnings += await workspace.warnings()
            is_final_error = outcome.status == "error" and outcome.deterministic  # it is not tried again
            if (outcome.status in keep or is_final_error) and state.turns:  # without a turn there is nothing to inspect
                workspace.keep()
            if workspace.is_kept:
                state.kept_workspace = workspace.path
            return outcome
    except TrialFault as fault:
        return outcome_of_fault(fault)


async def _run_within_timeout(run_context: RunContext, state: TrialState, limit: asyncio.Timeout) -> Outcome:
    """Runs the conversation within the case's timeout, and turns what it raises into an outcome."""
    try:
        async with limit:
            with run_context.loop_lag.extend_limit(limit, state.progress):
                if run_context.hooks is not None:
                    await run_context.hooks.before(state)
                _fill_variables_in_history(state)
                return await _run_conversation_and_checks(run_context, state)
    except (TimeoutError, CallCutOff) as expired:
        if not (limit.expired() or state.clock.is_over or isinstance(expired, CallCutOff)):
            raise
        _warn_with_stderr(state)
        if isinstance(expired, CallCutOff) and _is_limit_longer_than_recorded(run_context, state):
            return outcome_of_fault(_build_missing_end(expired, state.case.limits.timeout_s))
        return _outcome_of_timeout(state)
    except TrialFault as fault:
        _warn_with_stderr(state)
        return outcome_of_fault(fault)
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        # a hook or plugin cancelled its own task: the run continues
        return outcome_of_fault(Undetermined("the test's own code cancelled itself"))


def _is_limit_longer_than_recorded(run_context: RunContext, state: TrialState) -> bool:
    """Is the time limit of the case longer than the whole trial took when it was recorded? Then the limit that cut off a call was another."""
    recorded_ms = run_context.cassette.get_recorded_duration(state.key)
    limit_s = state.case.limits.timeout_s
    return recorded_ms is not None and (limit_s is None or not was_cut_off_by_limit(limit_s * 1e3, recorded_ms))


def _build_missing_end(cut_off: CallCutOff, limit_s: float | None) -> NotRecorded:
    limit = "there is no time limit" if limit_s is None else f"the time limit of the case is {format_duration(limit_s)}"
    after = format_duration(round(cut_off.elapsed_ms / 1e3, 1))
    return NotRecorded(
        f"not in the cassette: the end of a call that was cut off after {after} when it was recorded; {limit} now"
    )


def _outcome_of_timeout(state: TrialState) -> Outcome:
    """Charges the case's timeout to whatever the trial was waiting for."""
    waiting_for = state.waiting_for
    message = f"timeout after {format_duration(state.case.limits.timeout_s or 0)}"
    provider_trouble = state.progress.provider_trouble if waiting_for in _NOT_HELPERS else state.helper_provider_failure
    if provider_trouble:
        message = f"{message}: {provider_trouble}"
        if waiting_for in _NOT_HELPERS:
            return outcome_of_fault(Unreachable(message))
        return outcome_of_fault(HelperFailed(waiting_for, message))
    if waiting_for == "script":
        return outcome_of_fault(Undetermined(f"{message}, in the test's own code"))
    if waiting_for == "agent":
        if state.turns and state.turns[-1].reply is None:
            state.turns[-1].error = message
        return Outcome.failed(message)
    return outcome_of_fault(HelperFailed("simulator" if waiting_for == "person" else waiting_for, message))


def _fill_variables_in_history(state: TrialState) -> None:
    """Fills variables that `before` set into the history of the case."""
    history = state.case.history
    if history and is_template([message.text for message in history]):
        history = tuple(fill_variables_in_message(message, state.variables) for message in history)
        state.case = structs.replace(state.case, history=history)


def _warn_with_stderr(state: TrialState) -> None:
    if state.waiting_for == "agent" and state.progress.stderr_tail:
        state.warnings.append(f"stderr: {state.progress.stderr_tail}")


async def _run_conversation_and_checks(run_context: RunContext, state: TrialState) -> Outcome:
    case = state.case

    def meter(call: ModelCall) -> None:
        state.calls.append(call)
        run_context.meter(call)

    if case.sessions == "one":
        outcome = await _run_conversation_in_session(run_context, state, meter)
    else:
        caller = run_context.create_agent_caller(state.key, meter, state.session_id, state)
        # No live turns: the checks of such a turn run after it ended, so only the whole trial can be shown.
        outcome = await run_conversation(state, case.user, caller.send, _ignore_turn)
    if outcome is None:
        outcome = outcome_of_missing_input(state)
    if outcome is not None:
        return outcome
    if (turn := state.last_turn) is not None:
        for assertion in case.final_assertions:
            context = CheckContext(state, turn, assertion.on, assertion.over)
            state.final_results.append(await evaluate_assertion(assertion, context))
    return outcome_of_checks(state)


async def _run_conversation_in_session(run_context: RunContext, state: TrialState, meter: Meter) -> Outcome | None:
    case, workspace, under_test = state.case, state.workspace, run_context.agents[state.key.agent]
    context = SessionContext(
        key=state.key,
        history=case.history,
        fixtures=case.fixtures,
        workspace=workspace,
        empty_workspaces=run_context.workspaces.empty_workspaces if run_context.workspaces else None,
        options=under_test.options,
        meter=meter,
        http=run_context.http,
        progress=state.progress,
        connectors=run_context.connectors,
    )
    state.progress.reset()  # a hook may have called the agent
    try:
        async with under_test.agent.open(context) as session:
            options = merge_options(
                build_session_options(state.session_id),
                under_test.options,
                _merge_case_options(case),
                run_context.options,
            )
            if workspace is not None:
                options["workspace"] = workspace.path
            send = create_session_sender(session, options, run_context.options, case.limits, state.progress)
            if workspace is not None:
                send = wrap_with_file_tracking(send, state, workspace)
            return await run_conversation(state, case.user, send, _create_turn_listener(run_context, state.key))
    finally:  # of opening and closing the session; those of a turn are kept when it ends
        state.tracebacks += state.progress.tracebacks
        state.warnings += state.progress.warnings


def _merge_case_options(case: Case) -> Mapping[str, Any]:
    return merge_options({"metadata": case.metadata}, case.options) if case.metadata else case.options


def _ignore_turn(turn: Turn) -> None:
    del turn


def _create_turn_listener(run_context: RunContext, key: Key) -> TurnListener:
    bus, redactor = run_context.bus, run_context.redactor
    if not bus.live:
        return _ignore_turn
    started: set[int] = set()

    def emit_turn(turn: Turn) -> None:
        if turn.number not in started:
            started.add(turn.number)
            user_message = turn.user_message
            text = redactor.redact_text(user_message.message.text)
            bus.emit(TurnStarted(key, turn.number, text, user_message.source))
        else:
            bus.emit(TurnEnded(key, redactor.redact(build_turn_record(turn))))

    return emit_turn

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

from viva.engine.bus import EventBus
from viva.engine.conversation import run_conversation, evaluate_assertion
from viva.engine.outcome import Outcome, outcome_of_fault, outcome_of_checks, outcome_of_missing_input, keep_proven_failure
from viva.engine.records import trial_record, turn_record
from viva.engine.sending import AgentCaller, NamedAgent, send_in_session, merge_options, send_and_track_files
from viva.errors import CallCutOff, HelperFailed, TrialFault, Undetermined, Unreachable
from viva.model.case import Case, Key, Limits
from viva.model.connector import Connector
from viva.model.duration import format_duration
from viva.model.event import TrialStarted, TurnEnded, TurnStarted
from viva.model.message import ModelCall
from viva.model.progress import CallProgress, LoopLag
from viva.model.record import TrialRecord, TurnRecord
from viva.model.talk import CheckContext, TrialState, Turn
from viva.model.template import fill_message, is_template
from viva.protocols import Agent, Helpers, Hooks, Meter, PlannedTrial, SessionContext, Transport, WorkspaceFactory
from viva.threads import is_being_cancelled

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

    def caller(self, key: Key, meter: Meter, session_id: str, talk: TrialState | None = None) -> AgentCaller:
        """How code of the user's own calls agents by name, from a trial or from outside of any."""
        case = talk.case if talk else None
        return AgentCaller(
            find=self._listed,
            key=key,
            http=self.http,
            connectors=self.connectors,
            meter=meter,
            progress=talk.progress if talk else CallProgress(),
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
    stage: RunContext, planned: PlannedTrial, attempt: int = 1, keep: Collection[str] = ("failed", "error")
) -> TrialRecord:
    """Runs one case once. A workspace in which it came to one of the statuses to `keep` is left to be looked at."""
    case = planned.case
    key = Key(case.suite, case.id, planned.trial, attempt)
    session_id = f"viva-{stage.run}-{planned.index}.{attempt}"
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    limit = asyncio.timeout(case.limits.timeout_s)
    asking = stage.confirmation_tools
    progress = CallProgress(agent=stage.agent_name, lag=stage.lag)
    talk = TrialState(
        case, key, stage.helpers, Deadline(limit), session_id=session_id, confirmation_tools=asking, progress=progress
    )
    talk.uses_cassette = stage.uses_cassette
    if case.skip_reason is not None:
        ending = Outcome("skipped", None, case.skip_reason)
    else:
        if stage.bus.live:
            stage.bus.emit(
                TrialStarted(key, planned.index, case.name or case.id, len(case.user.planned_messages), case.user.simulator)
            )
        ending = await _placed(stage, talk, limit, session_id, keep)
    not_run = _lines_not_said(talk) if ending.status in ("failed", "error") else []
    record = trial_record(
        talk,
        ending,
        agent=stage.agent_name,
        session_id=session_id,
        started_at=started_at,
        not_run=not_run,
        trials=planned.total,
    )
    if (took_ms := stage.recorded_ms(key)) is not None:
        record.duration_ms = took_ms
    if (why_live := stage.live_warning(key)) is not None:
        record.warnings = [*(record.warnings or ()), why_live]
    record = stage.redact(record)
    if stage.hooks is not None and talk.before_result is not UNSET:
        trouble = await stage.hooks.after(talk, record)
        if trouble is not None:
            record.warnings = [*(record.warnings or ()), trouble]
            record.tracebacks = tuple(talk.tracebacks)
            record = stage.redact(record)
    return record


async def _placed(stage: RunContext, talk: TrialState, limit: asyncio.Timeout, session_id: str, keep: Collection[str]) -> Outcome:
    """The conversation, in a workspace if the case has one."""
    spec = talk.case.workspace
    if spec is None or stage.workspaces is None:
        return keep_proven_failure(talk, await _held(stage, talk, limit, session_id))
    try:
        async with stage.workspaces(spec, talk.key) as workspace:
            talk.workspace = workspace
            ending = keep_proven_failure(talk, await _held(stage, talk, limit, session_id))
            talk.warnings += await workspace.warnings()
            if ending.status in keep and talk.turns:  # without a turn there is nothing to see
                workspace.keep()
            if workspace.is_kept:
                talk.kept_workspace = workspace.path
            return ending
    except TrialFault as fault:
        return outcome_of_fault(fault)


async def _held(stage: RunContext, talk: TrialState, limit: asyncio.Timeout, session_id: str) -> Outcome:
    """The conversation within its time, and who is to blame if it did not come to its end."""
    try:
        async with limit:
            with stage.lag.extend_limit(limit, talk.progress):
                if stage.hooks is not None:
                    await stage.hooks.before(talk)
                _fill_history(talk)
                return await _conversation(stage, talk, session_id)
    except (TimeoutError, CallCutOff) as expired:
        if not (limit.expired() or isinstance(expired, CallCutOff)):
            raise
        _keep_stderr(talk)
        said = f"timeout after {format_duration(talk.case.limits.timeout_s or 0)}"
        if trouble := _provider_trouble(talk):
            return _provider_hung(talk, f"{said}: {trouble}")
        if talk.waiting_for == "script":
            return outcome_of_fault(Undetermined(f"{said}, in code of the test's own"))
        if talk.waiting_for == "agent":
            if talk.turns and talk.turns[-1].reply is None:
                talk.turns[-1].error = said
            return Outcome.failed(said)
        role = "simulator" if talk.waiting_for == "person" else talk.waiting_for
        return outcome_of_fault(HelperFailed(role, said))
    except TrialFault as fault:
        _keep_stderr(talk)
        return outcome_of_fault(fault)
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        return outcome_of_fault(Undetermined("code of the test's own cancelled itself"))  # a hook, a plugin: the run goes on


def _fill_history(talk: TrialState) -> None:
    """What was said before the first turn may hold variables that `before` set."""
    history = talk.case.history
    if history and is_template([message.text for message in history]):
        history = tuple(fill_message(message, talk.variables) for message in history)
        talk.case = structs.replace(talk.case, history=history)


def _keep_stderr(talk: TrialState) -> None:
    if talk.waiting_for == "agent" and talk.progress.stderr_tail:
        talk.warnings.append(f"stderr: {talk.progress.stderr_tail}")


def _provider_trouble(talk: TrialState) -> str | None:
    """The provider failure that the call we waited for was being retried for."""
    return talk.progress.provider_trouble if talk.waiting_for in _NO_HELPERS else talk.helper_trouble


def _provider_hung(talk: TrialState, said: str) -> Outcome:
    if talk.waiting_for in _NO_HELPERS:
        return outcome_of_fault(Unreachable(said))
    return outcome_of_fault(HelperFailed(talk.waiting_for, said))


async def _conversation(stage: RunContext, talk: TrialState, session_id: str) -> Outcome:
    case = talk.case

    def meter(call: ModelCall) -> None:
        talk.calls.append(call)
        if stage.meter is not None:
            stage.meter(call)

    if case.one_session:
        context = SessionContext(
            key=talk.key,
            history=case.history,
            fixtures=case.fixtures,
            workspace=talk.workspace,
            empty_workspaces=stage.empty_workspaces,
            options=stage.agent_options,
            meter=meter,
            http=stage.http,
            progress=talk.progress,
            connectors=stage.connectors,
        )
        async with stage.agent.open(context) as session:
            base = merge_options(_ours(session_id), stage.agent_options, _asked(case), stage.options)
            if talk.workspace is not None:
                base["workspace"] = talk.workspace.path
            send = send_in_session(session, base, stage.options, case.limits, talk.progress)
            if talk.workspace is not None:
                send = send_and_track_files(send, talk, talk.workspace)
            ending = await run_conversation(talk, case.user, send, _watcher(stage, talk.key))
    else:
        calls = stage.caller(talk.key, meter, session_id, talk)
        # Nobody watches: such a user judges a turn after its end, so only the whole can be shown.
        ending = await run_conversation(talk, case.user, calls.send, lambda _turn: None)
    if ending is not None:
        return ending
    if (ending := outcome_of_missing_input(talk)) is not None:
        return ending
    await _judge_finals(talk)
    return outcome_of_checks(talk)


def _ours(session_id: str) -> dict[str, Any]:
    return {"session_id": session_id, "referer": "agent-test"}


def _asked(case: Case) -> Mapping[str, Any]:
    return merge_options({"metadata": case.metadata}, case.options) if case.metadata else case.options


def _watcher(stage: RunContext, key: Key) -> Callable[[Turn], None]:
    if not stage.bus.live:
        return lambda _turn: None
    begun: set[int] = set()

    def watch(turn: Turn) -> None:
        if turn.number not in begun:
            begun.add(turn.number)
            line = turn.user_message
            stage.bus.emit(TurnStarted(key, turn.number, stage.redact_text(line.message.text), line.source))
        else:
            stage.bus.emit(TurnEnded(key, stage.redact_turn(turn_record(turn))))

    return watch


async def _judge_finals(talk: TrialState) -> None:
    """`final_assertions`: once, after a conversation that ended without failure."""
    if talk.last_turn is None:
        return
    for claim in talk.case.final_assertions:
        talk.final_results.append(await evaluate_assertion(claim, CheckContext(talk, talk.last_turn, claim.on, claim.over)))


def _lines_not_said(talk: TrialState) -> list[str]:
    """The planned lines that were still to come, for the report."""
    return [line.message.text for line in talk.case.user.planned_messages[len(talk.turns) :]]

"""Calls helpers: the agents that play the user (simulator), judge, generate cases or write reports.

During a call the state of the trial names the helper, so that a timeout is charged to it. A reply that cannot be used is
requested once more, with the reason. If the second reply cannot be used either, the helper has failed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from msgspec import UNSET, Struct, structs

from viva.engine.sending import merge_options
from viva.errors import CallCutOff, HelperFailed, NotRecorded, Role, TrialEnd, TrialFault
from viva.model import codec
from viva.model.case import Key
from viva.model.connector import Connector
from viva.model.message import Message, ModelCall, Reply, Usage
from viva.model.progress import CallProgress, LoopLag
from viva.model.turn import HelperCall, SentMessage
from viva.protocols import Agent, AgentSession, Meter, NamedAgent, SessionContext, Transport, WorkspaceFactory
from viva.state.trial_state import TrialState, WaitingFor, get_reply_text, to_text
from viva.text.duration import format_duration

T = TypeVar("T")
_MAX_RECORDED_CHARACTERS = 32_000
_TEST_MODE_OF_ROLE: dict[Role, str] = {"judge": "validator"}
_FAULTS_OF_OTHERS = (HelperFailed, NotRecorded, TrialEnd)
"""Exceptions that pass through unchanged, because the helper that raises them is not to blame."""
_CUT_OFF_ERROR = "cut off"


class HelperPool:
    """Opens helpers by name. `find` knows every agent of the config and the built-in ones."""

    def __init__(
        self,
        find_agent: Callable[[str, Role], NamedAgent],
        http: Transport,
        connectors: Mapping[str, Connector],
        meter: Meter | None = None,
        empty_workspaces: WorkspaceFactory | None = None,
    ) -> None:
        self._find_agent = find_agent
        self._http = http
        self._connectors = connectors
        self._meter = meter
        self._empty_workspaces = empty_workspaces

    @asynccontextmanager
    async def open(
        self, role: Role, agent: str, state: TrialState | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator["_OpenHelper"]:
        log = _HelperCallLog(agent, state)

        def meter(call: ModelCall) -> None:
            log.calls.append(call)
            if state is not None:
                state.calls.append(call)
            if self._meter is not None:
                self._meter(call)

        named = self._find_agent(agent, role)
        case_options = {"metadata": state.case.metadata} if state is not None and state.case.metadata else {}
        base_options = {"skip": {"history": True}, "referer": "agent-test"}
        merged = merge_options(base_options, named.options, case_options, options or {})
        metadata = {**merged.pop("metadata", {}), "test_mode": _TEST_MODE_OF_ROLE.get(role, role)}
        if state is not None:
            metadata["test_id"] = state.case.id
        context = SessionContext(
            key=state.key if state else Key("", ""),
            role=role,
            options=merged,
            meter=meter,
            http=self._http,
            progress=CallProgress(agent, loop_lag=state.progress.loop_lag if state else LoopLag()),
            connectors=self._connectors,
            empty_workspaces=self._empty_workspaces,
            conversation=state.list_messages if state else None,
            prior_count=len(state.case.history) if state else 0,
        )
        is_open = False
        try:
            async with AsyncExitStack() as stack:
                with _mark_trial_as_waiting(state, role, context.progress):
                    session = await stack.enter_async_context(named.agent.open(context))
                is_open = True
                yield _OpenHelper(named.agent, session, context, log, metadata)
                is_open = False
                context.progress.reset()
                with _mark_trial_as_waiting(state, role, context.progress):
                    await stack.aclose()
        except TrialFault as fault:
            if is_open or isinstance(fault, _FAULTS_OF_OTHERS):
                raise
            raise HelperFailed(role, fault.message, deterministic=fault.deterministic) from fault


@asynccontextmanager
async def limit_helper_time(role: Role, timeout_s: float) -> AsyncGenerator[None]:
    """Limits the time of a helper call outside of a trial. A replay of a call that was cut off fails in the same way."""
    limit = asyncio.timeout(timeout_s)
    message = f"timeout after {format_duration(timeout_s)}"
    try:
        async with limit:
            yield
    except CallCutOff:
        raise HelperFailed(role, message) from None
    except TimeoutError:
        if not limit.expired():
            raise
        raise HelperFailed(role, message) from None


def _build_trial_metadata(state: TrialState | None) -> dict[str, Any]:
    """The metadata about the trial that a helper gets. `turn_number` is the number of the next turn."""
    if state is None:
        return {}
    number, last = len(state.turns) + 1, state.last_turn
    calls = [call for turn in state.turns if turn.reply for call in turn.reply.tool_calls]
    return {
        "turn_number": number,
        "turn_count": number,
        "max_turns": state.case.limits.total_turns,
        "last_response": get_reply_text(last.reply) if last and last.reply else "",
        "tool_results": {call.name: call.result for call in calls if call.result is not UNSET},
        "session_id": state.session_id,
    }


class _HelperCallLog:
    """Records the calls of one helper in the state of the trial. For a judge it also records the request and the answer."""

    def __init__(self, agent: str, state: TrialState | None) -> None:
        self.state = state
        self.calls: list[ModelCall] = []
        self._agent = agent

    @contextmanager
    def record_call(self, role: Role) -> Generator["_CallTexts"]:
        notes, state = _CallTexts(), self.state
        if state is None:
            yield notes
            return
        began_ms, first, place = state.ms_since_start(), len(self.calls), len(state.helper_calls)
        call = HelperCall(role, self._agent, len(state.turns), round(began_ms, 3), 0.0)
        state.helper_calls.append(call)  # in the order of the questions: several judges may answer concurrently
        try:
            yield notes
        finally:
            usage = Usage.of(self.calls[first:])
            if notes.elapsed_ms is not None:
                state.add_replayed_time(began_ms, notes.elapsed_ms)
            state.helper_calls[place] = structs.replace(
                call,
                duration_ms=round(state.ms_since_start() - began_ms, 3)
                if notes.elapsed_ms is None
                else notes.elapsed_ms,
                **(notes.shorten_texts(state) if role == "judge" else {}),
                error=notes.error,
                tokens=usage.total_tokens,
                cost_usd=usage.cost_usd if usage.calls else None,
            )


class _CallTexts(Struct):
    """The request to a helper, and its answer."""

    criteria: str = ""
    sent: tuple[SentMessage, ...] = ()
    metadata: Mapping[str, Any] | None = None
    answer: str = ""
    error: str | None = None
    elapsed_ms: float | None = None
    """The duration, if the answer was recorded or replayed."""

    def shorten_texts(self, state: TrialState) -> dict[str, Any]:
        """The texts, cut to the number of characters that the record of the trial can still hold."""
        sent = tuple(SentMessage(message.role, _shorten_to_record_room(message.text, state)) for message in self.sent)
        metadata = "" if self.metadata is None else _shorten_to_record_room(codec.compact_json(self.metadata), state)
        return {
            "criteria": self.criteria,
            "sent": sent,
            "metadata": metadata,
            "answer": _shorten_to_record_room(self.answer, state),
        }


def _shorten_to_record_room(text: str, state: TrialState) -> str:
    room = min(_MAX_RECORDED_CHARACTERS, state.recordable_characters)
    state.recordable_characters -= min(len(text), room)
    return text if len(text) <= room else f"{text[:room]}… ({len(text) - room:,} more characters are not recorded)"


class _OpenHelper:
    """A helper in an open session."""

    def __init__(
        self,
        agent: Agent,
        session: AgentSession,
        context: SessionContext,
        log: _HelperCallLog,
        metadata: Mapping[str, Any],
    ) -> None:
        self.may_repeat: bool = getattr(agent, "may_repeat", False)
        self.must_quote: bool = getattr(agent, "must_quote", False)
        self.metadata = metadata
        self._session = session
        self._log = log
        self._state = log.state
        self._role: Role = context.role
        self._progress = context.progress
        self._options = context.options

    async def ask(self, text: str, parse: Callable[[Reply], T], metadata: Mapping[str, Any] | None = None) -> T:
        options = {
            **self._options,
            "metadata": {**_build_trial_metadata(self._state), **self.metadata, **(metadata or {})},
        }
        try:
            return await self._send(text, options, parse)
        except ValueError as unusable:
            problem = str(unusable)
        options = {**options, "metadata": {**options["metadata"], "problem": problem}}
        text = f"{text}\n\nYour last answer cannot be used: {problem}. Answer again, in the form that was asked for."
        try:
            return await self._send(text, options, parse)
        except ValueError as unusable:
            raise HelperFailed(self._role, str(unusable)) from unusable

    async def _send(self, text: str, options: Mapping[str, Any], parse: Callable[[Reply], T]) -> T:
        """The parsed answer; ValueError if it cannot be used."""
        self._progress.reset()
        with self._log.record_call(self._role) as notes:
            notes.criteria = str(options["metadata"].get("criteria") or "")
            try:
                with _mark_trial_as_waiting(self._state, self._role, self._progress):
                    reply = await self._session.send(Message("user", text), options)
                notes.elapsed_ms = reply.elapsed_ms
            except asyncio.CancelledError:
                notes.error = _CUT_OFF_ERROR
                raise
            except TrialFault as fault:
                notes.error = _CUT_OFF_ERROR if isinstance(fault, CallCutOff) else fault.message
                if isinstance(fault, _FAULTS_OF_OTHERS):
                    raise
                raise HelperFailed(self._role, fault.message, deterministic=fault.deterministic) from fault
            finally:
                notes.elapsed_ms = notes.elapsed_ms or self._progress.elapsed_ms
                if sent := self._progress.sent_to_model:  # by a model
                    notes.sent = tuple(SentMessage(message.role, message.text) for message in sent)
                else:
                    notes.sent, notes.metadata = (SentMessage("user", text),), options["metadata"]
            notes.answer = reply.content or ("" if reply.data is None else to_text(reply.data))
            try:
                return parse(reply)
            except ValueError as unusable:
                notes.error = str(unusable)
                raise


@contextmanager
def _mark_trial_as_waiting(state: TrialState | None, role: Role, progress: CallProgress) -> Generator[None]:
    """Sets the `waiting_for` of the trial to the role of a helper, until the last concurrent helper has answered."""
    if state is None:
        yield
        return
    before: WaitingFor = "agent" if state.waiting_for == role else state.waiting_for
    state.waiting_for = role
    if not state.active_helpers:
        state.helper_provider_failure = None
    state.active_helpers += 1
    try:
        yield
    except BaseException:
        state.active_helpers -= 1  # `waiting_for` stays: a timeout is charged to it
        state.helper_provider_failure = progress.provider_trouble or state.helper_provider_failure
        _copy_progress_to_trial(state, role, progress)
        raise
    _copy_progress_to_trial(state, role, progress)
    state.active_helpers -= 1
    if not state.active_helpers:
        state.waiting_for = before


def _copy_progress_to_trial(state: TrialState, role: Role, progress: CallProgress) -> None:
    state.tracebacks += (structs.replace(traceback, where=role) for traceback in progress.tracebacks)
    state.warnings += (f"{role}: {warning}" for warning in progress.warnings)

"""Agents with a cassette: one records the replies of the real agent, one replays them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, cast

from msgspec import structs

from viva.errors import AgentFailed, CallCutOff, NotRecorded, Skipped, TrialFault, Undetermined, Unreachable
from viva.model import codec
from viva.model.case import Feature
from viva.model.connector import find_answer_settings
from viva.model.message import Message, ModelCall, Reply
from viva.model.progress import CallProgress
from viva.protocols import Agent, AgentSession, SessionContext, Workspace
from viva.record.cassette import (
    CUT_OFF_FAULT,
    CassetteLineCollector,
    ConversationKey,
    RecordedReply,
    RecordedRequest,
    RecordedSession,
    TurnFiles,
)
from viva.record.player import CassettePlayer

_OPTIONS_OF_ONE_RUN = ("session_id", "workspace")
"""Options that differ from run to run and are not recorded."""
_FAULT_CLASSES: dict[str, type[TrialFault]] = {"agent": AgentFailed, "infra": Unreachable, "undetermined": Undetermined}


class _CassetteSession:
    """Builds the recorded form of each request.

    For a judge it includes the conversation. A simulator gets the conversation message by message anyway.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._request_count = 0
        self._last_options: Mapping[str, Any] | None = None
        self._raw_options = codec.Raw()

    def _build_request(self, message: Message, options: Mapping[str, Any]) -> tuple[RecordedRequest, int]:
        """Return the request without what differs from run to run, and its turn.

        Values that the agent's code could change are encoded here, before they are sent.
        """
        self._request_count = turn = self._request_count + 1
        context = self._context
        if options is not self._last_options:  # mostly the same object in all turns
            self._last_options, self._raw_options = options, codec.to_raw(_remove_run_options(options))
        request = RecordedRequest(message if message.data is None else codec.to_raw(message), self._raw_options)
        if isinstance(connector := options.get("connector"), str):
            request.connector = find_answer_settings(connector, context.connectors)
        if context.fixtures is not None and turn == 1:
            request.fixtures = codec.to_raw(context.fixtures)
        if context.role == "simulator":
            return request, options.get("metadata", {}).get("turn_number", turn)
        if context.role != "agent":
            conversation = context.conversation() if context.conversation is not None else []
            request.conversation = codec.to_raw(conversation)
            return request, sum(message.role == "user" for message in conversation[context.prior_count :])
        return request, turn


def _remove_run_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    lasting = {name: value for name, value in options.items() if name not in _OPTIONS_OF_ONE_RUN}
    if isinstance(metadata := lasting.get("metadata"), (dict, Mapping)):  # the check for a dict is much faster
        fields = cast("Mapping[str, Any]", metadata)
        lasting["metadata"] = {name: value for name, value in fields.items() if name not in _OPTIONS_OF_ONE_RUN}
    return lasting


class _WrappedAgent:
    """The base of the recording and the replaying agent."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent = agent
        self._name = name
        self.may_repeat = bool(getattr(agent, "may_repeat", False))
        self.must_quote = bool(getattr(agent, "must_quote", False))

    @property
    def provides(self) -> frozenset[Feature]:
        return self._agent.provides


class RecordingAgent(_WrappedAgent):
    """An agent whose replies are recorded."""

    def __init__(self, agent: Agent, name: str, definition: Any, recorder: CassetteLineCollector) -> None:
        super().__init__(agent, name)
        recorder.add_agent_definition(name, definition)
        self._recorder = recorder

    def open(self, context: SessionContext) -> AbstractAsyncContextManager[AgentSession]:
        return _RecordingSession(self._agent, self._name, context, self._recorder)


class _RecordingSession(_CassetteSession, AbstractAsyncContextManager[AgentSession]):
    """Records requests and replies. It runs around every call, so it does as little as possible."""

    def __init__(self, agent: Agent, name: str, context: SessionContext, recorder: CassetteLineCollector) -> None:
        super().__init__(context)
        self._agent, self._recorder = agent, recorder
        self._number = next(recorder.session_numbers)
        self._new_session: RecordedSession | None = RecordedSession(name, context.role, context.key, context.history)
        self._calls: list[ModelCall] = []

    async def __aenter__(self) -> AgentSession:
        calls, next_meter = self._calls, self._context.meter

        def meter(call: ModelCall) -> None:  # no reference to self: a cycle would cost garbage collection
            calls.append(call)
            next_meter(call)

        try:
            self._manager = self._agent.open(structs.replace(self._context, meter=meter))
            self._session = await self._manager.__aenter__()
        except TrialFault as fault:
            await self._record_fault(RecordedReply(self._number, 0, 0.0, self._new_session), fault, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, trace)

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        request, turn = self._build_request(message, options)
        workspace = self._context.workspace
        before = await workspace.take_snapshot() if workspace is not None else None
        start = time.perf_counter()
        try:
            reply = await self._session.send(message, options)
        except (TrialFault, asyncio.CancelledError) as error:
            ms = round((time.perf_counter() - start) * 1e3, 3)
            self._context.progress.elapsed_ms = ms  # a replay shows the same number
            await self._record_fault(RecordedReply(self._number, turn, ms, self._new_session, request), error, before)
            raise
        ms = round((time.perf_counter() - start) * 1e3, 3)
        calls = tuple(self._calls)
        self._calls.clear()
        recorded = RecordedReply(
            self._number, turn, ms, self._new_session, request, reply, None if calls == reply.calls else calls
        )
        self._new_session = None
        if reply.data is not None or reply.tool_calls:  # the agent's code may still change these
            recorded.reply = cast("Reply", codec.to_raw(reply))
        if workspace is not None:
            recorded.turn_files = await self._collect_turn_files(workspace, before)
        _record_progress(recorded, self._context)
        self._recorder.add_line(recorded)
        if workspace is not None:
            self._recorder.flush()  # files may be large
        return structs.replace(reply, elapsed_ms=ms)  # the report of this run and of a replay show the same number

    async def _record_fault(
        self, recorded: RecordedReply, error: TrialFault | asyncio.CancelledError, before: Any
    ) -> None:
        progress = self._context.progress
        if isinstance(error, TrialFault):
            recorded.fault, recorded.fault_message = error.fault, error.message
        else:
            recorded.fault, recorded.fault_message = CUT_OFF_FAULT, progress.provider_trouble or ""
        if progress.partial is not None:
            recorded.partial = cast("Reply", codec.to_raw(progress.partial))
        recorded.stderr = progress.stderr_tail
        _record_progress(recorded, self._context)
        recorded.calls = tuple(self._calls)
        self._calls.clear()
        self._new_session = None
        if recorded.sent is not None and self._context.workspace is not None:
            recorded.turn_files = await self._collect_turn_files(self._context.workspace, before)
        if recorded.fault == CUT_OFF_FAULT:
            self._recorder.add_cut_off_line(recorded, self._context.key)
        else:
            self._recorder.add_line(recorded)

    async def _collect_turn_files(self, workspace: Workspace, before: Any) -> TurnFiles:
        try:
            images = self._recorder.hide_secrets_in_files(await workspace.files_since(before))
            return TurnFiles(images, await workspace.changes_since(before))
        except TrialFault as too_large:
            return TurnFiles(omitted_reason=too_large.message)


class ReplayingAgent(_WrappedAgent):
    """An agent that replies from a cassette. The real agent is called only if the missing policy is `live`."""

    def __init__(self, agent: Agent, name: str, definition: Any, player: CassettePlayer) -> None:
        super().__init__(agent, name)
        player.set_current_definition(name, definition)
        self._definition = definition
        self._player = player

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator[AgentSession]:
        conversation: ConversationKey = (context.role, self._name, self._player.convert_to_recorded_key(context.key))
        chain = self._player.start_digest_chain(conversation, self._definition, context.history)
        if (recorded := self._player.pop_reply(chain)) is not None:
            for call in recorded.model_calls:
                context.meter(call)
            _restore_progress(recorded, context.progress)
            raise _restore_fault(recorded, context.progress)
        async with AsyncExitStack() as stack:
            yield _ReplayingSession(self._agent, conversation, context, self._player, chain, stack)


class _ReplayingSession(_CassetteSession):
    def __init__(
        self,
        agent: Agent,
        conversation: ConversationKey,
        context: SessionContext,
        player: CassettePlayer,
        chain: str,
        stack: AsyncExitStack,
    ) -> None:
        super().__init__(context)
        self._agent, self._conversation = agent, conversation
        self._player, self._chain, self._stack = player, chain, stack
        self._messages: list[tuple[Message, Mapping[str, Any]]] = []
        self._live_session: AgentSession | None = None

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        if self._live_session is not None:
            return await self._live_session.send(message, options)
        request, turn = self._build_request(message, options)
        self._chain = self._player.extend_digest_chain(self._chain, request)
        recorded = self._player.pop_reply(self._chain)
        if recorded is None:
            return await self._reply_without_recording(message, options, request, turn)
        self._messages.append((message, options))
        for call in recorded.model_calls:
            self._context.meter(call)
        _restore_progress(recorded, self._context.progress)
        if (files := recorded.turn_files) is not None and self._context.workspace is not None:
            if files.omitted_reason:
                raise NotRecorded(f"not in the cassette: the files of turn {recorded.turn} ({files.omitted_reason})")
            await self._context.workspace.restore_files(files.files, files.changes)
        if recorded.reply is None:
            raise _restore_fault(recorded, self._context.progress)
        return structs.replace(recorded.reply, elapsed_ms=recorded.ms)

    async def _reply_without_recording(
        self, message: Message, options: Mapping[str, Any], request: RecordedRequest, turn: int
    ) -> Reply:
        """Raise an error with the first difference, skip the case, or play the conversation with the real agent."""
        reason = self._player.explain_miss(self._conversation, turn, request)
        if self._player.missing_policy == "live":
            self._live_session = await self._stack.enter_async_context(self._agent.open(self._context))
            for earlier_message, earlier_options in self._messages:
                await self._live_session.send(earlier_message, earlier_options)
            return await self._live_session.send(message, options)
        error = Skipped if self._player.missing_policy == "skip" else NotRecorded
        raise error(f"not in the cassette: {reason}")


def _record_progress(recorded: RecordedReply, context: SessionContext) -> None:
    progress = context.progress
    if progress.tracebacks or progress.warnings:
        recorded.tracebacks, recorded.warnings = tuple(progress.tracebacks), tuple(progress.warnings)
    if context.role == "judge":  # reports show it
        recorded.prompt = progress.sent_to_model


def _restore_progress(recorded: RecordedReply, progress: CallProgress) -> None:
    progress.tracebacks += recorded.tracebacks
    progress.warnings += recorded.warnings
    progress.sent_to_model = recorded.prompt


def _restore_fault(recorded: RecordedReply, progress: CallProgress) -> TrialFault:
    """Return the recorded fault, and restore the state of the call at its failure."""
    progress.partial, progress.stderr_tail = recorded.partial, recorded.stderr
    progress.elapsed_ms = recorded.ms or None
    if recorded.fault == CUT_OFF_FAULT:
        progress.provider_trouble = recorded.fault_message or None
        return CallCutOff(recorded.ms)
    return _FAULT_CLASSES.get(recorded.fault or "", Undetermined)(recorded.fault_message)

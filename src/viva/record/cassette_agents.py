"""A cassette around an agent: one that keeps what the agent says, and one that says it again."""

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
from viva.model.connector import connector_settings
from viva.model.message import Message, ModelCall, Reply
from viva.model.progress import CallProgress
from viva.protocols import Agent, AgentSession, SessionContext, Workspace
from viva.record.cassette import (
    CUT_OFF,
    ConversationKey,
    RecordedReply,
    RecordedRequest,
    RecordedSession,
    Recorder,
    TurnFiles,
)
from viva.record.player import CassettePlayer

_PASSING = ("session_id", "workspace")
_FAULTS: dict[str, type[TrialFault]] = {"agent": AgentFailed, "infra": Unreachable, "undetermined": Undetermined}


class _Session:
    """One that is recorded or replayed knows what goes to the agent, call by call.

    A judge also knows the conversation, so that goes along. A simulator has heard all of it before, turn by turn.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._asked = 0
        self._options: Mapping[str, Any] | None = None
        self._kept = codec.Raw()

    def _next(self, message: Message, options: Mapping[str, Any]) -> tuple[RecordedRequest, int]:
        """Less what differs from run to run by nature; and the turn of the conversation that it belongs to.

        What code could change once it has it is encoded here, before it is sent.
        """
        self._asked = turn = self._asked + 1
        context = self._context
        if options is not self._options:  # mostly they are the same for all turns
            self._options, self._kept = options, codec.to_raw(_lasting(options))
        sent = RecordedRequest(message if message.data is None else codec.to_raw(message), self._kept)
        if isinstance(asked_for := options.get("connector"), str):
            sent.connector = connector_settings(asked_for, context.connectors)
        if context.fixtures is not None and turn == 1:
            sent.fixtures = codec.to_raw(context.fixtures)
        if context.role == "simulator":
            return sent, options.get("metadata", {}).get("turn_number", turn)
        if context.role != "agent":
            said = context.conversation() if context.conversation is not None else []
            sent.conversation = codec.to_raw(said)
            return sent, sum(message.role == "user" for message in said[context.prior_count :])
        return sent, turn


def _lasting(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the ids and folders of one run."""
    kept = dict(options)
    if isinstance(metadata := kept.get("metadata"), (dict, Mapping)):  # a dict is told from others much faster
        kept["metadata"] = {**metadata}
        for name in _PASSING:
            kept["metadata"].pop(name, None)
    for name in _PASSING:
        kept.pop(name, None)
    return kept


class _Wrapped:
    """What a recorded and a replayed agent have in common."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent = agent
        self._name = name
        self.may_repeat = bool(getattr(agent, "may_repeat", False))
        self.must_quote = bool(getattr(agent, "must_quote", False))

    @property
    def provides(self) -> frozenset[Feature]:
        return self._agent.provides


class RecordingAgent(_Wrapped):
    """An agent whose replies are kept."""

    def __init__(self, agent: Agent, name: str, definition: Any, recorder: Recorder) -> None:
        super().__init__(agent, name)
        recorder.define_agent(name, definition)
        self._recorder = recorder

    def open(self, context: SessionContext) -> AbstractAsyncContextManager[AgentSession]:
        return _RecordedSession(self._agent, self._name, context, self._recorder)


class _RecordedSession(_Session, AbstractAsyncContextManager[AgentSession]):
    """A session that keeps what is sent and what comes of it. It does as little as it can: it is in the way of every call."""

    def __init__(self, agent: Agent, name: str, context: SessionContext, recorder: Recorder) -> None:
        super().__init__(context)
        self._agent, self._recorder = agent, recorder
        self._number = next(recorder.session_numbers)
        self._opened: RecordedSession | None = RecordedSession(name, context.role, context.key, context.history)
        self._calls: list[ModelCall] = []

    async def __aenter__(self) -> AgentSession:
        calls, metered = self._calls, self._context.meter

        def meter(call: ModelCall) -> None:  # knows nothing of the session: a cycle would be work for the collector
            calls.append(call)
            metered(call)

        try:
            self._opening = self._agent.open(structs.replace(self._context, meter=meter))
            self._session = await self._opening.__aenter__()
        except TrialFault as fault:
            await self._keep_fault(RecordedReply(self._number, 0, 0.0, self._opened), fault, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opening.__aexit__(kind, raised, trace)

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        sent, turn = self._next(message, options)
        workspace = self._context.workspace
        before = await workspace.take_snapshot() if workspace is not None else None
        began = time.perf_counter()
        try:
            reply = await self._session.send(message, options)
        except (TrialFault, asyncio.CancelledError) as ended:
            ms = round((time.perf_counter() - began) * 1e3, 3)
            self._context.progress.elapsed_ms = ms  # as a replay will say it
            await self._keep_fault(RecordedReply(self._number, turn, ms, self._opened, sent), ended, before)
            raise
        ms = round((time.perf_counter() - began) * 1e3, 3)
        calls = tuple(self._calls)
        self._calls.clear()
        entry = RecordedReply(
            self._number, turn, ms, self._opened, sent, reply, None if calls == reply.calls else calls
        )
        self._opened = None
        if reply.data is not None or reply.tool_calls:  # the agent's code may still change what it gave
            entry.reply = cast("Reply", codec.to_raw(reply))
        if workspace is not None:
            entry.turn_files = await self._made(workspace, before)
        _keep_remarks(entry, self._context.progress)
        self._recorder.add_line(entry)
        if workspace is not None:
            self._recorder.flush()  # files may be large
        return structs.replace(reply, elapsed_ms=ms)  # the report of this run and that of a replay say the same

    async def _keep_fault(self, entry: RecordedReply, ended: TrialFault | asyncio.CancelledError, before: Any) -> None:
        progress = self._context.progress
        if isinstance(ended, TrialFault):
            entry.fault, entry.fault_message = ended.fault, ended.message
        else:
            entry.fault, entry.fault_message = CUT_OFF, progress.provider_trouble or ""
        if progress.partial is not None:
            entry.partial = cast("Reply", codec.to_raw(progress.partial))
        entry.stderr = progress.stderr_tail
        _keep_remarks(entry, progress)
        entry.calls = tuple(self._calls)
        self._calls.clear()
        self._opened = None
        if entry.sent is not None and self._context.workspace is not None:
            entry.turn_files = await self._made(self._context.workspace, before)
        self._recorder.add_line(entry)

    async def _made(self, workspace: Workspace, before: Any) -> TurnFiles:
        """What became of the files."""
        try:
            images = self._recorder.hide_secrets(await workspace.files_since(before))
            return TurnFiles(images, await workspace.changes_since(before))
        except TrialFault as too_many:
            return TurnFiles(omitted_reason=too_many.message)


class ReplayingAgent(_Wrapped):
    """An agent that says again what a cassette holds. The real one is called only where that is allowed."""

    def __init__(self, agent: Agent, name: str, definition: Any, tape: CassettePlayer) -> None:
        super().__init__(agent, name)
        tape.define_agent(name, definition)
        self._definition = definition
        self._tape = tape

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator[AgentSession]:
        tape = self._tape
        place: ConversationKey = (context.role, self._name, context.key)
        chain = tape.start_chain(place, self._definition, context.history)
        if (entry := tape.take_reply(chain)) is not None:
            for call in entry.model_calls:
                context.meter(call)
            raise _fault(entry, context.progress)
        async with AsyncExitStack() as stack:
            yield _ReplayedSession(self._agent, place, context, tape, chain, stack)


class _ReplayedSession(_Session):
    def __init__(
        self,
        agent: Agent,
        place: ConversationKey,
        context: SessionContext,
        tape: CassettePlayer,
        chain: str,
        stack: AsyncExitStack,
    ) -> None:
        super().__init__(context)
        self._agent, self._place = agent, place
        self._tape, self._chain, self._stack = tape, chain, stack
        self._said: list[tuple[Message, Mapping[str, Any]]] = []
        self._live: AgentSession | None = None

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        if self._live is not None:
            return await self._live.send(message, options)
        sent, turn = self._next(message, options)
        self._chain = self._tape.extend_chain(self._chain, sent)
        entry = self._tape.take_reply(self._chain)
        if entry is None:
            return await self._miss(message, options, sent, turn)
        self._said.append((message, options))
        for call in entry.model_calls:
            self._context.meter(call)
        self._context.progress.tracebacks += entry.tracebacks
        self._context.progress.warnings += entry.warnings
        if (made := entry.turn_files) is not None and self._context.workspace is not None:
            if made.omitted_reason:
                raise NotRecorded(f"not in the cassette: the files of turn {entry.turn} ({made.omitted_reason})")
            await self._context.workspace.restore_files(made.files, made.changes)
        if entry.reply is None:
            raise _fault(entry, self._context.progress)
        return structs.replace(entry.reply, elapsed_ms=entry.ms)

    async def _miss(self, message: Message, options: Mapping[str, Any], sent: RecordedRequest, turn: int) -> Reply:
        """Nothing fits: an error with the first divergence, a skipped case, or the real agent from the start."""
        tape = self._tape
        where = tape.explain_miss(self._place, turn, sent)
        if tape.missing_policy == "live":
            self._live = await self._stack.enter_async_context(self._agent.open(self._context))
            for said, with_options in self._said:
                await self._live.send(said, with_options)
            return await self._live.send(message, options)
        if tape.missing_policy == "skip":
            raise Skipped(f"not in the cassette: {where}")
        raise NotRecorded(f"not in the cassette: {where}")


def _keep_remarks(entry: RecordedReply, progress: CallProgress) -> None:
    """What the report says of the call beside its reply."""
    if progress.tracebacks or progress.warnings:
        entry.tracebacks, entry.warnings = tuple(progress.tracebacks), tuple(progress.warnings)


def _fault(entry: RecordedReply, progress: CallProgress) -> TrialFault:
    """What came instead of a reply; what was known of the call is known again."""
    progress.partial, progress.stderr_tail = entry.partial, entry.stderr
    progress.elapsed_ms = entry.ms or None
    if entry.fault == CUT_OFF:
        progress.provider_trouble = entry.fault_message or None
        return CallCutOff(entry.ms)
    return _FAULTS.get(entry.fault or "", Undetermined)(entry.fault_message)

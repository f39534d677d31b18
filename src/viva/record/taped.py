"""A cassette around an agent: one that keeps what the agent says, and one that says it again."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec import structs

from viva.errors import AgentFailed, CutOff, Skipped, TrialFault, Undecidable, Unreachable
from viva.model import codec
from viva.model.case import Feature
from viva.model.message import Message, ModelCall, Reply
from viva.protocols import Agent, AgentSession, SessionContext
from viva.record.cassette import CUT_OFF, Entry, Place, Recorder, Tape

_PASSING = frozenset({"session_id", "workspace"})
_FAULTS: dict[str, type[TrialFault]] = {"agent": AgentFailed, "infra": Unreachable, "undetermined": Undecidable}


class _Sending:
    """What goes to an agent, one call after the other.

    A judge also knows the conversation, so that goes along. A simulator has heard all of it before, turn by turn.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._asked = 0
        self._options: Mapping[str, Any] | None = None
        self._kept = codec.Raw()

    def next(self, message: Message, options: Mapping[str, Any]) -> tuple[bytes, int]:
        """As JSON, less what differs from run to run by nature; and the turn of the conversation that it belongs to."""
        self._asked += 1
        context = self._context
        if options is not self._options:  # mostly they are the same for all turns
            self._options, self._kept = options, codec.Raw(codec.canonical(_lasting(options)))
        sent: dict[str, Any] = {"message": message, "options": self._kept}
        if context.fixtures is not None and self._asked == 1:
            sent["fixtures"] = context.fixtures
        if context.role == "agent":
            return codec.canonical(sent), self._asked
        if context.role == "simulator":
            return codec.canonical(sent), options.get("metadata", {}).get("turn_number", self._asked)
        said = sent["conversation"] = context.conversation() if context.conversation is not None else []
        return codec.canonical(sent), sum(message.role == "user" for message in said[context.prior :])


def _lasting(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in options.items() if name not in _PASSING}
    if isinstance(kept.get("metadata"), Mapping):
        kept["metadata"] = {name: value for name, value in kept["metadata"].items() if name not in _PASSING}
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

    def _opening(self, context: SessionContext, definition: str) -> tuple[Any, ...]:
        """What the chain of digests begins with."""
        return self._name, context.role, context.key, definition, context.history

    def _place(self, context: SessionContext) -> Place:
        return context.role, self._name, context.key


class Recorded(_Wrapped):
    """An agent whose replies are kept."""

    def __init__(self, agent: Agent, name: str, definition: Any, recorder: Recorder) -> None:
        super().__init__(agent, name)
        self._definition = recorder.define(name, definition)
        self._recorder = recorder

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator[AgentSession]:
        recorder, calls = self._recorder, list[ModelCall]()
        chain = recorder.digest(*self._opening(context, self._definition))

        def meter(call: ModelCall) -> None:
            calls.append(call)
            context.meter(call)

        opened = False
        try:
            async with self._agent.open(structs.replace(context, meter=meter)) as session:
                opened = True
                yield _RecordedSession(session, self._name, context, recorder, chain, calls)
        except TrialFault as fault:
            if not opened:
                entry = Entry(chain, self._name, context.role, context.key, 0, fault=fault.fault, said=fault.said)
                recorder.keep(entry)
            raise
        finally:
            recorder.flush()


class _RecordedSession:
    def __init__(
        self,
        session: AgentSession,
        name: str,
        context: SessionContext,
        recorder: Recorder,
        chain: str,
        calls: list[ModelCall],
    ) -> None:
        self._session, self._name, self._context = session, name, context
        self._recorder, self._chain, self._calls = recorder, chain, calls
        self._sending = _Sending(context)

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        recorder, context = self._recorder, self._context
        sent, turn = self._sending.next(message, options)
        self._chain = recorder.link(self._chain, sent)
        nth = 0 if context.role == "agent" else recorder.count(self._chain)
        entry = Entry(self._chain, self._name, context.role, context.key, turn, sent=codec.Raw(sent), nth=nth)
        self._calls.clear()
        before = await context.workspace.mark() if context.workspace is not None else None
        began = time.perf_counter()
        try:
            reply = await self._session.send(message, options)
        except TrialFault as fault:
            fault.elapsed_ms = await self._keep(entry, began, before, fault=fault.fault, said=fault.said)
            raise
        except asyncio.CancelledError as cancelled:
            notes: list[str] = getattr(cancelled, "__notes__", [])
            ms = await self._keep(entry, began, before, fault=CUT_OFF, said=notes[-1] if notes else "")
            cancelled.elapsed_ms = ms  # pyright: ignore[reportAttributeAccessIssue] -- as a replay will say it
            raise
        ms = await self._keep(entry, began, before, reply=reply)
        return structs.replace(reply, elapsed_ms=ms)  # the report of this run and that of a replay say the same

    async def _keep(self, entry: Entry, began: float, before: Any, **what: Any) -> float:
        ms = round((time.perf_counter() - began) * 1e3, 3)
        if (workspace := self._context.workspace) is not None:
            try:
                what["files"] = await workspace.images(before)
                what["changes"] = await workspace.changes(before)
            except TrialFault as too_many:
                what["files_missing"] = too_many.said
        self._recorder.keep(structs.replace(entry, calls=tuple(self._calls), ms=ms, **what))
        return ms


class Replayed(_Wrapped):
    """An agent that says again what a cassette holds. The real one is called only where that is allowed."""

    def __init__(self, agent: Agent, name: str, definition: Any, tape: Tape) -> None:
        super().__init__(agent, name)
        self._definition = definition
        self._tape = tape

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator[AgentSession]:
        tape = self._tape
        chain = tape.digest(*self._opening(context, tape.digest(self._definition)))
        if (entry := tape.next(chain)) is not None:
            raise _fault(entry)
        async with AsyncExitStack() as stack:
            yield _ReplayedSession(self._agent, self._place(context), self._definition, context, tape, chain, stack)


class _ReplayedSession:
    def __init__(
        self,
        agent: Agent,
        place: Place,
        definition: Any,
        context: SessionContext,
        tape: Tape,
        chain: str,
        stack: AsyncExitStack,
    ) -> None:
        self._agent, self._place, self._definition = agent, place, definition
        self._context, self._tape, self._chain, self._stack = context, tape, chain, stack
        self._sending = _Sending(context)
        self._said: list[tuple[Message, Mapping[str, Any]]] = []
        self._live: AgentSession | None = None

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        if self._live is not None:
            return await self._live.send(message, options)
        sent, turn = self._sending.next(message, options)
        self._chain = self._tape.link(self._chain, sent)
        entry = self._tape.next(self._chain)
        if entry is None:
            return await self._miss(message, options, sent, turn)
        self._said.append((message, options))
        for call in entry.calls:
            self._context.meter(call)
        if entry.files_missing:
            raise Unreachable(f"not in the cassette: the files of turn {entry.turn} ({entry.files_missing})")
        if (entry.files or entry.changes) and self._context.workspace is not None:
            await self._context.workspace.put(entry.files, entry.changes)
        if entry.reply is None:
            raise _fault(entry)
        return structs.replace(entry.reply, elapsed_ms=entry.ms)

    async def _miss(self, message: Message, options: Mapping[str, Any], sent: bytes, turn: int) -> Reply:
        """Nothing fits: an error with the first divergence, a skipped case, or the real agent from the start."""
        tape = self._tape
        if tape.missing == "live":
            self._live = await self._stack.enter_async_context(self._agent.open(self._context))
            for said, with_options in self._said:
                await self._live.send(said, with_options)
            return await self._live.send(message, options)
        where = tape.miss(self._place, turn, sent, self._definition)
        if tape.missing == "skip":
            raise Skipped(f"not in the cassette: {where.splitlines()[0]}")
        raise Unreachable(f"not in the cassette: {where}")


def _fault(entry: Entry) -> TrialFault:
    """What came instead of a reply."""
    if entry.fault == CUT_OFF:
        return CutOff(entry.ms, entry.said)
    fault = _FAULTS.get(entry.fault or "", Undecidable)(entry.said)
    fault.elapsed_ms = entry.ms or None
    return fault

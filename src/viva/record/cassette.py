"""Recorded replies of every agent and helper, for replay at zero tokens.

A cassette wraps agents, so it records helpers too. An entry is found by who was asked, in which conversation, and a
digest of all that was sent in it so far: without session ids and paths, and with secrets already struck out. The file
is JSON lines: a definition for each agent, an entry for each reply, and how long each trial took.
"""

import difflib
import os
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from viva.errors import AgentFailed, BadInput, Role, RunStopped, Skipped, TrialFault, Undecidable, Unreachable
from viva.model import codec
from viva.model.case import Feature, Key
from viva.model.message import Message, ModelCall, Reply
from viva.protocols import Agent, AgentSession, SessionContext

VERSION = 1
Missing = Literal["error", "live", "skip"]
Redact = Callable[[bytes], bytes]
_PASSING = frozenset({"session_id", "workspace"})
_FAULTS: dict[str, type[TrialFault]] = {"agent": AgentFailed, "infra": Unreachable, "undetermined": Undecidable}


class Header(Struct, frozen=True, tag_field="line", tag="cassette"):
    """The first line."""

    version: int
    viva: str


class Definition(Struct, frozen=True, tag_field="line", tag="agent"):
    """What an agent was when it was recorded: its settings and prompt."""

    agent: str
    definition: Any


class Entry(Struct, frozen=True, tag_field="line", tag="reply", omit_defaults=True):
    """One reply, or the fault that came instead. `turn` 0 is the opening of the session."""

    digest: str
    agent: str
    role: Role
    key: Key
    turn: int
    sent: Any = None
    reply: Reply | None = None
    fault: str | None = None
    said: str = ""
    calls: tuple[ModelCall, ...] = ()
    ms: float = 0.0


class Took(Struct, frozen=True, tag_field="line", tag="trial"):
    """How long a trial took, so that a replayed report says the same."""

    key: Key
    duration_ms: float


Line = Header | Definition | Entry | Took


class Recorder:
    """Appends to a cassette, one write a line, so that parallel trials cannot tear each other's entries."""

    def __init__(self, path: Path, viva: str, redact: Redact) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        except OSError as wrong:
            raise BadInput.saying(f"--record {path}: {wrong.strerror}") from wrong
        self._path = path
        self._redact = redact
        self._defined: set[str] = set()
        self.write(Header(VERSION, viva))

    def wrap(self, agent: Agent, name: str, definition: Any) -> Agent:
        if name not in self._defined:
            self._defined.add(name)
            self.write(Definition(name, definition))
        return Recorded(agent, name, digest_of(definition, self._redact), self)

    def digest(self, *parts: Any) -> str:
        return digest_of(parts, self._redact)

    def write(self, line: Line) -> None:
        raw = self._redact(codec.encode(line)) + b"\n"
        try:
            written = os.write(self._file, raw)
        except OSError as wrong:
            raise RunStopped(f"cassette {self._path}: {wrong.strerror}") from wrong
        if written != len(raw):
            raise RunStopped(f"cassette {self._path}: no space left on device")

    def close(self) -> None:
        os.close(self._file)


class Tape:
    """A cassette that is being played. Entries that are equal in all that was sent are used in the order of recording."""

    def __init__(self, path: Path, missing: Missing, redact: Redact) -> None:
        self.missing: Missing = missing
        self._redact = redact
        self._entries: dict[str, list[Entry]] = defaultdict(list)
        self._talks: dict[tuple[Role, str, Key], list[Entry]] = defaultdict(list)
        self._definitions: dict[str, Any] = {}
        self._took: dict[Key, float] = {}
        for line in read_cassette(path):
            match line:
                case Entry():
                    self._entries[line.digest].append(line)
                    self._talks[line.role, line.agent, line.key].append(line)
                case Definition():
                    self._definitions[line.agent] = line.definition
                case Took():
                    self._took[line.key] = line.duration_ms
                case Header():
                    pass

    def wrap(self, agent: Agent, name: str, definition: Any) -> Agent:
        return Replayed(agent, name, definition, self)

    def digest(self, *parts: Any) -> str:
        return digest_of(parts, self._redact)

    def definition_digest(self, definition: Any) -> str:
        return digest_of(definition, self._redact)

    def took_ms(self, key: Key) -> float | None:
        return self._took.get(key)

    def next(self, digest: str) -> Entry | None:
        left = self._entries.get(digest)
        return left.pop(0) if left else None

    def divergence(self, role: Role, name: str, key: Key, turn: int, sent: Any, definition: Any) -> str:
        """Why nothing fits: what the cassette had at this very place, as a diff."""
        side = {"agent": "the agent", "simulator": "the simulator", "judge": "the judge"}.get(role, f"the {role}")
        where = f"case {key.case!r}, trial {key.trial}, turn {turn}: {side} {name!r}"
        had = self._definitions.get(name)
        now = codec.decode(self._redact(codec.encode(definition)))
        if had is not None and codec.canonical(had) != codec.canonical(now):
            return f"{where} was defined otherwise (its prompt or settings changed)\n{_diff(had, now)}"
        known = [entry for entry in self._talks.get((role, name, key), ()) if entry.turn == turn]
        if not known:
            return f"{where} was not asked when the cassette was recorded"
        what = "the criteria or the conversation" if role == "judge" else "what it was sent"
        return f"{where}: {what} changed\n{_diff(known[0].sent, sent)}"


def read_cassette(path: Path) -> Iterator[Line]:
    """The lines of a cassette; BadInput for a file that is none."""
    decoder = codec.decoder(Line)
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    line = decoder.decode(raw)
                except (codec.DecodeError, codec.ValidationError) as wrong:
                    raise BadInput.saying(f"is no line of a cassette: {wrong}", str(path), number) from wrong
                if isinstance(line, Header) and line.version > VERSION:
                    raise BadInput.saying(f"was recorded by a newer Viva ({line.viva})", str(path), number)
                if number == 1 and not isinstance(line, Header):
                    raise BadInput.saying("is no cassette: its first line is no header", str(path), 1)
                yield line
    except OSError as wrong:
        raise BadInput.saying(f"cannot be read: {wrong.strerror}", str(path)) from wrong


def digest_of(value: Any, redact: Redact) -> str:
    return blake2b(redact(codec.canonical(value)), digest_size=12).hexdigest()


def _sent(message: Message, options: Mapping[str, Any]) -> dict[str, Any]:
    """What was sent, less what differs from run to run by nature."""
    kept = {name: value for name, value in options.items() if name not in _PASSING}
    if isinstance(kept.get("metadata"), Mapping):
        kept["metadata"] = {name: value for name, value in kept["metadata"].items() if name not in _PASSING}
    return {"message": codec.builtins(message), "options": codec.builtins(kept)}


def _diff(had: Any, now: Any) -> str:
    before, after = (codec.pretty(codec.canonical(value)).decode().splitlines() for value in (had, now))
    lines = list(difflib.unified_diff(before, after, "cassette", "now", lineterm="", n=1))
    return "\n".join(lines[:40])


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


class Recorded(_Wrapped):
    """An agent whose replies are kept."""

    def __init__(self, agent: Agent, name: str, definition: str, recorder: Recorder) -> None:
        super().__init__(agent, name)
        self._definition = definition
        self._recorder = recorder

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator[AgentSession]:
        recorder, calls = self._recorder, list[ModelCall]()
        chain = recorder.digest(self._name, context.role, context.key, self._definition, context.history)

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
                recorder.write(
                    Entry(chain, self._name, context.role, context.key, 0, fault=fault.fault, said=fault.said)
                )
            raise


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
        self._turn = 0

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        sent = _sent(message, options)
        self._chain = self._recorder.digest(self._chain, sent)
        self._turn += 1
        self._calls.clear()
        began = time.perf_counter()
        try:
            reply = await self._session.send(message, options)
        except TrialFault as fault:
            self._keep(sent, began, fault=fault.fault, said=fault.said)
            raise
        self._keep(sent, began, reply=reply)
        return reply

    def _keep(self, sent: Any, began: float, **what: Any) -> None:
        ms = round((time.perf_counter() - began) * 1e3, 3)
        place = (self._chain, self._name, self._context.role, self._context.key, self._turn, sent)
        self._recorder.write(Entry(*place, calls=tuple(self._calls), ms=ms, **what))


class Replayed(_Wrapped):
    """An agent that says again what a cassette holds. The real one is called only where that is allowed."""

    def __init__(self, agent: Agent, name: str, definition: Any, tape: Tape) -> None:
        super().__init__(agent, name)
        self._definition = definition
        self._tape = tape

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator[AgentSession]:
        tape = self._tape
        digest = tape.definition_digest(self._definition)
        chain = tape.digest(self._name, context.role, context.key, digest, context.history)
        if (entry := tape.next(chain)) is not None:
            raise _FAULTS.get(entry.fault or "", Undecidable)(entry.said)
        async with AsyncExitStack() as stack:
            yield _ReplayedSession(self._agent, self._name, self._definition, context, tape, chain, stack)


class _ReplayedSession:
    def __init__(
        self,
        agent: Agent,
        name: str,
        definition: Any,
        context: SessionContext,
        tape: Tape,
        chain: str,
        stack: AsyncExitStack,
    ) -> None:
        self._agent, self._name, self._definition = agent, name, definition
        self._context, self._tape, self._chain, self._stack = context, tape, chain, stack
        self._said: list[tuple[Message, Mapping[str, Any]]] = []
        self._live: AgentSession | None = None

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        if self._live is not None:
            return await self._live.send(message, options)
        sent = _sent(message, options)
        self._chain = self._tape.digest(self._chain, sent)
        entry = self._tape.next(self._chain)
        if entry is None:
            return await self._miss(message, options, sent)
        self._said.append((message, options))
        for call in entry.calls:
            self._context.meter(call)
        if entry.reply is None:
            raise _FAULTS.get(entry.fault or "", Undecidable)(entry.said)
        return structs.replace(entry.reply, elapsed_ms=entry.ms)

    async def _miss(self, message: Message, options: Mapping[str, Any], sent: Any) -> Reply:
        """Nothing fits: an error with the first divergence, a skipped case, or the real agent from the start."""
        tape, context = self._tape, self._context
        where = tape.divergence(context.role, self._name, context.key, len(self._said) + 1, sent, self._definition)
        if tape.missing == "error":
            raise Unreachable(f"not in the cassette: {where}")
        if tape.missing == "skip":
            raise Skipped(f"not in the cassette: {where.splitlines()[0]}")
        self._live = await self._stack.enter_async_context(self._agent.open(context))
        for said, with_options in self._said:
            await self._live.send(said, with_options)
        return await self._live.send(message, options)

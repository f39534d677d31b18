"""One trial: open -> converse -> check -> close, and in the end a record, whatever happened on the way.

what is raised                          what becomes of the trial
AgentFailed                             failed, the agent's fault
Unreachable, HelperFailed, Undecidable  error, the fault it carries
the case's time is up                   charged to the one we waited for
cancelled (Ctrl-C, fail-fast)           no record: it was not run
anything else                           our own bug: it ends the run
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

from msgspec import Struct

from viva.engine.bus import Bus
from viva.engine.conversation import converse, judged
from viva.engine.outcome import Ending, blamed, by_checks, out_of_input
from viva.engine.records import trial_record, turn_record
from viva.errors import AgentFailed, HelperFailed, TrialFault, Unreachable
from viva.model.case import Case, Key, Utterance
from viva.model.connector import Connector
from viva.model.duration import show_duration
from viva.model.event import TrialStarted, TurnEnded, TurnStarted
from viva.model.message import ModelCall, Reply
from viva.model.record import TrialRecord, TurnRecord
from viva.model.talk import Evidence, Talk, Turn
from viva.protocols import Agent, AgentSession, Helpers, Planned, SessionContext, Transport


class Stage(Struct, kw_only=True):
    """What every trial of a run shares. The session builds it once."""

    run: str
    agent: Agent
    agent_name: str
    http: Transport
    helpers: Helpers
    bus: Bus
    agent_options: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    connectors: Mapping[str, Connector] = {}
    meter: Callable[[ModelCall], None] | None = None
    redact: Callable[[TrialRecord], TrialRecord] = lambda record: record
    redact_turn: Callable[[TurnRecord], TurnRecord] = lambda record: record


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


async def run_trial(stage: Stage, planned: Planned, attempt: int = 1) -> TrialRecord:
    """Runs one case once."""
    case = planned.case
    key = Key(case.suite, case.id, planned.trial, attempt)
    session_id = f"viva-{stage.run}-{planned.index}.{attempt}"
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    limit = asyncio.timeout(case.limits.timeout_s)
    talk = Talk(case, key, stage.helpers, Deadline(limit))
    if case.skip is not None:
        ending = Ending("skipped", None, case.skip)
    else:
        if stage.bus.live:
            stage.bus.emit(
                TrialStarted(key, planned.index, case.name or case.id, len(case.user.lines), case.user.simulator)
            )
        ending = await _held(stage, talk, limit, session_id)
    not_run = _lines_not_said(talk) if ending.status in ("failed", "error") else []
    record = trial_record(
        talk, ending, agent=stage.agent_name, session_id=session_id, started_at=started_at, not_run=not_run
    )
    return stage.redact(record)


async def _held(stage: Stage, talk: Talk, limit: asyncio.Timeout, session_id: str) -> Ending:
    """The conversation within its time, and who is to blame if it did not come to its end."""
    try:
        async with limit:
            return await _conversation(stage, talk, session_id)
    except TrialFault as fault:
        return blamed(fault)
    except TimeoutError as expired:
        if not limit.expired():
            raise
        said = f"timeout after {show_duration(talk.case.limits.timeout_s or 0)}"
        if trouble := _provider_trouble(expired):
            return _provider_hung(talk, f"{said}: {trouble}")
        if talk.waiting_for == "agent":
            if talk.turns and talk.turns[-1].reply is None:
                talk.turns[-1].error = said
            return Ending.failed(said)
        role = "simulator" if talk.waiting_for == "person" else talk.waiting_for
        return blamed(HelperFailed(role, said))


def _provider_trouble(expired: BaseException | None) -> str | None:
    """What a call that was cut off noted about a provider which had failed and was being tried again."""
    while expired is not None:
        if notes := getattr(expired, "__notes__", None):
            return str(notes[-1])
        expired = expired.__cause__ or expired.__context__
    return None


def _provider_hung(talk: Talk, said: str) -> Ending:
    if talk.waiting_for in ("agent", "person"):
        return blamed(Unreachable(said))
    return blamed(HelperFailed(talk.waiting_for, said))


async def _conversation(stage: Stage, talk: Talk, session_id: str) -> Ending:
    case = talk.case

    def meter(call: ModelCall) -> None:
        talk.calls.append(call)
        if stage.meter is not None:
            stage.meter(call)

    context = SessionContext(
        key=talk.key,
        history=case.history,
        fixtures=case.fixtures,
        options=stage.agent_options,
        meter=meter,
        http=stage.http,
        connectors=stage.connectors,
    )
    async with stage.agent.open(context) as session:
        send = _sender(session, case, _options(stage, case, session_id), stage.options)
        ending = await converse(talk, case.user, send, _watcher(stage, talk.key))
    if ending is not None:
        return ending
    if (ending := out_of_input(talk)) is not None:
        return ending
    await _judge_finals(talk)
    return by_checks(talk)


def _sender(
    session: AgentSession, case: Case, base: Mapping[str, Any], last_word: Mapping[str, Any]
) -> Callable[[Utterance], Any]:
    """How the loop reaches the agent: with the merged options, and within the turn's time."""

    async def send(line: Utterance) -> Reply:
        options = merged(base, line.options, last_word) if line.options else base
        limit_s = line.timeout_s or case.limits.turn_timeout_s
        if limit_s is None:
            return await session.send(line.message, options)
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await session.send(line.message, options)
        except TimeoutError as expired:
            if not limit.expired():
                raise
            said = f"timeout after {show_duration(limit_s)}"
            if trouble := _provider_trouble(expired):
                raise Unreachable(f"{said}: {trouble}") from None
            raise AgentFailed(said) from None

    return send


def _options(stage: Stage, case: Case, session_id: str) -> dict[str, Any]:
    ours = {"session_id": session_id, "referer": "agent-test"}
    named = {"metadata": case.metadata} if case.metadata else {}
    return merged(ours, stage.agent_options, named, case.options, stage.options)


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options, later layers over earlier ones by key; `metadata` is merged key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if key == "metadata" and isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
                result[key] = {**result[key], **cast("Mapping[str, Any]", value)}
            else:
                result[key] = value
    return result


def _watcher(stage: Stage, key: Key) -> Callable[[Turn], None]:
    if not stage.bus.live:
        return lambda _turn: None
    begun: set[int] = set()

    def watch(turn: Turn) -> None:
        if turn.number not in begun:
            begun.add(turn.number)
            line = turn.utterance
            stage.bus.emit(TurnStarted(key, turn.number, line.message.text, line.by))
        else:
            stage.bus.emit(TurnEnded(key, stage.redact_turn(turn_record(turn))))

    return watch


async def _judge_finals(talk: Talk) -> None:
    """`final_assertions`: once, after a conversation that ended without failure."""
    if talk.last is None:
        return
    for claim in talk.case.finals:
        talk.finals.append(await judged(claim, Evidence(talk, talk.last, claim.on, claim.over)))


def _lines_not_said(talk: Talk) -> list[str]:
    """The planned lines that were still to come, for the report."""
    return [line.message.text for line in talk.case.user.lines[len(talk.turns) :]]

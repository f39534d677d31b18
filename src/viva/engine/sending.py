"""How a line reaches an agent: with the merged options, and within its time.

A case talks in one session; a script test calls any agent, each call a conversation of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

from msgspec import Struct, structs

from viva.errors import AgentFailed, BadInput, CallCutOff, Undetermined, Unreachable
from viva.model.case import Key, Limits, UserMessage
from viva.model.connector import Connector
from viva.model.message import Message, Reply
from viva.model.progress import CallProgress
from viva.protocols import Agent, AgentSession, Meter, SessionContext, Transport, Workspace, WorkspaceFactory
from viva.state.trial_state import TrialState
from viva.text.duration import format_duration

Send = Callable[[UserMessage], Awaitable[Reply]]


class NamedAgent(Protocol):
    """An agent that can be called by name, with what the config says of its options."""

    @property
    def agent(self) -> Agent: ...

    @property
    def options(self) -> Mapping[str, Any]: ...


AgentLookup = Callable[[str | None], NamedAgent]
"""Who has that name; without one, the agent under test."""


class AgentCaller(Struct, frozen=True, kw_only=True):
    """Calls agents by name, each time in a fresh session that knows the given history.

    The agent's own options stand above `ours`, those that were `asked` for above them, the line's above all but `last_word`.
    """

    find: AgentLookup
    key: Key
    http: Transport
    connectors: Mapping[str, Connector]
    meter: Meter
    progress: CallProgress
    base_options: Mapping[str, Any]
    case_options: Mapping[str, Any] = {}
    override_options: Mapping[str, Any] = {}
    limits: Limits = Limits()
    spare_workspaces: WorkspaceFactory | None = None

    async def send(self, line: UserMessage) -> Reply:
        try:
            found = self.find(line.agent)
        except BadInput as wrong:  # whoever wrote the call is to blame, or whoever wrote the config
            raise Undetermined(str(wrong), deterministic=True) from None
        context = SessionContext(
            key=self.key,
            history=line.history or (),
            options=found.options,
            meter=self.meter,
            http=self.http,
            progress=self.progress,
            connectors=self.connectors,
            empty_workspaces=self.spare_workspaces,
        )
        last_word = self.override_options if line.agent is None else {}
        options = merge_options(self.base_options, found.options, self.case_options, line.options, last_word)
        async with found.agent.open(context) as session:
            own, limits = line.timeout_s, self.limits
            return await send_with_timeout(
                session,
                line.message,
                options,
                limits.reply_timeout_s(own),
                self.progress,
                limits.reply_timeout_text(own),
            )


def send_in_session(
    session: AgentSession,
    base: Mapping[str, Any],
    last_word: Mapping[str, Any],
    limits: Limits,
    progress: CallProgress,
) -> Send:
    """All lines go into one session."""

    async def send(line: UserMessage) -> Reply:
        options = merge_options(base, line.options, last_word) if line.options else base
        own = line.timeout_s
        return await send_with_timeout(
            session, line.message, options, limits.reply_timeout_s(own), progress, limits.reply_timeout_text(own)
        )

    return send


def send_and_track_files(send: Send, state: TrialState, workspace: Workspace) -> Send:
    """Notes for each turn what it did to the files of the workspace; looking at them is not the agent's time."""

    async def watched(line: UserMessage) -> Reply:
        before = await workspace.take_snapshot()
        began = time.perf_counter()
        try:
            reply = await send(line)
            if reply.elapsed_ms is None:
                reply = structs.replace(reply, elapsed_ms=(time.perf_counter() - began) * 1e3)
            return reply
        finally:
            state.turns[-1].files = await workspace.changes_since(before)

    return watched


async def send_with_timeout(
    session: AgentSession,
    message: Message,
    options: Mapping[str, Any],
    limit_s: float | None,
    progress: CallProgress,
    limit_text: str = "",
) -> Reply:
    """The reply, unless its time runs out first: that is the agent's failure, or that of a provider in trouble.

    `limit_text` is how the limit is written, where that is not the usual way.
    """
    if limit_s is None:
        return await session.send(message, options)
    said = f"timeout after {limit_text or format_duration(limit_s)}"
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            with progress.lag.extend_limit(limit, progress):
                reply = await session.send(message, options)
        if (due := limit.when()) is not None and asyncio.get_running_loop().time() > due:
            raise AgentFailed(said)  # an async agent that blocked the loop: nobody could cut it off
        return reply
    except (TimeoutError, CallCutOff) as expired:
        if not (
            limit.expired() or (isinstance(expired, CallCutOff) and _was_up(limit_s * 1e3, expired.elapsed_ms or 0.0))
        ):
            raise
        progress.elapsed_ms = limit_s * 1e3
        trouble = progress.provider_trouble
        raise (Unreachable(f"{said}: {trouble}") if trouble else AgentFailed(said)) from None


def _was_up(limit_ms: float, elapsed_ms: float) -> bool:
    """Was it this limit that cut a recorded call off, not that of the case? The call began a little after its clock did."""
    return elapsed_ms >= limit_ms - max(50.0, limit_ms / 10)


def merge_options(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options, later layers over earlier ones by key; `metadata` is merged key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if key == "metadata" and isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
                result[key] = {**result[key], **cast("Mapping[str, Any]", value)}
            else:
                result[key] = value
    return result

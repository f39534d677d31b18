"""Sends a user message to an agent, with merged options and within its timeout.

The messages of a case go into one session; a script test calls any agent, each call in a conversation of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from msgspec import Struct, structs

from viva.errors import AgentFailed, BadInput, CallCutOff, Undetermined, Unreachable
from viva.model.case import Key, Limits, UserMessage
from viva.model.connector import Connector
from viva.model.message import Message, Reply
from viva.model.progress import CallProgress
from viva.protocols import AgentSession, Meter, NamedAgent, SessionContext, Transport, Workspace, WorkspaceFactory
from viva.state.trial_state import TrialState
from viva.text.duration import format_duration

Send = Callable[[UserMessage], Awaitable[Reply]]
AgentLookup = Callable[[str | None], NamedAgent]
"""Finds an agent by name; None is the agent under test."""


class AgentCaller(Struct, frozen=True, kw_only=True):
    """Calls agents by name, each time in a new session with the given history.

    Options, lowest first: `base_options`, the agent's own, `case_options`, the message's, `override_options`.
    """

    find_agent: AgentLookup
    key: Key
    http: Transport
    connectors: Mapping[str, Connector]
    meter: Meter
    progress: CallProgress
    base_options: Mapping[str, Any]
    case_options: Mapping[str, Any] = {}
    override_options: Mapping[str, Any] = {}
    limits: Limits = Limits()
    empty_workspaces: WorkspaceFactory | None = None

    async def send(self, message: UserMessage) -> Reply:
        try:
            named = self.find_agent(message.agent)
        except BadInput as wrong:  # the test or the config names an agent that does not exist
            raise Undetermined(str(wrong), deterministic=True) from None
        context = SessionContext(
            key=self.key,
            history=message.history or (),
            options=named.options,
            meter=self.meter,
            http=self.http,
            progress=self.progress,
            connectors=self.connectors,
            empty_workspaces=self.empty_workspaces,
        )
        override = self.override_options if message.agent is None else {}
        options = merge_options(self.base_options, named.options, self.case_options, message.options, override)
        async with named.agent.open(context) as session:
            return await _send_within_limits(session, message, options, self.limits, self.progress)


def create_session_sender(
    session: AgentSession,
    options: Mapping[str, Any],
    override_options: Mapping[str, Any],
    limits: Limits,
    progress: CallProgress,
) -> Send:
    """Returns a function that sends messages into one session.

    Options of a message replace `options`, and `override_options` replace both.
    """

    async def send(message: UserMessage) -> Reply:
        merged = merge_options(options, message.options, override_options) if message.options else options
        return await _send_within_limits(session, message, merged, limits, progress)

    return send


def wrap_with_file_tracking(send: Send, state: TrialState, workspace: Workspace) -> Send:
    """Records for each turn what it did to the files of the workspace. The latency does not include this work."""

    async def send_and_compare(message: UserMessage) -> Reply:
        before = await workspace.take_snapshot()
        started = time.perf_counter()
        try:
            reply = await send(message)
            if reply.elapsed_ms is None:
                reply = structs.replace(reply, elapsed_ms=(time.perf_counter() - started) * 1e3)
            return reply
        finally:
            state.turns[-1].files = await workspace.changes_since(before)

    return send_and_compare


def _send_within_limits(
    session: AgentSession, message: UserMessage, options: Mapping[str, Any], limits: Limits, progress: CallProgress
) -> Awaitable[Reply]:
    timeout_s = limits.reply_timeout_s(message.timeout_s)
    text = limits.reply_timeout_text(message.timeout_s)
    return send_with_timeout(session, message.message, options, timeout_s, progress, text)


async def send_with_timeout(
    session: AgentSession,
    message: Message,
    options: Mapping[str, Any],
    timeout_s: float | None,
    progress: CallProgress,
    timeout_text: str = "",
) -> Reply:
    """Returns the reply. A timeout is the agent's failure, or Unreachable if its provider was failing.

    `timeout_text` is the timeout as the file writes it, if that is not the usual form.
    """
    if timeout_s is None:
        return await session.send(message, options)
    problem = f"timeout after {timeout_text or format_duration(timeout_s)}"
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            with progress.loop_lag.extend_limit(limit, progress):
                reply = await session.send(message, options)
        if (due := limit.when()) is not None and asyncio.get_running_loop().time() > due:
            raise AgentFailed(problem)  # an async agent blocked the event loop, so the timer could not fire
        return reply
    except (TimeoutError, CallCutOff) as expired:
        is_ours = isinstance(expired, CallCutOff) and was_cut_off_by_limit(timeout_s * 1e3, expired.elapsed_ms or 0.0)
        if not (limit.expired() or is_ours):
            raise
        progress.elapsed_ms = timeout_s * 1e3
        trouble = progress.provider_trouble
        raise (Unreachable(f"{problem}: {trouble}") if trouble else AgentFailed(problem)) from None


def was_cut_off_by_limit(limit_ms: float, elapsed_ms: float) -> bool:
    """Was a recorded call cut off by this limit, not by that of the case? The limit starts a moment before the call."""
    return elapsed_ms >= limit_ms - max(50.0, limit_ms / 10)


def build_session_options(session_id: str) -> dict[str, Any]:
    """The options that every agent under test gets."""
    return {"session_id": session_id, "referer": "agent-test"}


def merge_options(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merges options by key, later layers over earlier ones; `metadata` is merged key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if key == "metadata" and isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
                result[key] = {**result[key], **cast("Mapping[str, Any]", value)}
            else:
                result[key] = value
    return result

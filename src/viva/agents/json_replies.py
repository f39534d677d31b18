"""Agents whose text is JSON: `{"content": …, "awaiting_input": true}` is parsed as a reply."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from msgspec import structs

from viva.agents.replies import describe_unknown_keys, is_reply_object, parse_reply
from viva.model.case import Feature
from viva.model.message import Message, Reply
from viva.model.progress import CallProgress
from viva.protocols import Agent, AgentSession, SessionContext
from viva.text.embedded_json import find_json


class JsonReplyAgent:
    """Parses the JSON object in each reply of an agent, for `reply_format = "json"`."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.may_repeat = bool(getattr(agent, "may_repeat", False))
        self.must_quote = bool(getattr(agent, "must_quote", False))
        self.inspect = getattr(agent, "inspect", None)

    @property
    def provides(self) -> frozenset[Feature]:
        return self._agent.provides

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator[AgentSession]:
        async with self._agent.open(context) as session:
            yield _JsonReplySession(session, context.progress)


class _JsonReplySession:
    def __init__(self, session: AgentSession, progress: CallProgress) -> None:
        self._session = session
        self._progress = progress
        self._warned: set[str] = set()

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        """The agent's reply, with the JSON object in its text parsed. A text without such an object stays as it is."""
        reply = await self._session.send(message, options)
        value = find_json(reply.content)
        if not isinstance(value, dict) or not is_reply_object(fields := cast("dict[str, Any]", value)):
            return reply
        new = [warning for warning in describe_unknown_keys(fields) if warning not in self._warned]
        self._warned.update(new)
        self._progress.warnings += new
        return _merge_replies(reply, parse_reply(fields))


def _merge_replies(reply: Reply, parsed: Reply) -> Reply:
    return structs.replace(
        parsed,
        data=reply.data if parsed.data is None else parsed.data,
        tool_calls=reply.tool_calls + parsed.tool_calls,
        finish_reason=reply.finish_reason,
        protocol_state=parsed.protocol_state or reply.protocol_state,
        calls=reply.calls,
        elapsed_ms=reply.elapsed_ms,
        first_token_ms=reply.first_token_ms,
    )

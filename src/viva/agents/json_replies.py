"""Agents whose text is JSON: `{"content": …, "awaiting_input": true}` is parsed as a reply."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from msgspec import structs

from viva.agents.replies import describe_unknown_keys, is_reply_object, parse_reply
from viva.model.case import Feature
from viva.model.message import Message, Reply
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
            yield _JsonReplySession(session, context)


class _JsonReplySession:
    def __init__(self, session: AgentSession, context: SessionContext) -> None:
        self._session = session
        self._context = context
        self._warned: set[str] = set()

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        """The agent's reply, with the JSON object in its text parsed. A text without such an object stays as it is."""
        reply = await self._session.send(message, options)
        value = find_json(reply.content)
        if not isinstance(value, dict) or not is_reply_object(fields := cast("dict[str, Any]", value)):
            return reply
        new = [warning for warning in describe_unknown_keys(fields) if warning not in self._warned]
        self._warned.update(new)
        self._context.progress.warnings += new
        parsed = parse_reply(fields)
        for call in () if reply.calls else parsed.calls:
            self._context.meter(call)
        return _merge_replies(reply, parsed)


def _merge_replies(reply: Reply, parsed: Reply) -> Reply:
    """The parsed reply, with what only the agent's protocol knows."""
    return structs.replace(
        parsed,
        data=reply.data if parsed.data is None else parsed.data,
        tool_calls=reply.tool_calls + parsed.tool_calls,
        declared_state=parsed.declared_state or reply.declared_state,
        input_hint=parsed.input_hint or reply.input_hint,
        finish_reason=reply.finish_reason or parsed.finish_reason,
        protocol_state=parsed.protocol_state or reply.protocol_state,
        calls=reply.calls or parsed.calls,  # what was measured counts, not what the text says
        steps=reply.steps + parsed.steps,
        path=parsed.path or reply.path,
        elapsed_ms=reply.elapsed_ms,
        first_token_ms=reply.first_token_ms,
    )

"""An agent whose model answers in JSON: `{"content": …, "awaiting_input": true}` is read as a reply, not as text."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from msgspec import structs

from viva.agents.replies import is_reply_object, parse_reply
from viva.model.case import Feature
from viva.model.message import Message, Reply
from viva.protocols import Agent, AgentSession, SessionContext
from viva.text.embedded_json import find_json


class JsonReplyAgent:
    """Reads the JSON object in each text of an agent, as `reply_format = "json"` asks for."""

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
            yield _JsonSession(session)


class _JsonSession:
    def __init__(self, session: AgentSession) -> None:
        self._session = session

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        return parse_json_reply(await self._session.send(message, options))


def parse_json_reply(reply: Reply) -> Reply:
    """The reply that its text declares. A text that holds no such object stays as it is."""
    answer = find_json(reply.content)
    if not isinstance(answer, dict) or not is_reply_object(declared := cast("dict[str, Any]", answer)):
        return reply
    read = parse_reply(declared)
    return structs.replace(
        read,
        data=reply.data if read.data is None else read.data,
        tool_calls=reply.tool_calls + read.tool_calls,
        finish_reason=reply.finish_reason,
        protocol_state=read.protocol_state or reply.protocol_state,
        calls=reply.calls,
        elapsed_ms=reply.elapsed_ms,
    )

"""A conversation with a model's agent over a real socket: for its tests."""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from viva.agents.chat import ChatAgent, Tool
from viva.agents.model_session import ModelAgent
from viva.llm.transport import HttpTransport
from viva.model.case import Key
from viva.model.message import Message, ModelCall, Reply
from viva.protocols import SessionContext
from viva.testing import OpenAIServer
from viva.testing.model_server import ModelServer

ADD = Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "number"}}}, run=lambda a, b: a + b)


class HeldConversation(Struct):
    """The result of a conversation."""

    replies: list[Reply]
    metered: list[ModelCall]
    server: ModelServer

    @property
    def sent(self) -> Any:
        """The last request."""
        return self.server.requests[-1].json

    @property
    def messages(self) -> list[Any]:
        """The messages of the last request."""
        return self.sent["messages"]


def hold_conversation(
    script,
    *said: str | Message,
    options: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    connector=None,
    agent: type[ModelAgent] = ChatAgent,
    stand_in: type[ModelServer] = OpenAIServer,
    **fields,
) -> HeldConversation:
    metered: list[ModelCall] = []

    async def scenario() -> list[Reply]:
        http = HttpTransport()
        try:
            opened = SessionContext(key=Key("s", "c"), meter=metered.append, http=http, **(context or {}))
            speaker = agent(connector=server.connector(**(connector or {})), **fields)
            async with speaker.open(opened) as session:
                return [
                    await session.send(Message("user", line) if isinstance(line, str) else line, options or {})
                    for line in said
                ]
        finally:
            await http.close()

    with stand_in(script) as server:
        return HeldConversation(asyncio.run(scenario()), metered, server)


def only(told: HeldConversation) -> Reply:
    (reply,) = told.replies
    return reply

"""Objects that hold one conversation: sessions that share one take turns."""

import asyncio
from collections.abc import Mapping
from typing import Any

from viva.agents.frameworks.framework_agent import FrameworkAgent, get_current_log
from viva.agents.frameworks.shared_object import SharedObjectSession
from viva.llm.transport import HttpTransport
from viva.model.case import Key
from viva.model.message import Message, Reply
from viva.protocols import SessionContext


class Diary:
    """A framework's object with one conversation, which logs each message."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tell: Any = None

    async def write(self, line: str) -> str:
        self.lines.append(line)
        await asyncio.sleep(0)  # another session could run here
        self.tell(line)
        return " ".join(self.lines)


class DiarySession(SharedObjectSession):
    title = "Diary"
    package = "pytest"
    tested_version = "1"
    types = (f"{__name__}:Diary",)

    async def start(self) -> None:
        self.target.tell = lambda line: get_current_log().enter_node(line)

    async def save_state(self) -> tuple[str, ...]:
        return tuple(self.target.lines)

    async def load_state(self, state: tuple[str, ...]) -> None:
        self.target.lines = list(state)

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        async with self.take_turn():
            text = await self.target.write(message.text)
        return self.log.build_reply(text)


def test_each_conversation_has_its_own_state_and_log():
    diary = Diary()
    diary.lines = ["once"]
    agent = FrameworkAgent(diary, DiarySession)

    async def talk(*lines: str) -> list[Reply]:
        context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=HttpTransport())
        async with agent.open(context) as session:
            return [await session.send(Message("user", line), {}) for line in lines]

    async def scenario() -> tuple[list[Reply], list[Reply]]:
        return await asyncio.gather(talk("a", "b"), talk("c", "d"))

    first, second = asyncio.run(scenario())
    assert [reply.content for reply in first] == ["once a", "once a b"]  # N19
    assert [reply.content for reply in second] == ["once c", "once c d"]
    assert [reply.path for reply in (*first, *second)] == [("a",), ("b",), ("c",), ("d",)]
    assert diary.lines == ["once"]  # the object is as the user made it
    diary.tell("outside of a turn")  # goes nowhere
    diary.lines += ["twice"]
    (reply,) = asyncio.run(talk("e"))
    assert reply.content == "once twice e"
    assert diary.lines == ["once", "twice"]  # also what the user did with it between two conversations

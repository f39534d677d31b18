"""Evidence without a run: what a check sees of a conversation that never took place."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from viva.errors import HelperFailed, Role
from viva.model.case import Case, Key, On, Over, Utterance
from viva.model.message import Message, Reply
from viva.model.talk import Evidence, Talk, Turn
from viva.protocols import HelperSession


class Silent:
    """A user with nothing to say."""

    lines: Sequence[Utterance] = ()
    simulator: str | None = None

    async def speak(self, talk: Talk) -> AsyncGenerator[Utterance, None]:
        for line in self.lines:
            yield line


class NoHelpers:
    """Helpers of which none can be reached."""

    def open(
        self,
        role: Role,
        agent: str,
        talk: Talk | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[HelperSession]:
        raise HelperFailed(role, f"there is no {agent} here")


class StillClock:
    """A clock that no time limit hangs on."""

    @asynccontextmanager
    async def pause(self) -> AsyncGenerator[None]:
        yield


def talk_of(*replies: Reply | str, inputs: Sequence[str] = (), metadata: Mapping[str, Any] | None = None) -> Talk:
    """A conversation with these replies, in which the user said `inputs` (or `hello`), with 100 ms for each turn."""
    case = Case(id="case", user=Silent(), metadata=metadata or {})
    talk = Talk(case, Key("suite", "case"), NoHelpers(), StillClock())
    for number, reply in enumerate(replies, 1):
        said = inputs[number - 1] if number <= len(inputs) else "hello"
        answer = Reply(reply) if isinstance(reply, str) else reply
        talk.turns.append(Turn(number, Utterance(Message("user", said)), answer, latency_ms=100.0))
    return talk


def evidence_of(
    *replies: Reply | str,
    on: On = "reply",
    over: Over = "turn",
    inputs: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Evidence:
    """What a check sees after the last of these replies."""
    talk = talk_of(*(replies or ("",)), inputs=inputs, metadata=metadata)
    return Evidence(talk, talk.turns[-1], on, over)

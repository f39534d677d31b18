"""Two users, one after the other, in one conversation."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import Struct

from viva.model.case import Utterance
from viva.model.talk import Talk
from viva.protocols import User


class Then(Struct, frozen=True):
    """When the `first` has said all that it has to say, the `second` goes on."""

    first: User
    second: User

    @property
    def lines(self) -> Sequence[Utterance]:
        return (*self.first.lines, *self.second.lines)

    @property
    def simulator(self) -> str | None:
        return self.second.simulator or self.first.simulator

    async def speak(self, talk: Talk) -> AsyncGenerator[Utterance, None]:
        for user in (self.first, self.second):
            async with aclosing(user.speak(talk)) as lines:
                async for line in lines:
                    yield line

"""Two users, one after the other, in one conversation."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import Struct

from viva.model.case import UserMessage
from viva.protocols import User
from viva.state.trial_state import TrialState


class UserSequence(Struct, frozen=True):
    """When the `first` has said all that it has to say, the `second` goes on."""

    first: User
    second: User

    @property
    def planned_messages(self) -> Sequence[UserMessage]:
        return (*self.first.planned_messages, *self.second.planned_messages)

    @property
    def simulator(self) -> str | None:
        return self.second.simulator or self.first.simulator

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        for user in (self.first, self.second):
            async with aclosing(user.speak(state)) as lines:
                async for line in lines:
                    yield line

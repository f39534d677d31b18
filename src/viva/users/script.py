"""Users with written messages, and two users in sequence."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import Struct, structs

from viva.model.case import UserMessage
from viva.protocols import User
from viva.state.trial_state import TrialState
from viva.text.template import fill_variables_in_message


class Script(Struct, frozen=True):
    """Sends its messages in order, whatever the agent replies. `has_variables` says whether some contain `{{variables}}`."""

    planned_messages: tuple[UserMessage, ...]
    has_variables: bool = False

    @property
    def simulator(self) -> str | None:
        return None

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        for message in self.planned_messages:
            yield fill_user_message(message, state) if self.has_variables else message


def fill_user_message(message: UserMessage, state: TrialState) -> UserMessage:
    """The message with its `{{variables}}` filled in."""
    return structs.replace(
        message, message=fill_variables_in_message(message.message, state.variables, state.unset_variables)
    )


class UserSequence(Struct, frozen=True):
    """Two users, one after the other: when `first` has no more messages, `second` continues."""

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
            async with aclosing(user.speak(state)) as messages:
                async for message in messages:
                    yield message

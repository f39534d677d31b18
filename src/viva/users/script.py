"""A user whose lines are written down."""

from collections.abc import AsyncGenerator

from msgspec import Struct, structs

from viva.model.case import UserMessage
from viva.state.trial_state import TrialState
from viva.text.template import fill_message


class Script(Struct, frozen=True):
    """Says its lines in order, whatever the agent answers. `filled` says that some hold `{{variables}}`."""

    planned_messages: tuple[UserMessage, ...]
    has_variables: bool = False

    @property
    def simulator(self) -> str | None:
        return None

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        for line in self.planned_messages:
            yield fill_user_message(line, state) if self.has_variables else line


def fill_user_message(line: UserMessage, state: TrialState) -> UserMessage:
    """The line with its `{{variables}}` filled in."""
    return structs.replace(line, message=fill_message(line.message, state.variables, state.unset_variables))

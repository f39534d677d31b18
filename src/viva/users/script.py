"""A user whose lines are written down."""

from collections.abc import AsyncGenerator

from msgspec import Struct, structs

from viva.model.case import Utterance
from viva.model.talk import Talk
from viva.model.template import fill_message


class Script(Struct, frozen=True):
    """Says its lines in order, whatever the agent answers. `filled` says that some hold `{{variables}}`."""

    lines: tuple[Utterance, ...]
    filled: bool = False

    @property
    def simulator(self) -> str | None:
        return None

    async def speak(self, talk: Talk) -> AsyncGenerator[Utterance, None]:
        for line in self.lines:
            yield filled_line(line, talk) if self.filled else line


def filled_line(line: Utterance, talk: Talk) -> Utterance:
    """The line with its `{{variables}}` filled in."""
    return structs.replace(line, message=fill_message(line.message, talk.variables, talk.not_found))

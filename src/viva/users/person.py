"""A person who speaks for the user: alone, or over somebody who proposes each line."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec import Struct, structs

from viva.model.case import UserMessage
from viva.model.message import Message, Text
from viva.protocols import PersonChoice, PersonPrompt, PersonQuestion, User
from viva.state.trial_state import TrialState
from viva.text.duration import format_duration
from viva.users.script import Script

STOPPED_MESSAGE = "the person stopped the conversation"

Save = Callable[[str, TrialState, Sequence[UserMessage]], str]
"""Keeps a talk in a file, with its lines as their authors wrote them, and says what came of it."""


class Person(Struct, frozen=True):
    """Sees each line that `inner` would say, and says it or something else; when `inner` has ended, answers if the agent waits.

    A line that costs nothing is proposed at once. For one that a simulator has to be asked for the person is asked
    first, so no line is paid for that nobody wants. Without `inner` the person talks until they stop.
    """

    inner: User | None
    prompt: PersonPrompt
    save: Save

    @property
    def planned_messages(self) -> Sequence[UserMessage]:
        return self.inner.planned_messages if self.inner is not None else ()

    @property
    def simulator(self) -> str | None:
        return self.inner.simulator if self.inner is not None else None

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        said: list[UserMessage] = []  # as it would be written in a case: with its {{variables}}
        inner = Script(()) if self.inner is None else self.inner
        async with aclosing(inner.speak(state)) as lines:
            while (line := await self._next(state, lines, said)) is not None:
                planned = len(said) < len(self.planned_messages) and line.source != "interactive"
                said.append(self.planned_messages[len(said)] if planned else line)
                yield line

    async def _next(
        self, state: TrialState, lines: AsyncGenerator[UserMessage, None], said: Sequence[UserMessage]
    ) -> UserMessage | None:
        """What is said now; None: nothing more."""
        simulator = self.simulator if len(said) >= len(self.planned_messages) else None
        proposed = await anext(lines, None) if simulator is None else None
        awaited = state.last_turn is not None and state.last_turn.is_unanswered
        if proposed is None and simulator is None and self.inner is not None and not awaited:
            return None
        while True:
            choice = await self._asked(PersonQuestion(state, proposed, simulator if proposed is None else None))
            if choice is None:
                return None
            match choice.action:
                case "accept" if proposed is not None:
                    return proposed
                case "say":
                    return replace_text(proposed, choice.text)
                case "simulate" if proposed is None and simulator is not None:
                    proposed = await anext(lines, None)
                    if proposed is None:
                        return None
                case "save":
                    self.prompt.show_notice(self.save(choice.text, state, said))
                case "stop":
                    if proposed is not None or simulator is not None:
                        state.missing_input = STOPPED_MESSAGE
                    return None
                case _:  # nothing is there to be accepted, or nobody to be asked
                    continue

    async def _asked(self, question: PersonQuestion) -> PersonChoice | None:
        """The person's choice; None if they took too long. The case's own time stands still."""
        state = question.state
        limit_s = state.case.interactive.timeout_s
        limit = asyncio.timeout(limit_s)
        before, state.waiting_for = state.waiting_for, "person"
        try:
            async with state.clock.pause(), limit:
                return await self.prompt.ask(question)
        except TimeoutError:
            if not limit.expired():
                raise
            state.missing_input = f"no answer from the person within {format_duration(limit_s or 0)}"
            return None
        finally:
            state.waiting_for = before


def replace_text(proposed: UserMessage | None, text: str) -> UserMessage:
    """The person's words. All else that belongs to the line they replace stays: claims, options, attachments."""
    if proposed is None:
        return UserMessage(Message("user", text), source="interactive")
    content = proposed.message.content
    attached = () if isinstance(content, str) else tuple(part for part in content if not isinstance(part, Text))
    message = Message("user", (Text(text), *attached) if attached else text)
    return structs.replace(proposed, message=message, source="interactive", comment=None)

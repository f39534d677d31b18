"""A person as the user: alone, or with another user that proposes each message."""

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

SaveConversation = Callable[[str, TrialState, Sequence[UserMessage]], str]
"""Saves a conversation to a file, with its messages as written, and returns a notice."""


class Person(Struct, frozen=True):
    """A person who accepts or replaces each message that the user `inner` proposes. When `inner` has no more messages, the
    person answers as long as the agent awaits input.

    A message that is written in the case is proposed at once. A simulator, whose messages cost money, is called only if the
    person asks for its message. Without `inner` the person speaks until they stop.
    """

    inner: User | None
    prompt: PersonPrompt
    save: SaveConversation

    @property
    def planned_messages(self) -> Sequence[UserMessage]:
        return self.inner.planned_messages if self.inner is not None else ()

    @property
    def simulator(self) -> str | None:
        return self.inner.simulator if self.inner is not None else None

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        sent: list[UserMessage] = []  # as a case would write them, with {{variables}}
        inner = Script(()) if self.inner is None else self.inner
        async with aclosing(inner.speak(state)) as messages:
            while (message := await self._choose_message(state, messages, sent)) is not None:
                is_planned = len(sent) < len(self.planned_messages) and message.source != "interactive"
                sent.append(self.planned_messages[len(sent)] if is_planned else message)
                yield message

    async def _choose_message(
        self, state: TrialState, messages: AsyncGenerator[UserMessage, None], sent: Sequence[UserMessage]
    ) -> UserMessage | None:
        """The next message; None ends the conversation."""
        simulator = self.simulator if len(sent) >= len(self.planned_messages) else None
        proposed = await anext(messages, None) if simulator is None else None
        is_awaiting = state.last_turn is not None and state.last_turn.awaits_user
        if proposed is None and simulator is None and self.inner is not None and not is_awaiting:
            return None
        while True:
            choice = await self._ask(PersonQuestion(state, proposed, simulator if proposed is None else None))
            if choice is None:
                return None
            match choice.action:
                case "accept" if proposed is not None:
                    return proposed
                case "say":
                    return replace_text(proposed, choice.text)
                case "simulate" if proposed is None and simulator is not None:
                    proposed = await anext(messages, None)
                    if proposed is None:
                        return None
                case "save":
                    self.prompt.show_notice(self.save(choice.text, state, sent))
                case "stop":
                    if proposed is not None or simulator is not None:
                        state.missing_input = STOPPED_MESSAGE
                    return None
                case _:  # there is nothing to accept, or no simulator to call
                    continue

    async def _ask(self, question: PersonQuestion) -> PersonChoice | None:
        """The person's choice; None if they took too long. The case's time limit is paused."""
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
    """The person's text in place of the proposed one, whose assertions, options and attachments stay."""
    if proposed is None:
        return UserMessage(Message("user", text), source="interactive")
    content = proposed.message.content
    attachments = () if isinstance(content, str) else tuple(part for part in content if not isinstance(part, Text))
    message = Message("user", (Text(text), *attachments) if attachments else text)
    return structs.replace(proposed, message=message, source="interactive", comment=None)

"""A person who speaks for the user: alone, or over somebody who proposes each line."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec import Struct, structs

from viva.model.case import Utterance
from viva.model.duration import show_duration
from viva.model.message import Message, Text
from viva.model.talk import Talk
from viva.protocols import Asking, Choice, Question, User
from viva.users.script import Script

STOPPED = "the person stopped the conversation"

Save = Callable[[str, Talk, Sequence[Utterance]], str]
"""Keeps a talk in a file, with its lines as their authors wrote them, and says what came of it."""


class Person(Struct, frozen=True):
    """Sees each line that `inner` would say, and says it or something else; when `inner` has ended, answers if the agent waits.

    A line that costs nothing is proposed at once. For one that a simulator has to be asked for the person is asked
    first, so no line is paid for that nobody wants. Without `inner` the person talks until they stop.
    """

    inner: User | None
    asking: Asking
    save: Save

    @property
    def lines(self) -> Sequence[Utterance]:
        return self.inner.lines if self.inner is not None else ()

    @property
    def simulator(self) -> str | None:
        return self.inner.simulator if self.inner is not None else None

    async def speak(self, talk: Talk) -> AsyncGenerator[Utterance, None]:
        said: list[Utterance] = []  # as it would be written in a case: with its {{variables}}
        inner = Script(()) if self.inner is None else self.inner
        async with aclosing(inner.speak(talk)) as lines:
            while (line := await self._next(talk, lines, said)) is not None:
                planned = len(said) < len(self.lines) and line.by != "interactive"
                said.append(self.lines[len(said)] if planned else line)
                yield line

    async def _next(
        self, talk: Talk, lines: AsyncGenerator[Utterance, None], said: Sequence[Utterance]
    ) -> Utterance | None:
        """What is said now; None: nothing more."""
        simulator = self.simulator if len(said) >= len(self.lines) else None
        proposed = await anext(lines, None) if simulator is None else None
        awaited = talk.last is not None and talk.last.unanswered
        if proposed is None and simulator is None and self.inner is not None and not awaited:
            return None
        while True:
            choice = await self._asked(Question(talk, proposed, simulator if proposed is None else None))
            if choice is None:
                return None
            match choice.do:
                case "accept" if proposed is not None:
                    return proposed
                case "say":
                    return instead_of(proposed, choice.text)
                case "simulate" if proposed is None and simulator is not None:
                    proposed = await anext(lines, None)
                    if proposed is None:
                        return None
                case "save":
                    self.asking.tell(self.save(choice.text, talk, said))
                case "stop":
                    if proposed is not None or simulator is not None:
                        talk.input_missing = STOPPED
                    return None
                case _:  # nothing is there to be accepted, or nobody to be asked
                    continue

    async def _asked(self, question: Question) -> Choice | None:
        """The person's choice; None if they took too long. The case's own time stands still."""
        talk = question.talk
        limit_s = talk.case.interactive.timeout_s
        limit = asyncio.timeout(limit_s)
        before, talk.waiting_for = talk.waiting_for, "person"
        try:
            async with talk.clock.pause(), limit:
                return await self.asking.ask(question)
        except TimeoutError:
            if not limit.expired():
                raise
            talk.input_missing = f"no answer from the person within {show_duration(limit_s or 0)}"
            return None
        finally:
            talk.waiting_for = before


def instead_of(proposed: Utterance | None, text: str) -> Utterance:
    """The person's words. All else that belongs to the line they replace stays: claims, options, attachments."""
    if proposed is None:
        return Utterance(Message("user", text), by="interactive")
    content = proposed.message.content
    attached = () if isinstance(content, str) else tuple(part for part in content if not isinstance(part, Text))
    message = Message("user", (Text(text), *attached) if attached else text)
    return structs.replace(proposed, message=message, by="interactive", remark=None)

"""A free conversation: a person talks with an agent as long as they like, and may save it as a case. No verdict."""

from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from viva.awaiting.detector import detect
from viva.cli.direct import Opened, opened, reply_lines
from viva.cli.interactive import Terminal
from viva.engine.conversation import run_conversation
from viva.formats.reading import Reading
from viva.model.case import Case, Interactive, Key, UserMessage
from viva.model.message import Reply
from viva.model.talk import TrialState, Turn
from viva.reporters.visible import visible, visible_lines
from viva.session.people import Keeper
from viva.users.person import Person


class _Unhurried:
    """A clock without a limit."""

    def pause(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()


async def talk_freely(flags: dict[str, Any]) -> int:
    """Talks until the person stops."""
    async with opened(flags) as agent:
        terminal = Terminal(hints=False)  # they stand below each reply
        terminal.redact = agent.redactor.text
        settings = agent.settings
        reading = Reading(roots=(str(settings.folder),), attachment_roots=settings.attachment_roots)
        keeper = Keeper(reading, Path(), agent=agent.name)
        person = Person(None, terminal, keeper.save)
        case = Case(id="conversation", user=person, interactive=Interactive(enabled=True, timeout_s=None))
        asking = frozenset(agent.settings.confirmation_tools)
        talk = TrialState(case, Key("", case.id), agent.crew, _Unhurried(), confirmation_tools=asking)
        print(f"Talking with {visible(agent.name)}.", flush=True)

        async def send(line: UserMessage) -> Reply:
            return await agent.send(line.message)

        def show(turn: Turn) -> None:
            _show(turn, agent, echo=terminal.erases, verbose=flags["verbose"])

        await run_conversation(talk, person, send, show)
    return 0


def _show(turn: Turn, agent: Opened, *, echo: bool, verbose: bool) -> None:
    """What was said, unless it still stands there as it was typed, and what came back."""
    if turn.reply is not None:
        awaiting = turn.awaiting or detect(turn.reply)
        lines = reply_lines(agent.redactor.record(turn.reply), awaiting, turn.latency_ms if verbose else None)
        print("\n".join(f"  {line}" for line in lines), flush=True)
    elif turn.error is None and echo:
        print("> " + visible_lines(turn.user_message.message.text).replace("\n", "\n  "), flush=True)

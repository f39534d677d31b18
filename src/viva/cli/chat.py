"""A free conversation: a person talks with an agent as long as they like, and may save it as a case. No verdict."""

from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from viva.awaiting.detector import detect
from viva.cli.interactive import TerminalPrompt
from viva.cli.send_message import DirectSession, format_reply, open_direct_session
from viva.engine.conversation import run_conversation
from viva.formats.load_options import LoadOptions
from viva.model.case import Case, Interactive, Key, UserMessage
from viva.model.message import Reply
from viva.model.turn import Turn
from viva.reporters.formatting import escape_controls, escape_multiline
from viva.session.interactive import ConversationSaver
from viva.state.trial_state import TrialState
from viva.users.person import Person


class _Unhurried:
    """A clock without a limit."""

    def pause(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()


async def run_chat(flags: dict[str, Any]) -> int:
    """Talks until the person stops."""
    async with open_direct_session(flags) as agent:
        terminal = TerminalPrompt(show_hints=False)  # they stand below each reply
        terminal.redact = agent.redactor.redact_text
        settings = agent.settings
        reading = LoadOptions(roots=(str(settings.folder),), attachment_roots=settings.attachment_roots)
        keeper = ConversationSaver(reading, Path(), agent=agent.name)
        person = Person(None, terminal, keeper.save)
        case = Case(id="conversation", user=person, interactive=Interactive(enabled=True, timeout_s=None))
        asking = frozenset(agent.settings.confirmation_tools)
        state = TrialState(case, Key("", case.id), agent.helpers, _Unhurried(), confirmation_tools=asking)
        print(f"Talking with {escape_controls(agent.name)}.", flush=True)

        async def send(line: UserMessage) -> Reply:
            return await agent.send(line.message)

        def show(turn: Turn) -> None:
            _show(turn, agent, echo=terminal.clears_input, verbose=flags["verbose"])

        await run_conversation(state, person, send, show)
    return 0


def _show(turn: Turn, agent: DirectSession, *, echo: bool, verbose: bool) -> None:
    """What was said, unless it still stands there as it was typed, and what came back."""
    if turn.reply is not None:
        awaiting = turn.awaiting or detect(turn.reply)
        lines = format_reply(agent.redactor.redact(turn.reply), awaiting, turn.latency_ms if verbose else None)
        print("\n".join(f"  {line}" for line in lines), flush=True)
    elif turn.error is None and echo:
        print("> " + escape_multiline(turn.user_message.message.text).replace("\n", "\n  "), flush=True)

"""Runs a chat: a person talks with an agent and may save the conversation as a case. There is no verdict."""

from pathlib import Path

from viva.api.project import NoTimeLimit
from viva.awaiting.detector import detect_awaiting
from viva.cli.interactive import TerminalPrompt
from viva.cli.send_message import DirectSession, format_reply, open_direct_session
from viva.engine.conversation import run_conversation
from viva.formats.load_options import LoadOptions
from viva.model.case import Case, Interactive, Key, UserMessage
from viva.model.message import Reply
from viva.model.turn import Turn
from viva.reporters.formatting import escape_controls, escape_multiline
from viva.session.interactive import ConversationSaver
from viva.session.options.run_options import AllRunOptions
from viva.state.trial_state import TrialState
from viva.users.person import Person


async def run_chat(options: AllRunOptions, *, verbose: bool) -> int:
    """Open the agent and chat with it until the person stops."""
    async with open_direct_session(options) as agent:
        prompt = TerminalPrompt(agent.redactor.redact_text, show_hints=False)  # each reply has its hint below
        settings = agent.settings
        load_options = LoadOptions(roots=(str(settings.folder),), attachment_roots=settings.attachment_roots)
        saver = ConversationSaver(load_options, Path(), agent=agent.name)
        person = Person(None, prompt, saver.save)
        case = Case(id="conversation", user=person, interactive=Interactive(enabled=True, timeout_s=None))
        tools = frozenset(settings.confirmation_tools)
        state = TrialState(case, Key("", case.id), agent.helpers, NoTimeLimit(), confirmation_tools=tools)
        print(f"Talking with {escape_controls(agent.name)}.", flush=True)

        async def send(line: UserMessage) -> Reply:
            return await agent.send(line.message)

        def show(turn: Turn) -> None:
            _print_turn(turn, agent, echo=prompt.clears_input, verbose=verbose)

        await run_conversation(state, person, send, show)
    return 0


def _print_turn(turn: Turn, agent: DirectSession, *, echo: bool, verbose: bool) -> None:
    """Prints the reply of a turn or, before there is one, the message. With `echo` false the terminal shows the message already."""
    if turn.reply is not None:
        awaiting = turn.awaiting or detect_awaiting(turn.reply)
        lines = format_reply(agent.redactor.redact(turn.reply), awaiting, turn.latency_ms if verbose else None)
        print("\n".join(f"  {line}" for line in lines), flush=True)
    elif turn.error is None and echo:
        print("> " + escape_multiline(turn.user_message.message.text).replace("\n", "\n  "), flush=True)

"""The person at this terminal: what they are shown, and what they type.

With prompt_toolkit (the extra `interactive`) a line can be edited, recalled and pasted, and the question goes away once
it is answered. Without it, lines are read as the terminal gives them.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import cached_property
from typing import NoReturn, Protocol

from viva.protocols import PersonChoice, PersonQuestion
from viva.reporters.console_lines import Palette
from viva.reporters.formatting import escape_controls, fit_line, wrap_text
from viva.state.evaluation import assertion_label

_INDENT = "     "
_UNDER = " " * len("Next: ")
_SIGN = "  > "
_MOST = 65536
_HELP = (
    ("Enter", "say the line that is proposed; where a simulator plays the user, ask it for one"),
    ("any text", "say that instead; what is checked stays"),
    ("e", "edit the line that is proposed"),
    ("a", "ask the simulator for a line"),
    ("s", "save the conversation so far as a case"),
    ("q, Ctrl-D", "stop this conversation"),
    ("Ctrl-C", "stop the run"),
    ("Alt-Enter", "begin a new line; a pasted text may have several"),
)
_SAY_LETTER = "To say the letter itself, type a space before it."


class LineReader(Protocol):
    """Reads what is typed below some lines. Raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C."""

    clears_input: bool
    can_edit: bool

    async def __call__(self, above: str, sign: str, hint: str = "", text: str = "") -> str: ...


class TerminalPrompt:
    """Asks whoever sits here. Costs nothing until somebody is asked."""

    def __init__(self, *, show_hints: bool = True) -> None:
        self._hints = show_hints
        self._plain = os.environ.get("TERM", "dumb") == "dumb"
        self._ink = Palette(not self._plain and "NO_COLOR" not in os.environ)
        self._file = "saved.jsonl"
        self.redact: Callable[[str], str] = str

    @cached_property
    def _ask(self) -> LineReader:
        try:
            return _Lines(self._ink) if self._plain else _Prompt()
        except ImportError:  # the extra is not installed
            return _Lines(self._ink)

    @property
    def clears_input(self) -> bool:
        """What was typed does not stay on the screen."""
        return self._ask.clears_input

    async def ask(self, question: PersonQuestion) -> PersonChoice:
        above = ""
        try:
            while isinstance(choice := await self._chosen(question, above), str):
                above = choice
        except EOFError:
            return PersonChoice("stop")
        except KeyboardInterrupt:
            await _interrupt()
        return choice

    def show_notice(self, text: str) -> None:
        print(_INDENT + escape_controls(self.redact(text)), flush=True)

    async def _chosen(self, question: PersonQuestion, above: str) -> PersonChoice | str:
        """One answer or, if it has to be asked for again, what to show above the question."""
        proposed, simulator = question.proposed, question.simulator
        typed = _text(await self._ask(above + self._shown(question), _SIGN, self._keys(question)))
        match typed.rstrip():
            case "":
                return PersonChoice("accept") if proposed else PersonChoice("simulate") if simulator else ""
            case "?":
                return self._help(question)
            case "q":
                return PersonChoice("stop")
            case "s":
                return await self._file_name()
            case "a" | "e" as key if (why := self._unavailable(key, question)) is not None:
                return f"{_INDENT}{why} {_SAY_LETTER}\n"
            case "a":
                return PersonChoice("simulate")
            case "e" if proposed:
                return await self._edited(proposed.message.text)
            case _:
                return PersonChoice("say", typed.strip())

    def _help(self, question: PersonQuestion) -> str:
        """Every key that does something here."""
        keys = [(key, does) for key, does in _HELP if self._unavailable(key, question) is None]
        return "".join(f"{_INDENT}{key:<15}{does}\n" for key, does in keys) + f"{_INDENT}{_SAY_LETTER}\n"

    def _unavailable(self, key: str, question: PersonQuestion) -> str | None:
        """Why a key does nothing here; None if it does something."""
        if key == "a" and question.simulator is None:
            return "There is no simulator to ask."
        if key == "e" and question.proposed is None:
            return "There is no proposed line to edit."
        if key in ("e", "Alt-Enter") and not self._ask.can_edit:
            return "Editing needs the extra `interactive`: pip install 'viva-eval[interactive]'."
        return None

    async def _edited(self, line: str) -> PersonChoice | str:
        try:
            text = _text(await self._ask("", "  edit > ", text=line))
        except EOFError:
            return ""
        if not text.strip():
            return ""
        return PersonChoice("accept") if text == line else PersonChoice("say", text.strip())

    async def _file_name(self) -> PersonChoice | str:
        try:
            name = await self._ask("", "  save in > ", f"Enter takes {self._file}")
        except EOFError:
            return ""
        self._file = name.strip() or self._file
        return PersonChoice("save", self._file)

    def _shown(self, question: PersonQuestion) -> str:
        """The agent's hint, the line that would be said and what comes with it; never more than fits above the prompt."""
        width, height = shutil.get_terminal_size((100, 24))
        room, most = max(width - len(_INDENT) - len(_UNDER) - 1, 20), max(height // 2, 3)
        last, proposed = question.state.last_turn, question.proposed
        lines: list[str] = []
        if self._hints and last is not None and last.reply is not None and last.reply.input_hint:
            lines += self._labelled("Hint:", last.reply.input_hint, room, 3)
        if proposed is not None:
            lines += self._labelled("Next:", proposed.message.text, room, most)
            lines += [self._note(f"with {each.source}", room) for each in proposed.message.attachments[:3]]
            if proposed.comment:
                lines.append(self._note(f"({proposed.comment})", room))
            if proposed.assertions:
                lines.append(self._note("then: " + ", ".join(map(assertion_label, proposed.assertions)), room))
        return "".join(f"{_INDENT}{line}\n" for line in lines)

    def _labelled(self, label: str, text: str, room: int, most: int) -> list[str]:
        first, *more = wrap_text(self.redact(text), room, most)
        return [f"{self._ink('cyan', label)} {first}", *(_UNDER + line for line in more)]

    def _note(self, text: str, room: int) -> str:
        return _UNDER + self._ink("dim", fit_line(self.redact(text), room))

    def _keys(self, question: PersonQuestion) -> str:
        """What can be typed here."""
        keys = ["type what to say"]
        if question.proposed is not None:
            keys = ["Enter to say it, or type something else", *(["e edit"] if self._ask.can_edit else [])]
        elif question.simulator is not None:
            keys = ["type what to say, or Enter to ask the simulator"]
        return " · ".join([*keys, "s save", "q stop", "? help"])


def _text(typed: str) -> str:
    """Bytes that are no UTF-8 come as lone surrogates, which no JSON can hold."""
    return typed.encode("utf-8", "replace").decode()


async def _interrupt() -> NoReturn:
    """Ctrl-C at a prompt means what it means everywhere: whoever listens for the signal ends the run."""
    signal.raise_signal(signal.SIGINT)
    await asyncio.Event().wait()
    raise AssertionError  # the run cancels this task


class _Prompt:
    """prompt_toolkit: editing, history, pasted text of several lines."""

    clears_input = True
    can_edit = True

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        keys = KeyBindings()

        @keys.add("escape", "enter")
        def new_line(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction] -- the binding keeps it
            event.current_buffer.insert_text("\n")

        class Said(InMemoryHistory):
            def append_string(self, string: str) -> None:
                if len(string) > 1:  # commands are not worth recalling
                    super().append_string(string)

        self._session: PromptSession[str] = PromptSession(
            history=Said(),
            key_bindings=keys,
            prompt_continuation=" " * len(_SIGN),
            erase_when_done=True,
            enable_suspend=True,
            reserve_space_for_menu=0,
        )

    async def __call__(self, above: str, sign: str, hint: str = "", text: str = "") -> str:
        from prompt_toolkit.formatted_text import ANSI

        return await self._session.prompt_async(
            ANSI(above + sign),
            placeholder=[("fg:ansibrightblack", hint)],
            default=text,
            handle_sigint=False,  # the run has a handler of its own
            set_exception_handler=False,
        )


class _Lines:
    """Lines as the terminal gives them. No thread: a question can be given up, and nothing keeps the process alive."""

    clears_input = False
    can_edit = False

    def __init__(self, ink: Palette) -> None:
        self._ink = ink
        self._ahead = b""
        """Typed, but not asked for yet: the answers to the questions that come."""

    async def __call__(self, above: str, sign: str, hint: str = "", text: str = "") -> str:
        print(above + (f"{_INDENT}{self._ink('dim', hint)}\n" if hint else "") + sign, end="", flush=True)
        try:
            line = await self._line(sys.stdin.fileno())
        except BaseException:
            print(flush=True)  # nobody pressed Enter: the line is still open
            raise
        return line.decode(errors="replace")

    async def _line(self, file: int) -> bytes:
        """One line, and no more: those behind it are answers to other questions."""
        while b"\n" not in self._ahead:
            await _readable(file)
            if not (typed := os.read(file, _MOST)):
                if not self._ahead:
                    raise EOFError
                break
            self._ahead += typed
        line, _, self._ahead = self._ahead.partition(b"\n")
        return line


async def _readable(file: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)

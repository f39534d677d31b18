"""The terminal prompt of a person who takes part in a conversation.

With prompt_toolkit (the extra `interactive`) a line can be edited, recalled and pasted, and the prompt disappears after
the answer. Without it, plain lines are read.
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
from viva.state.evaluation import format_assertion_label

_INDENT = "     "
_LABEL_INDENT = " " * len("Next: ")
_INPUT_PROMPT = "  > "
_MAX_READ_BYTES = 65536
_KEY_HELP = (
    ("Enter", "send the proposed message; without one, ask the simulator"),
    ("any text", "send this instead; the assertions stay"),
    ("e", "edit the proposed message"),
    ("a", "ask the simulator for a message"),
    ("s", "save the conversation so far as a case"),
    ("q, Ctrl-D", "stop this conversation"),
    ("Ctrl-C", "stop the run"),
    ("Alt-Enter", "start a new line; pasted text may have several lines"),
)
_LETTER_HINT = "To send the letter itself, type a space before it."


class LineReader(Protocol):
    """Shows some lines and reads one. Raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C."""

    clears_input: bool
    can_edit: bool

    async def __call__(self, above: str, prompt: str, hint: str = "", text: str = "") -> str: ...


class TerminalPrompt:
    """Asks the person at this terminal. `redact` removes secrets from what is shown."""

    def __init__(self, redact: Callable[[str], str], *, show_hints: bool = True) -> None:
        self._redact = redact
        self._show_hints = show_hints
        self._is_plain = os.environ.get("TERM", "dumb") == "dumb"
        self._palette = Palette(not self._is_plain and "NO_COLOR" not in os.environ)
        self._file = "saved.jsonl"

    @cached_property
    def _reader(self) -> LineReader:
        try:
            return _PlainReader(self._palette) if self._is_plain else _ToolkitReader()
        except ImportError:  # the extra is not installed
            return _PlainReader(self._palette)

    @property
    def clears_input(self) -> bool:
        """Whether the typed line disappears from the screen."""
        return self._reader.clears_input

    async def ask(self, question: PersonQuestion) -> PersonChoice:
        above = ""
        try:
            while isinstance(choice := await self._read_choice(question, above), str):
                above = choice
        except EOFError:
            return PersonChoice("stop")
        except KeyboardInterrupt:
            await _pass_interrupt_to_run()
        return choice

    def show_notice(self, text: str) -> None:
        print(_INDENT + escape_controls(self._redact(text)), flush=True)

    async def _read_choice(self, question: PersonQuestion, above: str) -> PersonChoice | str:
        """Return the choice or, to ask again, what to show above the question."""
        proposed, simulator = question.proposed, question.simulator
        typed = _replace_invalid_bytes(
            await self._reader(above + self._format_question(question), _INPUT_PROMPT, self._format_key_hints(question))
        )
        match typed.rstrip():
            case "":
                return PersonChoice("accept") if proposed else PersonChoice("simulate") if simulator else ""
            case "?":
                return self._format_key_help(question)
            case "q":
                return PersonChoice("stop")
            case "s":
                return await self._ask_where_to_save()
            case "a" | "e" as key if (why := self._explain_unavailable(key, question)) is not None:
                return f"{_INDENT}{why} {_LETTER_HINT}\n"
            case "a":
                return PersonChoice("simulate")
            case "e" if proposed:
                return await self._edit_message(proposed.message.text)
            case _:
                return PersonChoice("say", typed.strip())

    def _format_key_help(self, question: PersonQuestion) -> str:
        """Return the help text for the keys that can be used now."""
        keys = [(key, does) for key, does in _KEY_HELP if self._explain_unavailable(key, question) is None]
        return "".join(f"{_INDENT}{key:<15}{does}\n" for key, does in keys) + f"{_INDENT}{_LETTER_HINT}\n"

    def _explain_unavailable(self, key: str, question: PersonQuestion) -> str | None:
        """Return the reason why a key cannot be used now; None if it can be."""
        if key == "a" and question.simulator is None:
            return "There is no simulator to ask."
        if key == "e" and question.proposed is None:
            return "There is no proposed message to edit."
        if key in ("e", "Alt-Enter") and not self._reader.can_edit:
            return "Editing needs the extra `interactive`: pip install 'viva-eval[interactive]'."
        return None

    async def _edit_message(self, line: str) -> PersonChoice | str:
        try:
            text = _replace_invalid_bytes(await self._reader("", "  edit > ", text=line))
        except EOFError:
            return ""
        if not text.strip():
            return ""
        return PersonChoice("accept") if text == line else PersonChoice("say", text.strip())

    async def _ask_where_to_save(self) -> PersonChoice | str:
        try:
            name = await self._reader("", "  save in > ", f"Enter takes {self._file}")
        except EOFError:
            return ""
        self._file = name.strip() or self._file
        return PersonChoice("save", self._file)

    def _format_question(self, question: PersonQuestion) -> str:
        """Return the agent's hint and the proposed message with its attachments and assertions, cut to the screen."""
        width, height = shutil.get_terminal_size((100, 24))
        room, most = max(width - len(_INDENT) - len(_LABEL_INDENT) - 1, 20), max(height // 2, 3)
        last, proposed = question.state.last_turn, question.proposed
        lines: list[str] = []
        if self._show_hints and last is not None and last.reply is not None and last.reply.input_hint:
            lines += self._format_labelled_lines("Hint:", last.reply.input_hint, room, 3)
        if proposed is not None:
            lines += self._format_labelled_lines("Next:", proposed.message.text, room, most)
            lines += [self._format_dim_line(f"with {each.source}", room) for each in proposed.message.attachments[:3]]
            if proposed.comment:
                lines.append(self._format_dim_line(f"({proposed.comment})", room))
            if proposed.assertions:
                lines.append(
                    self._format_dim_line("then: " + ", ".join(map(format_assertion_label, proposed.assertions)), room)
                )
        return "".join(f"{_INDENT}{line}\n" for line in lines)

    def _format_labelled_lines(self, label: str, text: str, room: int, most: int) -> list[str]:
        first, *more = wrap_text(self._redact(text), room, most)
        return [f"{self._palette('cyan', label)} {first}", *(_LABEL_INDENT + line for line in more)]

    def _format_dim_line(self, text: str, room: int) -> str:
        return _LABEL_INDENT + self._palette("dim", fit_line(self._redact(text), room))

    def _format_key_hints(self, question: PersonQuestion) -> str:
        """Return a line with the possible keys."""
        keys = ["type a message"]
        if question.proposed is not None:
            keys = ["Enter to send it, or type another message", *(["e edit"] if self._reader.can_edit else [])]
        elif question.simulator is not None:
            keys = ["type a message, or Enter to ask the simulator"]
        return " · ".join([*keys, "s save", "q stop", "? help"])


def _replace_invalid_bytes(typed: str) -> str:
    """Replace bytes that are not UTF-8: they arrive as lone surrogates, which JSON cannot hold."""
    return typed.encode("utf-8", "replace").decode()


async def _pass_interrupt_to_run() -> NoReturn:
    """Pass Ctrl-C at a prompt on to the signal handler of the run."""
    signal.raise_signal(signal.SIGINT)
    await asyncio.Event().wait()
    raise AssertionError  # the run cancels this task


class _ToolkitReader:
    """Reads with prompt_toolkit: editing, history, pasted text with several lines."""

    clears_input = True
    can_edit = True

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        keys = KeyBindings()

        @keys.add("escape", "enter")
        def new_line(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction] -- used by the decorator
            event.current_buffer.insert_text("\n")

        class MessageHistory(InMemoryHistory):
            def append_string(self, string: str) -> None:
                if len(string) > 1:  # no single-letter commands
                    super().append_string(string)

        self._session: PromptSession[str] = PromptSession(
            history=MessageHistory(),
            key_bindings=keys,
            prompt_continuation=" " * len(_INPUT_PROMPT),
            erase_when_done=True,
            enable_suspend=True,
            reserve_space_for_menu=0,
        )

    async def __call__(self, above: str, prompt: str, hint: str = "", text: str = "") -> str:
        from prompt_toolkit.formatted_text import ANSI

        return await self._session.prompt_async(
            ANSI(above + prompt),
            placeholder=[("fg:ansibrightblack", hint)],
            default=text,
            handle_sigint=False,  # the run has its own handler
            set_exception_handler=False,
        )


class _PlainReader:
    """Reads plain lines. It uses no thread, so a question can be cancelled and nothing keeps the process alive."""

    clears_input = False
    can_edit = False

    def __init__(self, ink: Palette) -> None:
        self._palette = ink
        self._unread = b""
        """Typed ahead: answers to later questions."""

    async def __call__(self, above: str, prompt: str, hint: str = "", text: str = "") -> str:
        print(above + (f"{_INDENT}{self._palette('dim', hint)}\n" if hint else "") + prompt, end="", flush=True)
        try:
            line = await self._read_line(sys.stdin.fileno())
        except BaseException:
            print(flush=True)  # ends the open line
            raise
        return line.decode(errors="replace")

    async def _read_line(self, file: int) -> bytes:
        """Read one line; further lines answer later questions."""
        while b"\n" not in self._unread:
            await _wait_until_readable(file)
            if not (typed := os.read(file, _MAX_READ_BYTES)):
                if not self._unread:
                    raise EOFError
                break
            self._unread += typed
        line, _, self._unread = self._unread.partition(b"\n")
        return line


async def _wait_until_readable(file: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)

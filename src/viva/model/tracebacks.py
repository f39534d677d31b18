"""Errors in the user's own Python code as data: the frames of the user's files, and what the code printed in the turn.

Every function here accepts any exception, also one whose `str` raises or that is its own cause.
"""

import sysconfig
import traceback
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from viva.errors import to_valid_text
from viva.model.turn import Frame, Traceback

_MAX_ERRORS = 3
_MAX_FRAMES = 20
_MAX_ERROR_CHARS = 4_000
_MAX_SOURCE_CHARS = 300
_MAX_PRINTED_CHARS = 30_000
"""With these limits one traceback stays below 64 kB."""

_VIVA = str(Path(__file__).parents[1])
_INSTALLED = ("/site-packages/", "/dist-packages/")
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple({_PATHS["stdlib"], _PATHS["platstdlib"], _PATHS["purelib"], _PATHS["platlib"]})


class PrintedOutput:
    """Keeps the end of what the code of one turn prints."""

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._size = 0

    def add(self, text: str) -> None:
        self._pieces.append(text[-_MAX_PRINTED_CHARS:])
        self._size += len(self._pieces[-1])
        while self._size - len(self._pieces[0]) >= _MAX_PRINTED_CHARS:
            self._size -= len(self._pieces.popleft())

    @property
    def text(self) -> str:
        return "".join(tuple(self._pieces))[-_MAX_PRINTED_CHARS:]


printed_output: ContextVar[PrintedOutput | None] = ContextVar("printed_output", default=None)
"""Collects the prints of the current turn. Tasks and threads of the turn inherit it."""


def describe_error(raised: BaseException, where: str) -> list[Traceback]:
    """The error and its causes, first cause first, as Python prints them."""
    errors = list(_chain(raised))[:_MAX_ERRORS]
    printed = printed_output.get()
    described = [Traceback(where, error_text(error)[:_MAX_ERROR_CHARS], _frames(error)) for error in reversed(errors)]
    if printed is not None and printed.text:
        last = described[-1]
        described[-1] = Traceback(last.where, last.error, last.frames, to_valid_text(printed.text))
    return described


def is_users_error(raised: BaseException) -> bool:
    """Was the user's own code running when this was raised?"""
    return any(map(_is_users, traceback.extract_tb(raised.__traceback__)))


def error_text(raised: BaseException) -> str:
    """Type and message: `KeyError: 'missing'`."""
    try:
        text = to_valid_text(str(raised))
    except KeyboardInterrupt:
        raise
    except BaseException:  # its `str` raises
        text = ""
    return f"{type(raised).__name__}: {text}" if text else type(raised).__name__


def error_place(raised: BaseException) -> str:
    """Where the user's code raised it, as `agent.py:12`; empty if it was never raised."""
    frames = [frame for frame in _frames(raised) if not frame.file.startswith("<frozen ")]
    return f"{Path(frames[-1].file).name}:{frames[-1].line}" if frames else ""


def _chain(raised: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    error: BaseException | None = raised
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if error is not None and not is_users_error(error):
            return  # the caller of the user's code was handling an error of its own


def _frames(raised: BaseException) -> tuple[Frame, ...]:
    lines = traceback.extract_tb(raised.__traceback__)
    foreign = [line for line in lines if not line.filename.startswith(_VIVA)]
    users = [line for line in lines if _is_users(line)]
    return tuple(
        Frame(
            to_valid_text(line.filename),
            line.lineno or 0,
            line.name,
            to_valid_text(line.line or "")[:_MAX_SOURCE_CHARS],
        )
        for line in (users or foreign)[-_MAX_FRAMES:]
    )


def _is_users(line: traceback.FrameSummary) -> bool:
    file = line.filename
    return not file.startswith(("<frozen ", _VIVA, *_LIBRARIES)) and not any(folder in file for folder in _INSTALLED)

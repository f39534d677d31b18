"""Errors in the user's own Python code as data: the frames of the user's files, and what the code printed in the turn.

Every function here accepts any exception, also one whose `str` raises or that is its own cause.
"""

import sysconfig
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from viva.errors import is_ctrl_c, to_valid_text
from viva.model.ellipsis import ELLIPSIS, cut_end, cut_start
from viva.model.turn import Frame, Traceback

_MAX_CHAIN = 100
"""Longer chains of exceptions are not followed to their end."""
_MAX_ERRORS = 3
_MAX_FRAMES = 20
_MAX_ERROR_CHARS = 4_000
_MAX_SOURCE_CHARS = 300
_MAX_PRINTED_CHARS = 30_000
"""With these limits one traceback stays below 64 kB."""

_VIVA_FOLDER = str(Path(__file__).parents[1])
_INSTALLED_FOLDERS = ("/site-packages/", "/dist-packages/")
_PATHS = sysconfig.get_paths()
_LIBRARY_FOLDERS = tuple({_PATHS["stdlib"], _PATHS["platstdlib"], _PATHS["purelib"], _PATHS["platlib"]})


class PrintedOutput:
    """Keeps the end of what the code of one turn prints."""

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._size = 0
        self._is_cut = False

    def append_text(self, text: str) -> None:
        self._pieces.append(cut_start(text, _MAX_PRINTED_CHARS))
        self._size += len(self._pieces[-1])
        while self._size - len(self._pieces[0]) >= _MAX_PRINTED_CHARS:
            self._size -= len(self._pieces.popleft())
            self._is_cut = True

    @property
    def text(self) -> str:
        text = "".join((ELLIPSIS if self._is_cut else "", *tuple(self._pieces)))
        return cut_start(text, _MAX_PRINTED_CHARS)


printed_output: ContextVar[PrintedOutput | None] = ContextVar("printed_output", default=None)
"""Collects the prints of the current turn. Tasks and threads of the turn inherit it."""


def build_tracebacks(raised: BaseException, where: str) -> list[Traceback]:
    """The tracebacks of an error, its causes and the members of a group, first cause first, as Python prints them.

    Causes and members without a frame in the user's files are left out.
    """
    errors = [error for error in iterate_linked_errors(raised) if error is raised or was_raised_in_users_code(error)][
        :_MAX_ERRORS
    ]
    printed = printed_output.get()
    described = [
        Traceback(where, cut_end(format_error(error), _MAX_ERROR_CHARS), _extract_frames(error))
        for error in reversed(errors)
    ]
    if printed is not None and printed.text:
        last = described[-1]
        described[-1] = Traceback(last.where, last.error, last.frames, to_valid_text(printed.text))
    return described


def was_raised_in_users_code(raised: BaseException) -> bool:
    """Was the user's own code running when this was raised?"""
    return any(map(_is_users_frame, traceback.extract_tb(raised.__traceback__)))


def format_error(raised: BaseException) -> str:
    """Type and message: `KeyError: 'missing'`. A group also names its first members."""
    text = _format_single_error(raised)
    members = [_format_single_error(error) for error in _flatten_group(raised)[:_MAX_ERRORS]]
    return f"{text}: {'; '.join(members)}" if members else text


def _format_single_error(raised: BaseException) -> str:
    try:
        text = to_valid_text(str(raised))
    except BaseException as error:  # its `str` raises
        if is_ctrl_c(error):
            raise
        text = ""
    return f"{type(raised).__name__}: {text}" if text else type(raised).__name__


def iterate_linked_errors(raised: BaseException) -> Iterator[BaseException]:
    """The exception and all linked ones, nearest first, each once: chains can be cycles.

    Linked are causes, contexts (unless suppressed) and the members of groups.
    """
    return _iterate_reachable_errors(raised, lambda error: (*_get_group_members(error), *_get_linked_error(error)))


def _flatten_group(raised: BaseException) -> list[BaseException]:
    """The members of a group and of the groups in it, without these groups."""
    inner = list(_iterate_reachable_errors(raised, _get_group_members))[1:]
    return [error for error in inner if not _get_group_members(error)]


def _iterate_reachable_errors(
    raised: BaseException, list_next: Callable[[BaseException], Iterable[BaseException]]
) -> Iterator[BaseException]:
    seen: set[int] = set()
    queue = deque([raised])
    while queue and len(seen) < _MAX_CHAIN:
        error = queue.popleft()
        if id(error) not in seen:
            seen.add(id(error))
            yield error
            queue.extend(list_next(error))


def _get_group_members(error: BaseException) -> tuple[BaseException, ...]:
    """Reads the slot itself: a subclass may have a property of the same name, which may raise anything."""
    if not issubclass(type(error), BaseExceptionGroup):
        return ()
    slot: Any = BaseExceptionGroup.exceptions
    return slot.__get__(error)


def _get_linked_error(error: BaseException) -> tuple[BaseException, ...]:
    linked = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return () if linked is None else (linked,)


def format_error_place(raised: BaseException) -> str:
    """Where the user's code raised it, as `agent.py:12`; empty if it was never raised."""
    frames = [frame for frame in _extract_frames(raised) if not frame.file.startswith("<frozen ")]
    return f"{Path(frames[-1].file).name}:{frames[-1].line}" if frames else ""


def _extract_frames(raised: BaseException) -> tuple[Frame, ...]:
    lines = traceback.extract_tb(raised.__traceback__)
    foreign = [line for line in lines if not line.filename.startswith(_VIVA_FOLDER)]
    users = [line for line in lines if _is_users_frame(line)]
    return tuple(
        Frame(
            to_valid_text(line.filename),
            line.lineno or 0,
            line.name,
            cut_end(to_valid_text(line.line or ""), _MAX_SOURCE_CHARS),
        )
        for line in (users or foreign)[-_MAX_FRAMES:]
    )


def _is_users_frame(line: traceback.FrameSummary) -> bool:
    file = line.filename
    return not file.startswith(("<frozen ", _VIVA_FOLDER, *_LIBRARY_FOLDERS)) and not any(
        folder in file for folder in _INSTALLED_FOLDERS
    )

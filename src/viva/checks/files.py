"""Checks of the files that the agent left in its workspace. What a link of its own leads to elsewhere is not looked at."""

import os
import stat
from collections.abc import Awaitable, Sequence
from difflib import get_close_matches
from typing import ClassVar

from viva.checks.base import LocalCheck
from viva.checks.formatting import format_label, quote_value, truncate_text
from viva.concurrency.threads import run_in_thread
from viva.errors import CheckError
from viva.model.case import Feature
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext
from viva.workspace.safe_open import open_regular_file

_CHUNK = 1024 * 1024
"""Up to this size a file is read at once; larger ones piece by piece, in a thread."""


class _OfFile(LocalCheck, frozen=True, kw_only=True):
    """What is asked of one path of the workspace."""

    needs: ClassVar[frozenset[Feature]] = frozenset({"workspace"})
    path: str

    def __post_init__(self) -> None:
        check_workspace_path(self.path)

    def _place(self, context: CheckContext) -> str | Verdict:
        """Where it is, or why it cannot be there."""
        workspace = context.state.workspace
        if workspace is None:
            raise CheckError("there are no files to look at: the case has no workspace", deterministic=True)
        place = workspace.resolve_inside(self.path)
        if place is None:
            return self._failed("leads out of the workspace, so it was not followed")
        if not os.path.lexists(place):
            return self._failed(f"is not there{_near(self.path, workspace.path)}")
        return place

    def _failed(self, why: str) -> Verdict:
        return Verdict("failed", f"{quote_value(self.path)} {why}")


class FileExists(_OfFile, frozen=True, kw_only=True):
    """The file, or folder, is there."""

    @property
    def label(self) -> str:
        return format_label("file_exists", quote_value(self.path))

    def check(self, context: CheckContext) -> Verdict:
        place = self._place(context)
        if isinstance(place, Verdict):
            return place
        if self.path.endswith("/") and not os.path.isdir(place):  # noqa: PTH112 -- the workspace speaks in texts
            return self._failed("is no folder")
        return PASSED


class FileContains(_OfFile, frozen=True, kw_only=True):
    """The file holds the text, or all of several, whatever else is in it."""

    value: str | tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self._values or not all(self._values):
            raise ValueError("value is empty: every file contains it; write the text to look for")

    @property
    def _values(self) -> tuple[str, ...]:
        return (self.value,) if isinstance(self.value, str) else self.value

    @property
    def label(self) -> str:
        return format_label("file_contains", quote_value(self.path), " and ".join(map(quote_value, self._values)))

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        place = self._place(context)
        if isinstance(place, Verdict):
            return place
        try:
            about = os.stat(place)  # noqa: PTH116 -- the workspace speaks in texts
        except OSError as wrong:
            raise CheckError(f"{self.path}: {wrong.strerror}") from wrong
        if not stat.S_ISREG(about.st_mode):
            return self._failed("is a folder" if stat.S_ISDIR(about.st_mode) else "is no ordinary file")
        return self._look_into(place) if about.st_size <= _CHUNK else run_in_thread(self._look_into, place)

    def _look_into(self, place: str) -> Verdict:
        try:
            missing, begins = _missing(place, self._values)
        except OSError as wrong:
            raise CheckError(f"{self.path}: {wrong.strerror}") from wrong
        if not missing:
            return PASSED
        shown = (
            "a binary file" if b"\0" in begins else quote_value(begins.decode(errors="replace")) if begins else "empty"
        )
        reason = f"{' and '.join(map(quote_value, missing))} {'is' if len(missing) == 1 else 'are'} not in {quote_value(self.path)}: {shown}"
        actual = truncate_text(begins.decode(errors="replace")) if b"\0" not in begins else "a binary file"
        return Verdict("failed", reason, expected=self.value, actual=actual)


def check_workspace_path(path: str) -> None:
    """Raises ValueError for a path that is none of the workspace."""
    if not path or "\0" in path or path.startswith(("/", "~")) or ".." in path.split("/"):
        raise ValueError(f"path {path!r} must be relative to the workspace, without `..`")


def _missing(place: str, values: Sequence[str]) -> tuple[list[str], bytes]:
    """Which of the texts are not in the file, and how it begins. Never more than a piece of it is held."""
    wanted = {value: [value.encode(errors="surrogateescape")] for value in values}
    for value, ways in wanted.items():
        if "\n" in value:  # lines may end in two ways
            ways.append(value.replace("\r\n", "\n").replace("\n", "\r\n").encode(errors="surrogateescape"))
    overlap = max(len(way) for ways in wanted.values() for way in ways) - 1
    begins, piece = b"", b""
    with open(open_regular_file(place), "rb") as file:  # noqa: PTH123 -- it is open already
        while wanted and (read := file.read(_CHUNK)):
            begins = begins or read[:8192]
            piece += read
            wanted = {value: ways for value, ways in wanted.items() if not any(way in piece for way in ways)}
            piece = piece[-overlap:] if overlap else b""
    return list(wanted), begins


def _near(path: str, root: str) -> str:
    """What may have been meant instead, as the end of a sentence."""
    folder, name = os.path.split(path.rstrip("/"))
    try:
        near = get_close_matches(name, os.listdir(os.path.join(root, folder)), 3)  # noqa: PTH118, PTH208 -- as above
    except OSError:
        return "; nor is the folder that it should be in"
    return f"; there is {', '.join(map(quote_value, near))}" if near else ""

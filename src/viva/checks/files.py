"""Checks of the files in the agent's workspace. A link of the agent that leads out of it is not followed."""

import os
import stat
from collections.abc import Awaitable, Sequence
from typing import ClassVar

from viva.checks.base_check import LocalCheck, NonEmptyText, Validators
from viva.checks.formatting import cut_to_verdict_length, format_label, quote_value
from viva.concurrency.threads import run_in_thread
from viva.errors import CheckError
from viva.model.case import Feature
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext
from viva.text.similar_names import find_similar_names
from viva.workspace.safe_open import open_regular_file

_CHUNK_BYTES = 1024 * 1024
"""A larger file is read piece by piece, in a thread."""


def check_workspace_path(path: str) -> None:
    """Raises ValueError for a path that is not inside the workspace."""
    if not path or "\0" in path or path.startswith(("/", "~")) or ".." in path.split("/"):
        raise ValueError(f"path {path!r} must be relative to the workspace, without `..`")


class _FileCheck(LocalCheck, frozen=True, kw_only=True):
    needs: ClassVar[frozenset[Feature]] = frozenset({"workspace"})
    validators: ClassVar[Validators] = {"path": check_workspace_path}
    path: NonEmptyText
    """The path, relative to the workspace."""

    def _resolve_path(self, context: CheckContext) -> str | Verdict:
        """The real path, or the verdict if it is not there."""
        workspace = context.state.workspace
        if workspace is None:
            raise CheckError("there are no files to look at: the case has no workspace", deterministic=True)
        real_path = workspace.resolve_inside(self.path)
        if real_path is None:
            return self._create_failure("leads out of the workspace, so it was not followed")
        if not os.path.lexists(real_path) or os.path.islink(real_path):  # noqa: PTH114 -- links in a circle
            if os.path.islink(f"{workspace.path}/{self.path}"):  # noqa: PTH114 -- paths of a workspace are strings
                return self._create_failure("is a link that leads to no file")
            return self._create_failure(f"is not there{_suggest_similar_files(self.path, workspace.path)}")
        return real_path

    def _create_failure(self, reason: str) -> Verdict:
        return Verdict("failed", f"{quote_value(self.path)} {reason}")


class FileExists(_FileCheck, frozen=True, kw_only=True):
    """A file or folder is in the workspace."""

    @property
    def label(self) -> str:
        return format_label("file_exists", quote_value(self.path))

    def check(self, context: CheckContext) -> Verdict:
        real_path = self._resolve_path(context)
        if isinstance(real_path, Verdict):
            return real_path
        if self.path.endswith("/") and not os.path.isdir(real_path):  # noqa: PTH112 -- as above
            return self._create_failure("is not a folder")
        return PASSED


class FileContains(_FileCheck, frozen=True, kw_only=True):
    """A file of the workspace contains a text, or all of several."""

    value: str | tuple[str, ...]
    """The text, or a list of texts."""

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
        real_path = self._resolve_path(context)
        if isinstance(real_path, Verdict):
            return real_path
        try:
            info = os.stat(real_path)  # noqa: PTH116 -- as above
        except OSError as error:
            raise CheckError(f"{self.path}: {error.strerror}") from error
        if not stat.S_ISREG(info.st_mode):
            return self._create_failure("is a folder" if stat.S_ISDIR(info.st_mode) else "is not a regular file")
        return self._search(real_path) if info.st_size <= _CHUNK_BYTES else run_in_thread(self._search, real_path)

    def _search(self, real_path: str) -> Verdict:
        try:
            missing, head = _find_missing_texts(real_path, self._values)
        except OSError as error:
            raise CheckError(f"{self.path}: {error.strerror}") from error
        if not missing:
            return PASSED
        text = "a binary file" if b"\0" in head else head.decode(errors="replace")
        content = text if b"\0" in head else quote_value(text) if head else "empty"
        verb = "is" if len(missing) == 1 else "are"
        reason = f"{' and '.join(map(quote_value, missing))} {verb} not in {quote_value(self.path)}: {content}"
        return Verdict("failed", reason, expected=self.value, actual=cut_to_verdict_length(text))


def _find_missing_texts(path: str, values: Sequence[str]) -> tuple[list[str], bytes]:
    """The texts that are not in the file, and the beginning of the file. Reads one piece at a time."""
    missing = {value: [value.encode()] for value in values}
    for value, encodings in missing.items():
        if "\n" in value:  # lines may end in two ways
            encodings.append(value.replace("\r\n", "\n").replace("\n", "\r\n").encode())
    overlap = max(len(each) for encodings in missing.values() for each in encodings) - 1
    head, piece = b"", b""
    with open(open_regular_file(path), "rb") as file:  # noqa: PTH123 -- it is open already
        while missing and (read := file.read(_CHUNK_BYTES)):
            head = head or read[:8192]
            piece += read
            missing = {
                value: encodings for value, encodings in missing.items() if not any(each in piece for each in encodings)
            }
            piece = piece[-overlap:] if overlap else b""
    return list(missing), head


def _suggest_similar_files(path: str, root: str) -> str:
    """Similar names, as the end of a sentence."""
    folder, name = os.path.split(path.rstrip("/"))
    try:
        similar = find_similar_names(name, os.listdir(os.path.join(root, folder)))  # noqa: PTH118, PTH208 -- as above
    except OSError:
        return "; its folder does not exist either"
    return f"; there is {', '.join(map(quote_value, similar))}" if similar else ""

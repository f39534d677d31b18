"""Reads the bytes of input files and streams. Pipes, devices, binary and oversized files are refused."""

import io
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from viva.errors import BadInput

MAX_BYTES = 64 * 1024 * 1024
"""The largest single document."""
HEAD_BYTES = 4096
_CONTROL_BYTES = bytes({*range(9), *range(14, 32), 127} - {27})
"""Bytes that text files do not contain."""


class SpooledStream:
    """A stream that can be read only once, spooled to an unnamed temporary file."""

    def __init__(self, stream: BinaryIO) -> None:
        import shutil
        import tempfile

        self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- it lives as long as this does
        shutil.copyfileobj(stream, self._file)
        self._file.flush()

    def __del__(self) -> None:
        self._file.close()

    def open(self, _mode: str) -> BinaryIO:
        """A reader from the beginning, independent of other readers."""
        return io.BufferedReader(_IndependentReader(self._file.fileno()))


class _IndependentReader(io.RawIOBase):
    def __init__(self, file: int) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._file, len(buffer), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def check_regular_file(path: Path, file: str) -> None:
    """Refuse pipes, devices and folders: input files are read twice."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise BadInput.of(f"cannot be read: {error.strerror}", file) from error
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise BadInput.of("is a pipe, not a file; send cases through standard input: COMMAND | viva test -i -", file)
    if stat.S_ISDIR(mode):
        raise BadInput.of("is a folder, not a file", file)
    if not stat.S_ISREG(mode):
        raise BadInput.of("is a device, not a file; give a file of cases, or `-` for standard input", file)


def check_is_text(head: bytes, file: str) -> None:
    """Raises BadInput if the first bytes of a file show that it is not UTF-8 text."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadInput.of("is UTF-16 text; save the file as UTF-8", file, 1)
    head = head[:HEAD_BYTES]
    odd = len(head) - len(head.translate(None, _CONTROL_BYTES))
    if odd > len(head) * (0.3 if _is_utf8(head) else 0.05):
        raise BadInput.of("is a binary file; a suite is UTF-8 text: .jsonl, .json or .yaml", file, 1)


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # a character that is cut in two
    return True


def read_bytes(path: Path, file: str, max_bytes: int = 16 * MAX_BYTES) -> bytes:
    try:
        size = path.stat().st_size
        if size > max_bytes:
            what = f"is {size // 2**20} MB; at most {max_bytes // 2**20} MB. Write it as .jsonl, which is read line by line"
            raise BadInput.of(what, file)
        return path.read_bytes()
    except OSError as error:
        raise BadInput.of(f"cannot be read: {error.strerror}", file) from error

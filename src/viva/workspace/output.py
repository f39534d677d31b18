"""What a command prints, as it comes: from a pipe, or from a file that grows.

It ends when all who could write have closed it, or are known to be gone and all that they wrote was read: never after a
time of silence, which may be that of a busy event loop.
"""

import asyncio
import fcntl
import os
import sys
import tempfile
import termios
from contextlib import suppress

_CHUNK = 65536
_LOOK_S = 0.02
"""So often a file is looked at for what was added to it."""


class CommandOutput:
    """What a command prints on one of its streams. A subclass says how to take what is there, and how to wait for more."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._left: int | None = None
        self._more = asyncio.Event()

    async def read(self) -> bytes:
        """The next piece; empty at the end."""
        await asyncio.sleep(0)  # one who prints without end must not have the loop for itself
        while (piece := self.read_available()) is None:
            self._more.clear()
            await self._wait()
        return piece

    def read_available(self) -> bytes | None:
        """What is there now: None if nothing is, but more may come; empty at the end."""
        if self._fd < 0:
            return b""
        if self._left is None:
            return self._take(_CHUNK)
        piece = self._take(min(_CHUNK, self._left)) or b"" if self._left > 0 else b""
        self._left -= len(piece)
        return piece

    def finish(self) -> None:
        """All who could write are gone: it ends with what is there now, even if one of them got away and writes on."""
        self._left = self._available()
        self._more.set()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take(self, size: int) -> bytes | None:
        raise NotImplementedError

    def _available(self) -> int:
        raise NotImplementedError

    async def _wait(self) -> None:
        raise NotImplementedError


class _Pipe(CommandOutput):
    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        os.set_blocking(fd, False)

    def _take(self, size: int) -> bytes | None:
        try:
            return os.read(self._fd, size)
        except BlockingIOError:
            return None

    def _available(self) -> int:
        return int.from_bytes(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)), sys.byteorder)

    async def _wait(self) -> None:
        loop, fd = asyncio.get_running_loop(), self._fd
        loop.add_reader(fd, self._more.set)
        try:
            await self._more.wait()
        finally:
            loop.remove_reader(fd)


class _File(CommandOutput):
    """A file that grows. Nothing tells that it did, so it is looked at now and then. In the end no more than the limit is read:
    its owner can make it as large as no disk is.
    """

    def __init__(self, fd: int, limit: int) -> None:
        super().__init__(fd)
        self._limit = limit
        self._at = 0

    def _take(self, size: int) -> bytes | None:
        piece = os.pread(self._fd, size, self._at)
        self._at += len(piece)
        return piece or None

    def _available(self) -> int:
        return min(os.fstat(self._fd).st_size, self._limit + 1) - self._at

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await self._more.wait()


def create_pipe() -> tuple[CommandOutput, int]:
    """The end that is read here, and the one that the command writes to."""
    ours, theirs = os.pipe()
    return _Pipe(ours), theirs


def create_output_file(folder: str | None, limit: int) -> tuple[CommandOutput, int]:
    """A file without a name, in the folder where it has to be in one. All that the command starts write at its end."""
    if sys.platform == "linux":
        ours = os.memfd_create("stdout")
    else:
        with tempfile.TemporaryFile(dir=folder) as file:
            ours = os.dup(file.fileno())
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_APPEND)
    return _File(ours, limit), os.dup(ours)

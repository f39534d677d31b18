"""The output of a command as it arrives, from a pipe or from a growing file.

It ends when all writers have closed it, or when they are gone and everything is read. Silence does not end it: a busy
event loop may be the cause.
"""

import asyncio
import fcntl
import os
import sys
import tempfile
import termios
from contextlib import suppress

_CHUNK = 65536
_POLL_S = 0.02
"""How often a file is checked for new content."""


class CommandOutput:
    """One output stream of a command. A subclass reads what is available and waits for more."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._bytes_left: int | None = None
        self._new_data = asyncio.Event()

    async def read(self) -> bytes:
        """Return the next chunk; empty at the end."""
        await asyncio.sleep(0)  # endless output must not block the loop
        while (chunk := self.read_available()) is None:
            self._new_data.clear()
            await self._wait_for_data()
        return chunk

    def read_available(self) -> bytes | None:
        """Return the available bytes: None if there are none yet, empty at the end of the stream."""
        if self._fd < 0:
            return b""
        if self._bytes_left is None:
            return self._read_chunk(_CHUNK)
        chunk = self._read_chunk(min(_CHUNK, self._bytes_left)) or b"" if self._bytes_left > 0 else b""
        self._bytes_left -= len(chunk)
        return chunk

    def finish(self) -> None:
        """End the stream after the bytes that are available now, even if an escaped process goes on writing."""
        self._bytes_left = self._count_available()
        self._new_data.set()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_chunk(self, size: int) -> bytes | None:
        raise NotImplementedError

    def _count_available(self) -> int:
        raise NotImplementedError

    async def _wait_for_data(self) -> None:
        raise NotImplementedError


class _PipeOutput(CommandOutput):
    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        os.set_blocking(fd, False)

    def _read_chunk(self, size: int) -> bytes | None:
        try:
            return os.read(self._fd, size)
        except BlockingIOError:
            return None

    def _count_available(self) -> int:
        return int.from_bytes(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)), sys.byteorder)

    async def _wait_for_data(self) -> None:
        loop, fd = asyncio.get_running_loop(), self._fd
        loop.add_reader(fd, self._new_data.set)
        try:
            await self._new_data.wait()
        finally:
            loop.remove_reader(fd)


class _PolledFileOutput(CommandOutput):
    """A growing file, which is polled. At the end no more than the limit is read: a sparse file can be larger than any disk."""

    def __init__(self, fd: int, limit: int) -> None:
        super().__init__(fd)
        self._limit = limit
        self._at = 0

    def _read_chunk(self, size: int) -> bytes | None:
        chunk = os.pread(self._fd, size, self._at)
        self._at += len(chunk)
        return chunk or None

    def _count_available(self) -> int:
        return min(os.fstat(self._fd).st_size, self._limit + 1) - self._at

    async def _wait_for_data(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                await self._new_data.wait()


def create_pipe() -> tuple[CommandOutput, int]:
    """Return the output, and the descriptor that the command writes to."""
    read_end, write_end = os.pipe()
    return _PipeOutput(read_end), write_end


def create_output_file(folder: str | None, limit: int) -> tuple[CommandOutput, int]:
    """Return an unnamed file as output, and a descriptor for the command. All its processes append to it."""
    if sys.platform == "linux":
        read_end = os.memfd_create("stdout")
    else:
        with tempfile.TemporaryFile(dir=folder) as file:
            read_end = os.dup(file.fileno())
    fcntl.fcntl(read_end, fcntl.F_SETFL, os.O_APPEND)
    return _PolledFileOutput(read_end, limit), os.dup(read_end)

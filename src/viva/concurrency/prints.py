"""Captures what user code prints in each turn; `model.tracebacks.printed_output` holds it.

The text is still printed. Output of subprocesses and foreign threads belongs to no turn.
"""

import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, TextIO

from viva.model.tracebacks import printed_output

_lock = threading.Lock()
_users = 0


class _Tee:
    """A text stream that also writes to the current turn's output."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        output = printed_output.get()
        if output is not None:
            output.add(text)
        return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def capture_prints() -> Generator[None]:
    """Captures prints while it is open. Several may be open in parallel, in any thread."""
    global _users  # noqa: PLW0603 -- stdout and stderr are global, too
    with _lock:
        _users += 1
        if _users == 1:
            _replace_streams()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _restore_streams()


def _replace_streams() -> None:
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is not None:
            setattr(sys, name, _Tee(stream))


def _restore_streams() -> None:
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), _Tee):  # else other code has replaced it, and will restore ours
            setattr(sys, name, stream.stream)

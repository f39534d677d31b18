"""Captures what user code prints in each turn; `model.tracebacks.printed_output` holds it.

The text is still printed. Output of subprocesses and foreign threads belongs to no turn.
"""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, TextIO

from viva.concurrency.process_changes import SharedChange
from viva.model.tracebacks import printed_output


class _CapturingStream:
    """A text stream that also writes to the current turn's output."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        output = printed_output.get()
        if output is not None:
            output.append_text(text)
        return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _replace_streams() -> None:
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is not None:
            setattr(sys, name, _CapturingStream(stream))


def _restore_streams() -> None:
    for name in ("stdout", "stderr"):
        if isinstance(
            stream := getattr(sys, name), _CapturingStream
        ):  # else other code has replaced it, and will restore ours
            setattr(sys, name, stream.stream)


_change = SharedChange(_replace_streams, _restore_streams)


def capture_prints() -> AbstractContextManager[None]:
    """Captures prints inside the block. Several blocks may be open in parallel, in any thread."""
    return _change.keep()

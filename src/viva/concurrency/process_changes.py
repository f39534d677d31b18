"""Changes of the whole process that several runs share: made when the first run starts, undone when the last one ends.

There are two: `garbage` and `prints`.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


class SharedChange:
    """A change that is in force while at least one block is open, in any thread."""

    def __init__(self, apply: Callable[[], None], undo: Callable[[], None]) -> None:
        self._apply = apply
        self._undo = undo
        self._lock = threading.Lock()
        self._open_blocks = 0

    @contextmanager
    def keep(self) -> Generator[None]:
        """Keeps the change in force inside the block."""
        with self._lock:
            self._open_blocks += 1
            if self._open_blocks == 1:
                self._apply()
        try:
            yield
        finally:
            with self._lock:
                self._open_blocks -= 1
                if self._open_blocks == 0:
                    self._undo()

"""Changes of the whole process that several runs share: made when the first run starts, undone when the last one ends.

One of them is here: rarer garbage collection. The other is in `prints`.
"""

import gc
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager


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


_MIN_GC_THRESHOLD = 20_000
"""New objects until the next collection; Python's own 700 would collect several times for each conversation."""

_gc_settings_before: tuple[int, int, int] = (0, 0, 0)
_has_frozen_objects = False


def _change_gc_settings() -> None:
    global _gc_settings_before, _has_frozen_objects  # noqa: PLW0603 -- the collector is global, too
    _gc_settings_before = gc.get_threshold()
    # Objects that the caller has frozen could not be told from ours.
    _has_frozen_objects = not gc.get_freeze_count()
    if _has_frozen_objects:
        gc.freeze()
    if _gc_settings_before[0]:  # 0 means that the caller wants no collections
        gc.set_threshold(max(_gc_settings_before[0], _MIN_GC_THRESHOLD), *_gc_settings_before[1:])


def _restore_gc_settings() -> None:
    gc.set_threshold(*_gc_settings_before)
    if _has_frozen_objects:
        gc.unfreeze()


_gc_change = SharedChange(_change_gc_settings, _restore_gc_settings)


def collect_less_often() -> AbstractContextManager[None]:
    """Excludes objects that exist already, such as modules and cases, from garbage collection, and makes it rarer.

    Several blocks may be open in parallel, in any thread; the last one to close restores the caller's settings.
    """
    return _gc_change.keep()

"""Settings of Python's garbage collector during a run."""

import gc
from contextlib import AbstractContextManager

from viva.concurrency.process_changes import SharedChange

_THRESHOLD = 20_000
"""New objects until the next collection; Python's own 700 would collect several times for each conversation."""

_MAX_GROWTH = 1.25
"""Python itself starts a full collection when a quarter of the objects is new."""

_before: tuple[int, int, int] = (0, 0, 0)
_is_frozen = False
_kept_count = 0
"""How many objects there were after the last full collection."""


def _change_settings() -> None:
    global _before, _is_frozen  # noqa: PLW0603 -- the collector is global, too
    _before = gc.get_threshold()
    _is_frozen = not gc.get_freeze_count()  # else the caller has frozen objects, and they could not be told apart
    if _is_frozen:
        _freeze()
    if _before[0]:  # 0 means that the caller wants no collections
        gc.set_threshold(max(_before[0], _THRESHOLD), *_before[1:])


def _freeze() -> None:
    """Freezes all objects; collects garbage first if there are many new ones.

    Freezing resets the counters of the collector. Without the collection here, a process with many short runs would never
    collect the garbage that they leave.
    """
    global _kept_count  # noqa: PLW0603 -- the collector is global, too
    gc.freeze()
    count = gc.get_freeze_count()
    if _kept_count and count > _kept_count * _MAX_GROWTH and _before[0] and gc.isenabled():
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _kept_count = gc.get_freeze_count()
    elif not _kept_count or count < _kept_count:
        _kept_count = count


def _restore_settings() -> None:
    gc.set_threshold(*_before)
    if _is_frozen:
        gc.unfreeze()


_change = SharedChange(_change_settings, _restore_settings)


def collect_less_often() -> AbstractContextManager[None]:
    """Excludes objects that exist already, such as modules and cases, from garbage collection, and makes it rarer.

    Several blocks may be open in parallel, in any thread; the last one to close restores the caller's settings.
    """
    return _change.keep()

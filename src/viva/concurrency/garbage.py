"""Settings of Python's garbage collector during a run."""

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_THRESHOLD = 20_000
"""New objects until the next collection; Python's own 700 would collect several times for each conversation."""

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] = (0, 0, 0)
_is_frozen = False


@contextmanager
def collect_less_often() -> Generator[None]:
    """Leaves what exists already out of collections, such as modules and cases, and makes them rarer. Several may be open in
    parallel, in any thread; the last one to close restores the caller's settings.
    """
    global _users  # noqa: PLW0603 -- the collector is global, too
    with _lock:
        _users += 1
        if _users == 1:
            _change_settings()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _restore_settings()


def _change_settings() -> None:
    global _before, _is_frozen  # noqa: PLW0603 -- as above
    _before = gc.get_threshold()
    _is_frozen = not gc.get_freeze_count()  # else the caller has frozen objects, and they could not be told apart
    if _is_frozen:
        gc.freeze()
    if _before[0]:  # 0 means that the caller wants no collections
        gc.set_threshold(max(_before[0], _THRESHOLD), *_before[1:])


def _restore_settings() -> None:
    gc.set_threshold(*_before)
    if _is_frozen:
        gc.unfreeze()

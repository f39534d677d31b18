"""Raises the limit on open files: each parallel conversation needs a connection or pipes of its own."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

_FILES_PER_TRIAL = 2
_OTHER_FILES = 200
"""The journal, reports, sockets of the event loop, and what the caller has open."""


def compute_file_limit(parallel: int, soft: int, hard: int) -> tuple[int, str | None]:
    """The limit on open files to set for this many parallel trials, and a warning if the hard limit is too low."""
    needed = parallel * _FILES_PER_TRIAL + _OTHER_FILES
    if soft >= needed:
        return soft, None
    limit = min(needed, hard)
    if limit >= parallel + _OTHER_FILES:
        return limit, None
    return limit, (
        f"{parallel} parallel conversations need about {needed} open files, but this system allows {hard}; "
        f"lower --parallel, or raise the limit with `ulimit -Hn {needed}`"
    )


@contextmanager
def raise_file_limit(parallel: int) -> Generator[str | None]:
    """Raises the limit on open files of this process inside the block. Yields a warning if the system does not allow enough."""
    if sys.platform == "win32":  # it has no such limit
        yield None
        return
    from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

    before = getrlimit(RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if value == RLIM_INFINITY else value for value in before)
    limit, warning = compute_file_limit(parallel, soft, hard)
    if limit == soft:
        yield warning
        return
    setrlimit(RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield warning
    finally:
        setrlimit(RLIMIT_NOFILE, before)

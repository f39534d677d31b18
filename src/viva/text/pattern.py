"""Regular expressions that users write: their size and the time of each search have limits, so no pattern can hang a run."""

import re
from typing import Any

from viva.errors import CheckError
from viva.text.text_cache import cache_short_texts

TIMEOUT_S = 0.5
MAX_PARTS = 200_000
"""A pattern with counted repeats written out may have so many parts; compiling them takes a fraction of a second."""
_PIECES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,\d*)?\}|.", re.DOTALL)


@cache_short_texts(4096, 2000)
def compile_pattern(pattern: str) -> Any:
    """The compiled pattern, or ValueError with what is wrong with it."""
    import regex  # loaded with the first pattern, not with every run

    if "{" in pattern and _parts(pattern) > MAX_PARTS:
        raise ValueError(f"{pattern!r} repeats too much: written out it has more than {MAX_PARTS:,} parts")
    try:
        return regex.compile(pattern, cache_pattern=False)  # the cache above has a limit in bytes, theirs has none
    except regex.error as wrong:
        raise ValueError(f"{pattern!r} is no regular expression: {wrong}") from wrong
    except (MemoryError, OverflowError, RecursionError) as wrong:
        raise ValueError(f"{pattern[:60]!r} is too large a regular expression") from wrong


def _parts(pattern: str) -> int:
    """About how many parts a pattern has when each is written as often as it must at least occur: what it costs to compile."""
    open_groups, latest = [0], 0
    for piece in _PIECES.finditer(pattern):
        if piece[1] is not None:
            open_groups[-1] += latest * (min(int(piece[1][:9]), MAX_PARTS + 1) - 1) if piece[1].strip("0") else 0
            continue
        if piece[0] == "(":
            open_groups.append(0)
            continue
        latest = open_groups.pop() if piece[0] == ")" and len(open_groups) > 1 else 1
        open_groups[-1] += latest
    return sum(open_groups)


def search(pattern: str, text: str) -> bool:
    """Does the pattern match somewhere in the text? CheckBroken when that cannot be told in time."""
    try:
        return compile_pattern(pattern).search(text, timeout=TIMEOUT_S) is not None
    except TimeoutError:
        raise CheckError(f"pattern {pattern!r} took more than {TIMEOUT_S:g}s: make it simpler") from None

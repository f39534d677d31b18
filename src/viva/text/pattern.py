"""Regular expressions: those of users, with limits on size and search time, so that no pattern can hang a run; and our own,
compiled on first use.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Any, TypeVar

from viva.errors import CheckError
from viva.model.ellipsis import cut_end

T = TypeVar("T")

PATTERN_TIMEOUT_S = 0.5
MAX_PATTERN_PARTS = 200_000
"""The maximum number of parts with counted repeats written out; compiling that many takes a fraction of a second."""
_PATTERN_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,\d*)?\}|.", re.DOTALL)


class LazyPattern:
    """A regular expression that is compiled on first use: most are never used in a run, and compiling takes long.

    `fits` is `match` for a pattern that starts with `^`, else `search`.
    """

    match: Callable[..., re.Match[str] | None]
    fits: Callable[[str], re.Match[str] | None]
    fullmatch: Callable[[str], re.Match[str] | None]
    search: Callable[..., re.Match[str] | None]
    split: Callable[[str], list[Any]]
    sub: Callable[[str | Callable[[re.Match[str]], str], str], str]
    findall: Callable[[str], list[Any]]
    finditer: Callable[[str], Iterator[re.Match[str]]]

    def __init__(self, source: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        self.source = source
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        """Computes an attribute on first access; then it is a plain attribute."""
        if name.startswith("__"):
            raise AttributeError(name)
        method = ("match" if self.source.startswith("^") else "search") if name == "fits" else name
        bound_method = getattr(self._compile(), method)
        setattr(self, name, bound_method)
        return bound_method

    def _compile(self) -> re.Pattern[str]:
        return re.compile(self.source, self.flags)


def cache_short_texts(entries: int, max_chars: int) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Caches the results for the last `entries` texts of at most `max_chars` characters: its size in bytes is limited."""

    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        cached = lru_cache(maxsize=entries)(function)

        @wraps(function)
        def call(text: str) -> T:
            return cached(text) if len(text) <= max_chars else function(text)

        return call

    return decorate


@cache_short_texts(4096, 2000)
def compile_pattern(pattern: str) -> Any:
    """Compiles a pattern; raises ValueError, with the mistake, for an invalid or too large one."""
    import regex  # imported with the first pattern, to keep start-up fast

    if "{" in pattern and _estimate_parts(pattern) > MAX_PATTERN_PARTS:
        raise ValueError(f"{pattern!r} repeats too much: written out it has more than {MAX_PATTERN_PARTS:,} parts")
    try:
        return regex.compile(pattern, cache_pattern=False)  # our own cache has a limit in bytes
    except regex.error as wrong:
        raise ValueError(f"{pattern!r} is not a regular expression: {wrong}") from wrong
    except (MemoryError, OverflowError, RecursionError) as wrong:
        raise ValueError(f"{cut_end(pattern, 60)!r} is too large for a regular expression") from wrong


def _estimate_parts(pattern: str) -> int:
    """The approximate number of parts with minimum repeats written out: the cost of compiling."""
    open_groups, latest = [0], 0
    for piece in _PATTERN_PIECE.finditer(pattern):
        if piece[1] is not None:
            open_groups[-1] += (
                latest * (min(int(piece[1][:9]), MAX_PATTERN_PARTS + 1) - 1) if piece[1].strip("0") else 0
            )
            continue
        if piece[0] == "(":
            open_groups.append(0)
            continue
        latest = open_groups.pop() if piece[0] == ")" and len(open_groups) > 1 else 1
        open_groups[-1] += latest
    return sum(open_groups)


def has_pattern_match(pattern: str, text: str) -> bool:
    """Does the pattern match anywhere in the text? Raises CheckError if the search takes too long."""
    try:
        return compile_pattern(pattern).search(text, timeout=PATTERN_TIMEOUT_S) is not None
    except TimeoutError:
        raise CheckError(f"pattern {pattern!r} took more than {PATTERN_TIMEOUT_S:g}s: make it simpler") from None

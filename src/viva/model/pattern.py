"""Regular expressions that users write: each search has a time limit, so no pattern can hang a run."""

from functools import lru_cache
from typing import Any

from viva.errors import CheckBroken

TIMEOUT_S = 0.5


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> Any:
    """The compiled pattern, or ValueError with what is wrong with it."""
    import regex  # loaded with the first pattern, not with every run

    try:
        return regex.compile(pattern)
    except regex.error as wrong:
        raise ValueError(f"{pattern!r} is no regular expression: {wrong}") from wrong


def search(pattern: str, text: str) -> bool:
    """Does the pattern match somewhere in the text? CheckBroken when that cannot be told in time."""
    try:
        return compile_pattern(pattern).search(text, timeout=TIMEOUT_S) is not None
    except TimeoutError:
        raise CheckBroken(f"pattern {pattern!r} took more than {TIMEOUT_S:g}s: make it simpler") from None

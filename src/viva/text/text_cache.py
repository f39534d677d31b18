"""A cache for functions of one text that may be anybody's: long texts are not kept, so its size has a limit in bytes."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")


def cache_short_texts(entries: int, max_chars: int) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Keeps the results for the last `entries` texts that are at most `max_chars` long."""

    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        cached = lru_cache(maxsize=entries)(function)

        @wraps(function)
        def call(text: str) -> T:
            return cached(text) if len(text) <= max_chars else function(text)

        return call

    return decorate

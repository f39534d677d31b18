"""A cache for functions of one foreign text. Long texts are not cached, so its size in bytes is limited."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")


def cache_short_texts(entries: int, max_chars: int) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Caches the results for the last `entries` texts of at most `max_chars` characters."""

    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        cached = lru_cache(maxsize=entries)(function)

        @wraps(function)
        def call(text: str) -> T:
            return cached(text) if len(text) <= max_chars else function(text)

        return call

    return decorate

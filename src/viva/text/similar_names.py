"""Names that a mistyped one may mean, for `did you mean ...?`."""

import re
from collections.abc import Iterable

MIN_RATIO = 0.7
"""Share of equal characters: `contians` and `contains` have 0.88, `nope` and `shop` 0.5."""
_MAX_DISTANCE = 0.1
"""How much lower than the best similarity that of another name may be."""
_MAX_LENGTH = 200


def find_similar_names(name: str, known: Iterable[str], limit: int = 3, min_ratio: float = MIN_RATIO) -> list[str]:
    """The known names that are similar to `name`, best first; those that are much less similar than the best are left out.

    Similar names differ in a few characters or in their order, or have `name` as their first or last word.
    """
    if not name or len(name) > _MAX_LENGTH:
        return []
    rated = [(_rate_similarity(name.casefold(), each.casefold(), min_ratio), each) for each in known]
    best = max((ratio for ratio, _ in rated), default=0.0)
    near = sorted((-ratio, each) for ratio, each in rated if ratio >= max(min_ratio, best - _MAX_DISTANCE))
    return [each for _, each in near[:limit]]


def _rate_similarity(name: str, known: str, min_ratio: float) -> float:
    from difflib import SequenceMatcher  # only messages about mistakes need it

    if sorted(name) == sorted(known):
        return 1.0
    matcher = SequenceMatcher(None, known, name, autojunk=False)
    is_near = matcher.real_quick_ratio() >= min_ratio and matcher.quick_ratio() >= min_ratio
    is_word = re.search(rf"^{re.escape(name)}[._-]|[._-]{re.escape(name)}$", known) is not None
    return max(matcher.ratio() if is_near else 0.0, min_ratio if is_word else 0.0)

"""What it means for two JSON values to be equal, and for one to be a part of the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from viva.checks.wording import quoted
from viva.model.pattern import search
from viva.model.talk import to_text

JsonType = Literal["string", "number", "integer", "boolean", "array", "object", "null"]
PatternOf = Callable[[Any], str | None]


def equal(one: Any, other: Any) -> bool:
    """Deep and type-strict: `"5"` is not 5 and `true` is not 1, but 1 is 1.0; the order of keys does not matter."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _equal_objects(cast("Mapping[Any, Any]", one), cast("Mapping[Any, Any]", other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        ones, others = cast("Sequence[Any]", one), cast("Sequence[Any]", other)
        return len(ones) == len(others) and all(map(equal, ones, others))
    return type(one) is type(other) and bool(one == other)


def _equal_objects(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    return len(one) == len(other) and all(key in other and equal(value, other[key]) for key, value in one.items())


def json_type(value: Any) -> JsonType:
    """The type of a value in the words of JSON Schema: 1.0 is an integer, as 1 is."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case _:
            return "object"


def no_pattern(_value: Any) -> str | None:
    """For a comparison in which every value stands for itself."""
    return None


def misfit(part: Any, whole: Any, pattern_of: PatternOf = no_pattern, at: str = "$") -> str | None:
    """What keeps `part` from being a part of `whole`, and where; None if it is one.

    Of an object only the given keys are compared; a list has to have the same length, its items are compared one by
    one. `pattern_of` tells which parts are patterns for a value rather than the value itself.
    """
    if (pattern := pattern_of(part)) is not None:
        fits = whole is not None and search(pattern, to_text(whole))
        return None if fits else f"{at}: {quoted(whole)} does not match {quoted(pattern)}"
    if isinstance(part, Mapping) and isinstance(whole, Mapping):
        return _missing_key(cast("Mapping[Any, Any]", part), cast("Mapping[Any, Any]", whole), pattern_of, at)
    if isinstance(part, list | tuple) and isinstance(whole, list | tuple):
        return _other_item(cast("Sequence[Any]", part), cast("Sequence[Any]", whole), pattern_of, at)
    return None if equal(part, whole) else f"{at}: expected {quoted(part)}, was {quoted(whole)}"


def _missing_key(part: Mapping[Any, Any], whole: Mapping[Any, Any], pattern_of: PatternOf, at: str) -> str | None:
    for key, value in part.items():
        if key not in whole:
            return f"{at}.{key} is missing"
        if (why := misfit(value, whole[key], pattern_of, f"{at}.{key}")) is not None:
            return why
    return None


def _other_item(part: Sequence[Any], whole: Sequence[Any], pattern_of: PatternOf, at: str) -> str | None:
    if len(part) != len(whole):
        return f"{at}: expected {len(part)} items, was {len(whole)}: {quoted(whole)}"
    for index, (value, found) in enumerate(zip(part, whole, strict=True)):
        if (why := misfit(value, found, pattern_of, f"{at}[{index}]")) is not None:
            return why
    return None


def patterns_in(value: Any, pattern_of: PatternOf) -> Iterator[str]:
    """All patterns that stand in a value, so that a bad one is found before anything runs."""
    if (pattern := pattern_of(value)) is not None:
        yield pattern
    elif isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            yield from patterns_in(item, pattern_of)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from patterns_in(item, pattern_of)

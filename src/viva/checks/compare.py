"""What it means for two JSON values to be equal, and for one to be a part of the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from viva.checks.formatting import quote_value
from viva.state.trial_state import to_text
from viva.text.pattern import search

JsonType = Literal["string", "number", "integer", "boolean", "array", "object", "null"]
GetPattern = Callable[[Any], str | None]


def is_same_json(left: Any, right: Any) -> bool:
    """Deep and type-strict: `"5"` is not 5 and `true` is not 1, but 1 is 1.0; the order of keys does not matter."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return _equal_objects(cast("Mapping[Any, Any]", left), cast("Mapping[Any, Any]", right))
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        ones, others = cast("Sequence[Any]", left), cast("Sequence[Any]", right)
        return len(ones) == len(others) and all(map(is_same_json, ones, others))
    return type(left) is type(right) and bool(left == right)


def _equal_objects(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    return len(one) == len(other) and all(
        key in other and is_same_json(value, other[key]) for key, value in one.items()
    )


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


def find_mismatch(part: Any, whole: Any, get_pattern: GetPattern = no_pattern, path: str = "$") -> str | None:
    """What keeps `part` from being a part of `whole`, and where; None if it is one.

    Of an object only the given keys are compared; a list has to have the same length, its items are compared one by
    one. `pattern_of` tells which parts are patterns for a value rather than the value itself.
    """
    if (pattern := get_pattern(part)) is not None:
        fits = whole is not None and search(pattern, to_text(whole))
        return None if fits else f"{path}: {quote_value(whole)} does not match {quote_value(pattern)}"
    if isinstance(part, Mapping) and isinstance(whole, Mapping):
        return _missing_key(cast("Mapping[Any, Any]", part), cast("Mapping[Any, Any]", whole), get_pattern, path)
    if isinstance(part, list | tuple) and isinstance(whole, list | tuple):
        return _other_item(cast("Sequence[Any]", part), cast("Sequence[Any]", whole), get_pattern, path)
    return None if is_same_json(part, whole) else f"{path}: expected {quote_value(part)}, was {quote_value(whole)}"


def _missing_key(part: Mapping[Any, Any], whole: Mapping[Any, Any], pattern_of: GetPattern, at: str) -> str | None:
    for key, value in part.items():
        if key not in whole:
            return f"{at}.{key} is missing"
        if (why := find_mismatch(value, whole[key], pattern_of, f"{at}.{key}")) is not None:
            return why
    return None


def _other_item(part: Sequence[Any], whole: Sequence[Any], pattern_of: GetPattern, at: str) -> str | None:
    if len(part) != len(whole):
        return f"{at}: expected {len(part)} items, was {len(whole)}: {quote_value(whole)}"
    for index, (value, found) in enumerate(zip(part, whole, strict=True)):
        if (why := find_mismatch(value, found, pattern_of, f"{at}[{index}]")) is not None:
            return why
    return None


def list_patterns(value: Any, get_pattern: GetPattern) -> Iterator[str]:
    """All patterns that stand in a value, so that a bad one is found before anything runs."""
    if (pattern := get_pattern(value)) is not None:
        yield pattern
    elif isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            yield from list_patterns(item, get_pattern)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from list_patterns(item, get_pattern)

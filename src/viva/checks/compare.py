"""Compares JSON values: are two equal, does one contain the other?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from viva.checks.formatting import quote_value
from viva.state.trial_state import to_text
from viva.text.pattern import has_pattern_match

JsonType = Literal["string", "number", "integer", "boolean", "array", "object", "null"]
GetPattern = Callable[[Any], str | None]
"""Returns the pattern of a value that stands for one, such as `{"matches": "..."}`; None for any other value."""


def is_same_json(left: Any, right: Any) -> bool:
    """Are two values equal, at any depth? Types count: `"5"` is not 5 and `true` is not 1, but 1 is 1.0; the order of keys does not matter."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        other = cast("Mapping[Any, Any]", right)
        items = cast("Mapping[Any, Any]", left).items()
        return len(items) == len(other) and all(key in other and is_same_json(v, other[key]) for key, v in items)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        lefts, rights = cast("Sequence[Any]", left), cast("Sequence[Any]", right)
        return len(lefts) == len(rights) and all(map(is_same_json, lefts, rights))
    return type(left) is type(right) and bool(left == right)


def get_json_type(value: Any) -> JsonType:
    """The type of a value in the terms of JSON Schema: 1.0 is an integer, as 1 is."""
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


def explain_mismatch(
    part: Any, whole: Any, get_pattern: GetPattern = lambda _value: None, path: str = "$"
) -> str | None:
    """Explains why `whole` does not contain `part`, with the place of the first difference; None if it does.

    Only the keys of `part` are compared. Lists must have the same length; their items are compared one by one.
    """
    if (pattern := get_pattern(part)) is not None:
        is_match = whole is not None and has_pattern_match(pattern, to_text(whole))
        return None if is_match else f"{path}: {quote_value(whole)} does not match {quote_value(pattern)}"
    if isinstance(part, Mapping) and isinstance(whole, Mapping):
        actual = cast("Mapping[Any, Any]", whole)
        for key, value in cast("Mapping[Any, Any]", part).items():
            if key not in actual:
                return f"{path}.{key} is missing"
            if (mismatch := explain_mismatch(value, actual[key], get_pattern, f"{path}.{key}")) is not None:
                return mismatch
        return None
    if isinstance(part, list | tuple) and isinstance(whole, list | tuple):
        expected, actual = cast("Sequence[Any]", part), cast("Sequence[Any]", whole)
        if len(expected) != len(actual):
            return f"{path}: expected {len(expected)} items, was {len(actual)}: {quote_value(whole)}"
        pairs = enumerate(zip(expected, actual, strict=True))
        mismatches = (explain_mismatch(one, other, get_pattern, f"{path}[{index}]") for index, (one, other) in pairs)
        return next((mismatch for mismatch in mismatches if mismatch is not None), None)
    return None if is_same_json(part, whole) else f"{path}: expected {quote_value(part)}, was {quote_value(whole)}"


def list_patterns(value: Any, get_pattern: GetPattern) -> Iterator[str]:
    """All patterns in a value."""
    if (pattern := get_pattern(value)) is not None:
        yield pattern
    elif isinstance(value, Mapping | list | tuple):
        items = (
            cast("Mapping[Any, Any]", value).values() if isinstance(value, Mapping) else cast("Sequence[Any]", value)
        )
        for item in items:
            yield from list_patterns(item, get_pattern)

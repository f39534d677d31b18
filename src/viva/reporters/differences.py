"""Where two values differ: paths into JSON, or the lines of a text."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from itertools import islice
from typing import Any, cast

from msgspec import UNSET

from viva.reporters.formatting import escape_controls, format_value

_MOST = 8
_VALUE_ROOM = 100
_MOST_CHARACTERS = 20_000
"""Longer texts are not compared line by line: that takes quadratic time."""


def list_differences(expected: Any, actual: Any) -> list[str]:
    """`$.total: expected 5, was 6`, or the changed lines of a text; nothing where the values say it themselves."""
    if isinstance(expected, str) and isinstance(actual, str):
        lines = _text_differences(expected, actual)
    elif _is_container(expected) and _is_container(actual):
        lines = _differences(expected, actual, "$")
    else:
        return []
    shown = list(islice(lines, _MOST + 1))
    return shown if len(shown) <= _MOST else [*shown[:_MOST], "…"]


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _text_differences(expected: str, actual: str) -> Iterator[str]:
    if "\n" in expected + actual and len(expected) + len(actual) <= _MOST_CHARACTERS:
        diff = unified_diff(expected.splitlines(), actual.splitlines(), "expected", "actual", n=1, lineterm="")
        yield from (escape_controls(line) for line in diff if not line.startswith(("---", "+++", "@@")))


def _differences(expected: Any, actual: Any, at: str) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        ours, theirs = cast("Mapping[str, Any]", expected), cast("Mapping[str, Any]", actual)
        for key in (*ours, *(key for key in theirs if key not in ours)):
            yield from _differences(ours.get(key, UNSET), theirs.get(key, UNSET), f"{at}.{key}")
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        ones, others = cast("Sequence[Any]", expected), cast("Sequence[Any]", actual)
        for index in range(max(len(ones), len(others))):
            one = ones[index] if index < len(ones) else UNSET
            other = others[index] if index < len(others) else UNSET
            yield from _differences(one, other, f"{at}[{index}]")
    elif expected is UNSET:
        yield escape_controls(f"{at}: not expected, was {format_value(actual, _VALUE_ROOM)}")
    elif actual is UNSET:
        yield escape_controls(f"{at}: expected {format_value(expected, _VALUE_ROOM)}, missing")
    elif expected != actual or isinstance(expected, bool) is not isinstance(actual, bool):
        yield escape_controls(
            f"{at}: expected {format_value(expected, _VALUE_ROOM)}, was {format_value(actual, _VALUE_ROOM)}"
        )

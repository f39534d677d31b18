"""Reads parts of JSON from outside, whose types are unknown."""

from collections.abc import Mapping
from typing import Any, cast


def as_object(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def get_text(fields: Mapping[str, Any], key: str) -> str:
    """The text at a key, else an empty one."""
    value = fields.get(key)
    return value if isinstance(value, str) else ""

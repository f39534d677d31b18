"""`{{variables}}` in texts that people write: which are used, and what stands there when they are known."""

import re
from collections.abc import Mapping
from typing import Any, cast

from msgspec import structs

from viva.errors import Undecidable
from viva.model import codec
from viva.model.message import Message, Text

_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][\w.-]*)\s*\}\}")


def has_variables(value: Any) -> bool:
    """Does any text in this value hold a variable?"""
    return bool(variables_in(value))


def variables_in(value: Any) -> list[str]:
    """The names of variables in all texts of a value, keys of dicts not included."""
    match value:
        case str():
            return _VARIABLE.findall(value) if "{{" in value else []
        case Mapping():
            return [name for item in cast("Mapping[str, Any]", value).values() for name in variables_in(item)]
        case list() | tuple():
            return [name for item in cast("list[Any]", value) for name in variables_in(item)]
        case _:
            return []


def fill(value: Any, variables: Mapping[str, Any], *, keep_unset: bool = False) -> Any:
    """The value with its variables filled in. A text that is one variable and nothing else becomes that variable's value."""
    match value:
        case str() if "{{" in value:
            return _fill_text(value, variables, keep_unset)
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return {key: fill(item, variables, keep_unset=keep_unset) for key, item in items}
        case list() | tuple():
            return [fill(item, variables, keep_unset=keep_unset) for item in cast("list[Any]", value)]
        case _:
            return value


def fill_message(message: Message, variables: Mapping[str, Any]) -> Message:
    if isinstance(message.content, str):
        return structs.replace(message, content=_text(fill(message.content, variables)))
    parts = tuple(Text(_text(fill(p.text, variables))) if isinstance(p, Text) else p for p in message.content)
    return structs.replace(message, content=parts)


def _fill_text(text: str, variables: Mapping[str, Any], keep_unset: bool) -> Any:
    whole = _VARIABLE.fullmatch(text)
    if whole and whole[1] in variables:
        return variables[whole[1]]

    def value_of(match: re.Match[str]) -> str:
        if match[1] in variables:
            return _text(variables[match[1]])
        if keep_unset:
            return match[0]
        raise Undecidable(f"variable {match[0]} is not set")

    return _VARIABLE.sub(value_of, text)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else codec.compact(value)

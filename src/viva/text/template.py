r"""`{{variables}}` in texts: finds them and fills them in.

`\{{` is a literal `{{`: it starts no variable, and filling removes the backslash.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import structs

from viva.errors import Undetermined
from viva.model import codec
from viva.model.message import Message, Text
from viva.text.pattern import LazyPattern

_OPEN = "{{"
_ESCAPED = "\\{{"
_VARIABLE_OR_ESCAPE = LazyPattern(r"\\\{\{|\{\{\s*([A-Za-z_][\w.-]*)\s*\}\}")
"""A literal `{{`, or a variable with its name."""


def has_variables(value: Any) -> bool:
    """Does any string in this value have a variable?"""
    return next(_iterate_variable_names(value), None) is not None


def list_variables(value: Any) -> list[str]:
    """The names of the variables in all strings of a value, without the keys of dicts."""
    return list(_iterate_variable_names(value))


def is_template(value: Any) -> bool:
    r"""Does filling change any string in this value? It has a variable or an escaped `\{{`."""
    return any(_VARIABLE_OR_ESCAPE.search(text) for text in _iterate_template_texts(value))


def _iterate_variable_names(value: Any) -> Iterator[str]:
    return (
        match[1] for text in _iterate_template_texts(value) for match in _VARIABLE_OR_ESCAPE.finditer(text) if match[1]
    )


def _iterate_template_texts(value: Any) -> Iterator[str]:
    """The strings of a value that may have a variable."""
    match value:
        case str():
            if _OPEN in value:
                yield value
        case Mapping():
            for item in cast("Mapping[str, Any]", value).values():
                yield from _iterate_template_texts(item)
        case list() | tuple():
            for item in cast("list[Any]", value):
                yield from _iterate_template_texts(item)
        case _:
            pass


def fill_variables(
    value: Any,
    variables: Mapping[str, Any],
    *,
    keep_unknown: bool = False,
    unset_reasons: Mapping[str, str] | None = None,
) -> Any:
    r"""The value with its variables filled in. A string that is just one variable becomes that variable's value.

    With `keep_unknown`, unknown variables and `\{{` are left for a later call. `unset_reasons` explains in the error why a
    variable has no value.
    """

    def fill(value: Any) -> Any:
        match value:
            case str() if _OPEN in value:
                return _fill_text(value, variables, keep_unknown, unset_reasons or {})
            case Mapping():
                return {key: fill(item) for key, item in cast("Mapping[str, Any]", value).items()}
            case list() | tuple():
                return [fill(item) for item in cast("list[Any]", value)]
            case _:
                return value

    return fill(value)


def fill_variables_in_message(
    message: Message, variables: Mapping[str, Any], unset_reasons: Mapping[str, str] | None = None
) -> Message:
    def fill(text: str) -> str:
        return _to_text(fill_variables(text, variables, unset_reasons=unset_reasons))

    if isinstance(message.content, str):
        return structs.replace(message, content=fill(message.content))
    parts = tuple(Text(fill(part.text)) if isinstance(part, Text) else part for part in message.content)
    return structs.replace(message, content=parts)


def escape_template(text: str) -> str:
    r"""The text with each `{{` as `\{{`, so that filling it gives the text again."""
    return text.replace(_OPEN, _ESCAPED)


def unescape_template(value: Any) -> Any:
    r"""The value with `{{` for each `\{{`, for strings that are not filled again. Variables stay as they are."""
    match value:
        case str():
            return value.replace(_ESCAPED, _OPEN)
        case Mapping():
            return {key: unescape_template(item) for key, item in cast("Mapping[str, Any]", value).items()}
        case list() | tuple():
            return [unescape_template(item) for item in cast("list[Any]", value)]
        case _:
            return value


def escape_template_in_message(message: Message) -> Message:
    """The message with escaped texts, so that filling it gives the message again."""
    if isinstance(message.content, str):
        return structs.replace(message, content=escape_template(message.content))
    parts = tuple(Text(escape_template(part.text)) if isinstance(part, Text) else part for part in message.content)
    return structs.replace(message, content=parts)


def _fill_text(text: str, variables: Mapping[str, Any], keep_unknown: bool, unset_reasons: Mapping[str, str]) -> Any:
    whole = _VARIABLE_OR_ESCAPE.fullmatch(text)
    if whole and whole[1] in variables:
        return _get_value(whole[1], variables)

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0] if keep_unknown else _OPEN
        if name in variables:
            return _to_text(_get_value(name, variables))
        if keep_unknown:
            return match[0]
        reason = unset_reasons.get(name)
        raise Undetermined(f"variable {match[0]} is not set" + (f": {reason}" if reason else ""))

    return _VARIABLE_OR_ESCAPE.sub(value_of, text)


def _get_value(name: str, variables: Mapping[str, Any]) -> Any:
    """The value of a variable, which code of the user may have set. Undetermined for one that JSON cannot hold."""
    value = variables[name]
    try:
        codec.encode(value)
    except (ValueError, RecursionError) as error:
        problem = f"the value of {_OPEN}{name}}}}} is not valid JSON: {error}"
        raise Undetermined(problem, deterministic=True) from error
    return value


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else codec.compact_json(value)

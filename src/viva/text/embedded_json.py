"""Finds JSON in text: the whole text, a fenced block, or JSON among words."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import UNSET

from viva.model import codec
from viva.text.pattern import LazyPattern

_FENCED = LazyPattern(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_JSON_START = LazyPattern(r'\{\s*["}]|\[\s*(?:["{\[\]\d-]|true|false|null)')


def parse_whole_json(text: str) -> Any:
    """The value of a text that is one JSON object or array, fenced or not; else UNSET."""
    text = text.strip()
    if text.startswith("```") and (fenced := _FENCED.fullmatch(text)):
        text = fenced[1].strip()
    if not text.startswith(("{", "[")):
        return UNSET
    try:
        return codec.decode(text)
    except codec.DecodeError:
        return UNSET


def decode_if_json(value: Any) -> Any:
    """The value of a JSON text; any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return codec.decode(value)
    except codec.DecodeError:
        return value


def find_json(text: str) -> Any:
    """The first JSON object or array of a text: the whole, else a fenced block, else among words; else UNSET."""
    if _JSON_START.search(text) is None:
        return UNSET
    if (whole := parse_whole_json(text)) is not UNSET:
        return whole
    for block in _FENCED.findall(text):
        if (value := parse_whole_json(block)) is not UNSET:
            return value
    return _find_json_among_words(text)


def _find_json_among_words(text: str) -> Any:
    """The first JSON value among words. `[1]` and `[ ]` are often a footnote or a check box: a later value is preferred."""
    fallback = UNSET
    for value in _iterate_json_values(text, _decoder):
        if isinstance(value, dict) or any(type(item) is not int for item in value):
            return value
        fallback = value if fallback is UNSET else fallback
    return fallback


def find_json_objects(text: str, make_object: Callable[[list[tuple[str, Any]]], Any]) -> list[Any]:
    """All outermost JSON objects of a text. `make_object` builds each from its pairs of key and value."""
    values: list[Any] = []
    for value in _iterate_json_values(
        text, json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=make_object)
    ):
        values += value if isinstance(value, list) else [value]
    return [value for value in values if isinstance(value, Mapping)]


def _iterate_json_values(text: str, decoder: json.JSONDecoder) -> Iterator[Any]:
    """All balanced values, in order.

    msgspec cannot tell where a value ends, so this uses the parser of the standard library. The work is bounded: a text of
    opening brackets only would otherwise be parsed again and again.
    """
    work_left = 10_000 + 8 * len(text)
    at = 0
    while work_left > 0 and (start_match := _JSON_START.search(text, at)) is not None:
        start = start_match.start()
        try:
            value, at = decoder.raw_decode(text, start)
            codec.decode(text[start:at])  # a value must be valid for our decoder too
        except (codec.TooDeepError, RecursionError):
            break
        except ValueError as error:
            work_left -= start // 64 + (error.pos - start if isinstance(error, json.JSONDecodeError) else 1)
            at = start + 1
            continue
        yield value


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)

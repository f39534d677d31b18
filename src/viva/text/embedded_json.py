"""JSON in what people and models write: a text that is JSON, fenced JSON, or JSON with words around it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import UNSET

from viva.model import codec

_FENCED = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_OPENING = re.compile(r'\{\s*["}]|\[\s*(?:["{\[\]\d-]|true|false|null)')


def whole_json(text: str) -> Any:
    """The value of a text that is, as a whole, a JSON object or array, fenced or not; else UNSET."""
    text = text.strip()
    if text.startswith("```") and (fenced := _FENCED.fullmatch(text)):
        text = fenced[1].strip()
    if not text.startswith(("{", "[")):
        return UNSET
    try:
        return codec.decode(text)
    except codec.DecodeError:
        return UNSET


def find_json(text: str) -> Any:
    """The first JSON object or array to be found in a text: the whole, else a fenced block, else among the words; else UNSET."""
    if _OPENING.search(text) is None:
        return UNSET
    if (whole := whole_json(text)) is not UNSET:
        return whole
    for block in _FENCED.findall(text):
        if (value := whole_json(block)) is not UNSET:
            return value
    return _among_words(text)


def _among_words(text: str) -> Any:
    """The first balanced value. `[1]` and `[ ]` are most often a footnote or a check box: they give way to what follows."""
    spare = UNSET
    for value in _values(text, _decoder):
        if isinstance(value, dict) or any(type(item) is not int for item in value):
            return value
        spare = value if spare is UNSET else spare
    return spare


def find_objects(text: str, made_of: Callable[[list[tuple[str, Any]]], Any] = dict) -> list[Any]:
    """Every JSON object that stands in a text by itself or in a list, not inside of another; `made_of` its keys and values."""
    found: list[Any] = []
    for value in _values(text, json.JSONDecoder(parse_constant=_refused, object_pairs_hook=made_of)):
        found += value if isinstance(value, list) else [value]
    return [value for value in found if isinstance(value, Mapping)]


def _values(text: str, decoder: json.JSONDecoder) -> Iterator[Any]:
    """All balanced values, one after the other.

    A parser that tells where a value ends is needed here, which msgspec does not offer. The work is bounded: text
    made of nothing but openings would otherwise be read over and over (its errors count lines from the top, too).
    """
    work_left = 10_000 + 8 * len(text)
    at = 0
    while work_left > 0 and (opening := _OPENING.search(text, at)) is not None:
        start = opening.start()
        try:
            value, at = decoder.raw_decode(text, start)
            codec.decode(text[start:at])  # what this parser takes and ours does not is no value
        except (codec.TooDeepError, RecursionError):
            break
        except ValueError as wrong:
            work_left -= start // 64 + (wrong.pos - start if isinstance(wrong, json.JSONDecodeError) else 1)
            at = start + 1
            continue
        yield value


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refused)

"""The only encoder and decoder: every byte of JSON that Viva reads or writes itself goes through here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

_encoder = msgspec.json.Encoder(enc_hook=str)
_sorted = msgspec.json.Encoder(order="deterministic", enc_hook=str)

encode = _encoder.encode
encode_lines = _encoder.encode_lines
decode = msgspec.json.decode
Raw = msgspec.Raw
DecodeError = msgspec.DecodeError
ValidationError = msgspec.ValidationError


def compact(value: Any) -> str:
    """Compact JSON text; what has no JSON form appears as its `str`."""
    return _encoder.encode(value).decode()


def canonical(value: Any) -> bytes:
    """The same bytes for equal values, whatever the order of keys: for digests and comparison."""
    return _sorted.encode(value)


def frozen(value: Any) -> msgspec.Raw:
    """A value as the JSON that it is now, to become part of more JSON later."""
    return Raw(_encoder.encode(value))


def builtins(value: Any) -> Any:
    """A struct as plain dicts and lists."""
    return msgspec.to_builtins(value, enc_hook=str)


def plain(value: Any) -> Any:
    """A value of any kind as it comes back from JSON: dicts with text keys, lists, numbers, texts."""
    return decode(_encoder.encode(value))


def as_written(value: Any) -> Any:
    """A value of Python code as a file would hold it; TypeError or ValueError for what has no JSON form."""
    return decode(msgspec.json.encode(value))


def convert(value: Any, to: type[T]) -> T:
    """Plain dicts and lists as a struct; raises ValidationError with the place of the first misfit."""
    return msgspec.convert(value, to)


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder for many values of one kind."""
    return msgspec.json.Decoder(kind)


def pretty(data: bytes) -> bytes:
    return msgspec.json.format(data, indent=2)


def has_nan(value: Any) -> bool:
    """Is there a number in it that JSON cannot say, NaN or an infinite one? It would be written as null."""
    match value:
        case float():
            return not math.isfinite(value)
        case Mapping():
            return any(map(has_nan, cast("Mapping[Any, Any]", value).values()))
        case list() | tuple():
            return any(map(has_nan, cast("Sequence[Any]", value)))
        case _:
            return False

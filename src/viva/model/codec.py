"""The only JSON encoder and decoder of Viva.

Decoding returns a value or raises DecodeError, whatever the bytes are. A decoded value can be encoded again and walked by
recursive code: it is at most MAX_DEPTH levels deep, its strings have no lone surrogates, its numbers are finite.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast, overload

import msgspec

T = TypeVar("T")

MAX_DEPTH = 128
"""The maximum nesting of a foreign value."""
OWN_MAX_DEPTH = MAX_DEPTH + 32
"""The maximum nesting of a line of a journal or cassette, which wraps foreign values."""

Raw = msgspec.Raw
DecodeError = msgspec.DecodeError
ValidationError = msgspec.ValidationError


def _as_text(value: Any) -> str:
    """The `str` of a value that has no JSON form. A foreign `__str__` may raise."""
    if isinstance(value, str):
        return str.__str__(value)
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


_encoder = msgspec.json.Encoder(enc_hook=_as_text)
_sorted_encoder = msgspec.json.Encoder(order="deterministic", enc_hook=_as_text)

encode = _encoder.encode
encode_lines = _encoder.encode_lines
_decode = msgspec.json.Decoder().decode

_TO_ROUND_BRACKETS = bytes.maketrans(b"[]{}", b"()()")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


class TooDeepError(DecodeError):
    """A value whose arrays and objects are nested too deeply to be walked safely."""

    def __init__(self, max_depth: int) -> None:
        super().__init__(f"nested more than {max_depth} levels deep")


class Decoder(Generic[T]):
    """Decodes many values of one type."""

    __slots__ = ("_decode", "_max_depth")

    def __init__(self, kind: Any, max_depth: int = MAX_DEPTH) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._max_depth = max_depth

    def decode(self, data: bytes | str) -> T:
        """The value; raises ValidationError for JSON of another type, DecodeError for anything else."""
        try:
            value = self._decode(data)
        except (UnicodeError, RecursionError) as error:
            raise _create_decode_error(data, error, self._max_depth) from error
        if len(data) > 2 * self._max_depth and _is_nested_deeper(data, self._max_depth):
            raise TooDeepError(self._max_depth)
        return value


@overload
def decode(data: bytes | str, *, max_depth: int = MAX_DEPTH) -> Any: ...
@overload
def decode(data: bytes | str, *, type: type[T], max_depth: int = MAX_DEPTH) -> T: ...
def decode(data: bytes | str, *, type: Any = Any, max_depth: int = MAX_DEPTH) -> Any:  # noqa: A002 -- msgspec's name for it
    """Decodes foreign JSON, as `type` if one is given. Raises what `Decoder.decode` raises."""
    try:
        value = msgspec.json.decode(data, type=type)
    except (UnicodeError, RecursionError) as error:
        raise _create_decode_error(data, error, max_depth) from error
    if len(data) > 2 * max_depth and _is_nested_deeper(data, max_depth):
        raise TooDeepError(max_depth)
    return value


@overload
def decode_own(data: bytes | str) -> Any: ...
@overload
def decode_own(data: bytes | str, *, type: type[T]) -> T: ...
def decode_own(data: bytes | str, *, type: Any = Any) -> Any:  # noqa: A002 -- as above
    """Decodes JSON that Viva wrote, which may wrap foreign values."""
    return decode(data, type=type, max_depth=OWN_MAX_DEPTH)


def _create_decode_error(data: bytes | str, error: Exception, max_depth: int) -> DecodeError:
    """The error for a text that msgspec could not decode."""
    if isinstance(error, RecursionError):
        return TooDeepError(max_depth)
    try:
        _ = data.encode() if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError as place:
        return DecodeError(f"not UTF-8: byte 0x{place.object[place.start]:02x} at position {place.start}")
    except UnicodeEncodeError as place:
        return DecodeError(f"not Unicode text: a lone surrogate at position {place.start}")
    return DecodeError(str(error))


def _is_nested_deeper(data: bytes | str, max_depth: int) -> bool:
    """Are the brackets of a valid JSON text nested deeper than that? Those in strings do not count."""
    raw = data.encode() if isinstance(data, str) else bytes(data)
    # Most texts have too few brackets. `replace` is five times as fast as `count`.
    if 2 * len(raw) - len(raw.replace(b"[", b"")) - len(raw.replace(b"{", b"")) <= max_depth:
        return False
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    brackets = b"".join(bare).translate(_TO_ROUND_BRACKETS, _NO_BRACKETS)
    for _ in range(max_depth):  # each pass removes the innermost pairs
        if not brackets:
            return False
        brackets = brackets.replace(b"()", b"")
    return bool(brackets)


def compact_json(value: Any) -> str:
    """Compact JSON text; a value without a JSON form appears as its `str`."""
    return _encoder.encode(value).decode()


def encode_canonically(value: Any) -> bytes:
    """JSON with sorted keys: the same bytes for equal values, for digests and comparisons."""
    return _sorted_encoder.encode(value)


def to_raw(value: Any) -> msgspec.Raw:
    """Encodes a value now, to be embedded in other JSON later."""
    return Raw(_encoder.encode(value))


def to_builtins(value: Any) -> Any:
    """A struct as plain dicts and lists."""
    return msgspec.to_builtins(value, enc_hook=_as_text)


def to_plain(value: Any) -> Any:
    """A value as it comes back from JSON: dicts with string keys, lists, numbers, strings."""
    return _decode(_encoder.encode(value))


def to_plain_checked(value: Any) -> Any:
    """Like `to_plain`, for a value of foreign code; raises ValueError or RecursionError if a reply cannot hold it."""
    return decode(_encoder.encode(value))


def to_file_value(value: Any) -> Any:
    """A Python value as a file would hold it; raises TypeError or ValueError if it has no JSON form."""
    return decode(msgspec.json.encode(value))


def convert(value: Any, to: type[T]) -> T:
    """Plain dicts and lists as a struct; raises ValidationError with the place of the first mistake."""
    return msgspec.convert(value, to)


def pretty_json(data: bytes) -> bytes:
    return msgspec.json.format(data, indent=2)


def has_nan_or_infinity(value: Any) -> bool:
    """Does the value contain NaN or an infinite number? JSON writes them as null."""
    match value:
        case float():
            return not math.isfinite(value)
        case Mapping():
            return any(map(has_nan_or_infinity, cast("Mapping[Any, Any]", value).values()))
        case list() | tuple():
            return any(map(has_nan_or_infinity, cast("Sequence[Any]", value)))
        case _:
            return False

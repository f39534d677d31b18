"""Foreign bytes become a value or a DecodeError."""

import pytest

from viva.model import codec


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": "caf\xe9"}', "not UTF-8: byte 0xe9 at position 10"),
        ('"\ud800"', "not Unicode text: a lone surrogate at position 1"),
        (nested(codec.MAX_DEPTH + 1), "nested more than 128 levels deep"),
        (b"[" * 100_000, "nested more than 128 levels deep"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "nested more than 128 levels deep"),
        (b"9" * 5000, "out of range"),
        (b"1e999", "out of range"),
        (b"NaN", "malformed"),
        (b'"\\ud800"', ""),
    ],
)
def test_invalid_json_is_a_decode_error(raw: bytes | str, message: str):
    with pytest.raises(codec.DecodeError) as error:
        codec.decode(raw)
    assert message in str(error.value)
    with pytest.raises(codec.DecodeError):
        codec.Decoder[object](object).decode(raw)


def test_depth_is_limited_and_width_is_not():
    assert codec.decode(nested(codec.MAX_DEPTH)) is not None
    brackets_in_texts = codec.encode([["]][[" * 200, '\\"[[[' * 200, "\\" * 3] for _ in range(200)])
    assert len(codec.decode(brackets_in_texts)) == 200
    assert len(codec.decode(b"[" + b",".join([b"[[]]"] * 1000) + b"]")) == 1000


def test_a_stored_line_may_wrap_the_deepest_foreign_value():
    wrapped = codec.encode({"record": {"turns": [{"data": codec.decode(nested(codec.MAX_DEPTH))}]}})
    assert codec.decode_own(wrapped)
    with pytest.raises(codec.TooDeepError):
        codec.decode(wrapped)


def test_objects_whose_str_raises_appear_by_type():
    class Odd:
        def __str__(self) -> str:
            raise ValueError

    class Text(str):
        __slots__ = ()

        def __str__(self) -> str:
            raise ValueError

    assert codec.to_plain([Odd(), Text("a")]) == ["<Odd>", "a"]

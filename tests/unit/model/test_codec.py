"""Bytes of anybody's become a value or a DecodeError."""

import pytest

from viva.model import codec


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize(
    ("raw", "said"),
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
def test_what_is_no_value_is_one_kind_of_error(raw: bytes | str, said: str):
    with pytest.raises(codec.DecodeError) as wrong:
        codec.decode(raw)
    assert said in str(wrong.value)
    with pytest.raises(codec.DecodeError):
        codec.Decoder[object](object).decode(raw)


def test_values_may_be_as_deep_as_that_and_wide_without_limit():
    assert codec.decode(nested(codec.MAX_DEPTH)) is not None
    brackets_in_texts = codec.encode([["]][[" * 200, '\\"[[[' * 200, "\\" * 3] for _ in range(200)])
    assert len(codec.decode(brackets_in_texts)) == 200
    assert len(codec.decode(b"[" + b",".join([b"[[]]"] * 1000) + b"]")) == 1000


def test_a_kept_line_may_wrap_the_deepest_foreign_value():
    wrapped = codec.encode({"record": {"turns": [{"data": codec.decode(nested(codec.MAX_DEPTH))}]}})
    assert codec.decode_kept(wrapped)
    with pytest.raises(codec.TooDeepError):
        codec.decode(wrapped)


def test_objects_that_cannot_be_shown_have_a_name():
    class Odd:
        def __str__(self) -> str:
            raise ValueError

    class Text(str):
        __slots__ = ()

        def __str__(self) -> str:
            raise ValueError

    assert codec.to_plain([Odd(), Text("a")]) == ["<Odd>", "a"]

"""Texts and values are escaped and shortened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.reporters.formatting import (
    display_width,
    escape_controls,
    escape_multiline,
    find_question,
    fit_line,
    format_cost,
    format_value,
    shorten_id,
    wrap_text,
)

ANYTHING = st.text(st.characters())  # lone surrogates too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANYTHING,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANYTHING, inner, max_size=4),
    max_leaves=10,
)
CONTROLS, BREAKS = [*range(0x20), *range(0x7F, 0xA0)], [0x2028, 0x2029]
REORDERING = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
HARMFUL = set(map(chr, [*CONTROLS, *BREAKS, *REORDERING, *range(0xD800, 0xE000)]))


@pytest.mark.parametrize(
    ("cost_usd", "text"),
    [
        (0.0, "$0"),
        (0.0000123, "$0.000012"),
        (0.00062, "$0.00062"),
        (0.0021, "$0.0021"),
        (0.25, "$0.2500"),
        (12, "$12.00"),
    ],
)
def test_the_cost_of_a_small_call_does_not_read_as_zero(cost_usd: float, text: str):
    assert format_cost(cost_usd, 0) == text


def test_control_and_reordering_characters_are_escaped() -> None:
    assert escape_controls("\x1b[31mred\x07\x7f\x9b0m\u202eabc\ud800") == "␛[31mred␇␡\\x9b0m\\u202eabc\\ud800"


def test_text_of_any_language_and_emoji_are_unchanged() -> None:
    text = "Größe 東京 شكرا 👩‍🚀"
    assert escape_controls(text) == text


def test_multiline_text_keeps_only_line_breaks_and_tabs() -> None:
    assert escape_multiline("a\r\n\tb\x1b[2J\rc") == "a\n\tb␛[2J␍c"


def test_a_text_becomes_one_line() -> None:
    assert fit_line("first\n\n  second\tthird", 40) == "first ⏎ second third"


@given(ANYTHING, st.integers(5, 60))
def test_a_line_is_escaped_and_fits(text: str, room: int) -> None:
    line = fit_line(text, room)
    assert not HARMFUL & set(line)
    assert display_width(line) <= room


@given(ANYTHING, st.integers(5, 60), st.integers(1, 4))
def test_wrapped_lines_fit_and_are_limited(text: str, room: int, most: int) -> None:
    lines = wrap_text(text, room, most)
    assert 1 <= len(lines) <= most
    assert all(display_width(line) <= room and not HARMFUL & set(line) for line in lines)


def test_wrapping_breaks_between_words_and_marks_a_cut() -> None:
    assert wrap_text("one two three four five six", 10, 2) == ["one two", "three fou…"]
    assert wrap_text("one two three four", 10, 2) == ["one two", "three four"]


def test_wide_characters_take_two_columns() -> None:
    assert fit_line("東京東京東京", 7) == "東京東…"
    assert display_width("e\u0301東") == 3


@given(JSON, st.integers(5, 200))
def test_a_value_is_escaped_and_fits(value: object, room: int) -> None:
    text = format_value(value, room)
    assert not HARMFUL & set(text)
    assert len(text) <= 10 * room  # an escaped character takes up to ten


def test_a_value_reads_like_code() -> None:
    assert format_value({"amount": 3500, "type": "travel", "a b": [1, None, True], "x": {}}, 99) == (
        '{amount: 3500, type: "travel", "a b": [1, null, true], x: {}}'
    )


def test_a_deep_or_huge_value_costs_only_what_is_shown() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert format_value(deep, 20) == "[" * 19 + "…"
    assert format_value({"x": "y" * 5_000_000}, 12) == '{x: "yyyyyy…'


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("This requires manager approval. Please provide PO number.", "Please provide PO number"),
        ("Which account? I can look it up for you.", "Which account?"),
        ("好的。您的订单号是什么\uff1f", "好的。您的订单号是什么\uff1f"),
        ("", ""),
    ],
)
def test_the_last_question_is_found(text: str, question: str) -> None:  # N34
    assert find_question(text) == question


@pytest.mark.parametrize(
    ("text", "room", "expected"),
    [
        ("short", 9, "short"),
        ("tests/playbooks/release/ship", 15, "tests/p…se/ship"),
        ("a" * 100_000 + "b", 7, "aaa…aab"),
        ("日本語日本語", 7, "日…本語"),
        ("two\nlines", 20, "two ⏎ lines"),
    ],
)
def test_a_long_id_is_cut_in_the_middle(text: str, room: int, expected: str) -> None:
    assert shorten_id(text, room) == expected
    assert display_width(shorten_id(text, room)) <= room

"""Patterns that users write: what is refused before it is compiled."""

import time

import pytest

from viva.text.pattern import compile_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "(((a{1000}){1000}){1000}){1000}",
        "a{100000000}",
        "(?:ab{1000}c){1000,}",
        "x" + "|a{100000}" * 100,
        "(?:[)]{900}){900}",
        "a{" + "9" * 5000 + "}",
    ],
)
def test_a_pattern_that_grows_beyond_measure_is_refused_at_once(pattern: str):
    begun_s = time.process_time()
    with pytest.raises(ValueError, match="repeats too much"):
        compile_pattern(pattern)  # N2
    assert time.process_time() - begun_s < 1


def test_a_pattern_that_is_nested_too_deeply_is_an_error_like_another():
    with pytest.raises(ValueError, match="regular expression"):
        compile_pattern("(" * 20_000 + ")" * 20_000)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^\d{4}-\d{2}-\d{2}$", "2024-05-01"),
        ("(?:a{1,1000}){1,1000}", "a"),
        (r"\{1000000000}", "{1000000000}"),
        (r"[{1000000000}]{3}", "{1}"),
        (r"\p{Lu}{2}", "AB"),
        ("(?:b{0,1000}){0,1000}c{0}", ""),
    ],
)
def test_ordinary_repeats_compile(pattern: str, text: str):
    assert compile_pattern(pattern).search(text)

"""Durations: what is shown can be read again."""

from hypothesis import given
from hypothesis import strategies as st

from viva.text.duration import format_duration, parse_duration

micros = st.integers(min_value=0, max_value=10**15)


@given(micros)
def test_what_is_shown_is_read_back_to_the_microsecond(micro):
    assert round(parse_duration(format_duration(micro / 1e6)) * 1e6) == micro


@given(micros)
def test_showing_is_settled_after_one_round(micro):
    shown = format_duration(micro / 1e6)
    assert format_duration(parse_duration(shown)) == shown


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(["h", "m", "s", "ms"])), min_size=1, max_size=5))
def test_parts_add_up(parts):
    whole = parse_duration("".join(f"{number}{unit}" for number, unit in parts))
    assert abs(whole - sum(parse_duration(f"{number}{unit}") for number, unit in parts)) <= 1e-6 * max(1, whole)


@given(st.text() | st.floats() | st.integers() | st.none() | st.booleans())
def test_anything_is_a_time_or_a_clear_refusal(value):
    said, seconds = "", 0.0
    try:
        seconds = parse_duration(value)
    except ValueError as wrong:
        said = str(wrong)
    assert "is not a duration" in said if said else 0 <= seconds < float("inf")

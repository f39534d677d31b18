"""Durations as people write them (N6)."""

import pytest

from viva.text.duration import format_duration, parse_age, parse_duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30s", 30),
        ("2m", 120),
        ("2m30s", 150),
        ("500ms", 0.5),
        ("1h", 3600),
        ("1h0m1s", 3601),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        ("100ns", 1e-7),
        ("0", 0),
        ("0s", 0),
        ("45", 45),
        (" 45s ", 45),
        (45, 45),
        (0.25, 0.25),
    ],
)
def test_go_style_durations_and_bare_seconds_are_read(written, seconds):  # N6
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "s",
        "5 s",
        "5S",
        "5M",
        "-5s",
        "1e3",
        "1d",
        "5mss",
        "5s3",
        "1,5s",
        "٣s",
        "inf",
        "nan",
        -1,
        float("nan"),
        float("inf"),
        True,
        None,
        [],
        10**400,
        "9" * 400,
    ],
)
def test_anything_else_is_an_error_that_says_what_would_be_right(written):  # N2, N6
    with pytest.raises(ValueError, match="is not a duration: write for example 30s, 2m30s, 500ms or 1h"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (300, "5m"),
        (30, "30s"),
        (150, "2m30s"),
        (0.5, "500ms"),
        (3600, "1h"),
        (3661, "1h1m1s"),
        (3601, "1h1s"),
        (1.5, "1.5s"),
        (2.1, "2.1s"),
        (0.0015, "1.5ms"),
        (0.00002, "20us"),
        (0.9999999, "1s"),
        (0, "0s"),
        (86400, "24h"),
    ],
)
def test_durations_are_shown_as_short_as_they_can_be(seconds, shown):  # N16
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("1d12h", 129_600), ("90", 90)])
def test_an_age_may_have_days(text: str, seconds: float):
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "0", "0d", "-1d", "1w", "30 d", "1h1d", "nan", "1e9d"])
def test_an_invalid_age_is_refused(text: str):
    with pytest.raises(ValueError, match="30d"):
        parse_age(text)

"""Durations: `30s`, `2m30s`, `500ms`, `1h`; a number without a unit is seconds."""

import math
import re

from viva.text.pattern import LazyPattern

_NS_PER_SECOND = 1_000_000_000
_UNITS_NS = {
    "h": 3600 * _NS_PER_SECOND,
    "m": 60 * _NS_PER_SECOND,
    "s": _NS_PER_SECOND,
    "ms": 1_000_000,
    "us": 1000,
    "µs": 1000,
    "μs": 1000,
    "ns": 1,
}
_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_NUMBER_WITH_UNIT = LazyPattern(rf"({_NUMBER})(h|ms|m|s|us|µs|μs|ns)", re.ASCII)
_DURATION = LazyPattern(rf"\+?(?:(?:{_NUMBER})(?:h|ms|m|s|us|µs|μs|ns))+", re.ASCII)
_DAYS = LazyPattern(rf"(?:({_NUMBER})d)?(.*)", re.ASCII | re.DOTALL)
_BARE_NUMBER = LazyPattern(rf"\+?(?:{_NUMBER})", re.ASCII)
_EXAMPLES = "write for example 30s, 2m30s, 500ms or 1h; a bare number is seconds"


def parse_duration(value: str | float) -> float:
    """The duration in seconds; raises ValueError, with examples, for anything else."""
    try:
        seconds = _parse_seconds(value) if isinstance(value, str) else None if isinstance(value, bool) else float(value)
    except (TypeError, OverflowError):
        seconds = None
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{value!r} is not a duration: {_EXAMPLES}")
    return seconds


def parse_age(text: str) -> float:
    """An age in seconds: `30d`, `12h` or `1d12h`; raises ValueError, with examples, for anything else."""
    if (match := _DAYS.fullmatch(text.strip())) is None:
        seconds = None
    else:
        rest = _parse_seconds(match[2]) if match[2] else 0.0
        seconds = None if rest is None or not (match[1] or match[2]) else float(match[1] or 0) * 86400 + rest
    if not seconds or not math.isfinite(seconds):
        raise ValueError(f"{text!r} is not an age: write for example 30d, 12h or 1d12h")
    return seconds


def _parse_seconds(text: str) -> float | None:
    text = text.strip()
    if _BARE_NUMBER.fullmatch(text):
        return float(text)
    if _DURATION.fullmatch(text):
        return (
            math.fsum(float(number) * _UNITS_NS[unit] for number, unit in _NUMBER_WITH_UNIT.findall(text))
            / _NS_PER_SECOND
        )
    return None


def format_duration(seconds: float) -> str:
    """The shortest form, to the microsecond: `5m`, `2m30s`, `1.5s`, `500ms`."""
    if (micros := round(seconds * 1e6)) < 1_000_000:
        whole, unit = (1, "us") if 0 < micros < 1000 else (1000, "ms")
        return f"{_format_decimal(micros, whole)}{unit}" if micros else "0s"
    hours, micros = divmod(micros, 3_600_000_000)
    minutes, micros = divmod(micros, 60_000_000)
    return "".join(
        (
            f"{hours}h" if hours else "",
            f"{minutes}m" if minutes else "",
            f"{_format_decimal(micros, 1_000_000)}s" if micros else "",
        )
    )


def _format_decimal(value: int, unit: int) -> str:
    """`value / unit` as an exact decimal without trailing zeros."""
    whole, rest = divmod(value, unit)
    return f"{whole}.{str(rest).rjust(len(str(unit)) - 1, '0').rstrip('0')}" if rest else str(whole)

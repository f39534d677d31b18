"""What is checked of a journal that another machine wrote: an artifact of CI, or a run of a remote history.

The decoder checks all fields of events, but the settings of a run and the assertions of a record may hold any value there.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, ValidationError

from viva.model import codec
from viva.model.event import AnyEvent, RunEnded, RunStarted, TrialEnded
from viva.model.record import TrialRecord

_ALWAYS_ALLOWED_BYTES = 1 << 30
_MAX_RATIO = 100
_MAX_NUMBER = 2**53


class _Options(Struct):
    """The options of a run that are read from its settings."""

    tags: list[str] = []
    only: str | None = None
    runs: int = 1
    folder: str | None = None
    shard: str | None = None
    shard_by: str | None = None
    replay: str | None = None


class _Fingerprint(Struct):
    agents: dict[str, str] = {}
    suites: dict[str, str] = {}


class _MergedPart(Struct):
    run: str
    cases: int
    shard: str | None = None
    spans: list[tuple[str, str]] = []


class _Sequential(Struct, forbid_unknown_fields=True):
    min_pass: float
    max_runs: int = 0
    alpha: float = 0.05
    beta: float = 0.1
    margin: float | None = None


class _Settings(Struct):
    """The settings that `RunStarted` holds, as far as they are read."""

    options: dict[str, Any] = {}
    fingerprint: dict[str, Any] = {}
    agents: dict[str, Any] = {}
    merged: list[_MergedPart] = []
    rerun_flags: list[tuple[str, str | None]] = []
    reports: list[str] = []
    journal: str | None = None
    min_pass: float | None = None
    sequential: _Sequential | None = None


class _Assertion(Struct):
    """The fields of an assertion in a record that are never those of a plugin."""

    passed: bool | None
    type: str = ""
    label: str = ""


def check_event(event: AnyEvent) -> None:
    """Raises ValidationError for an event that no run writes."""
    _check_numbers(event)
    match event:
        case RunStarted():
            _check_start(event)
        case RunEnded():
            check_time(event.at)
        case TrialEnded():
            _check_record(event.record)
        case _:
            pass


def _check_start(started: RunStarted) -> None:
    """Raises ValidationError for settings that no run writes."""
    settings = codec.convert(started.settings, _Settings)
    for time in (time for part in settings.merged for span in part.spans for time in span):
        check_time(time)
    codec.convert(settings.options, _Options)
    codec.convert(settings.fingerprint, _Fingerprint)
    check_time(started.at)


def _check_record(record: TrialRecord) -> None:
    """Raises ValidationError for assertions that no run writes."""
    checkpoints: list[Mapping[str, Any]] = [each.assertion for each in record.checkpoints or () if each.assertion]
    for turn in record.turns:
        codec.convert(turn.assertions, list[_Assertion])
    codec.convert([*record.final_assertions, *checkpoints], list[_Assertion])


def _check_numbers(value: Struct) -> None:
    """Python has larger numbers than the index and the viewer can store."""
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, Struct):
            _check_numbers(field)
        elif isinstance(field, int) and abs(field) > _MAX_NUMBER:
            raise ValidationError(f"Expected a number below 2**53 - at `$.{name}`")


def check_time(text: str) -> None:
    """Raises ValidationError for a text that is no time."""
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise ValidationError(f"{error} - at `$.at`") from error


def compute_unpacked_limit(packed_bytes: int) -> int:
    """How many bytes the journals in an archive of that size may have. A small archive can unpack to more than a disk holds."""
    return max(_ALWAYS_ALLOWED_BYTES, packed_bytes * _MAX_RATIO)

"""What has changed since a recording, in words: each difference with the recorded value and the present one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from viva.model import codec

FILES_KEY = "files"
"""The key of a definition that holds a digest for each source file; all that can be said of one is that it changed."""
_VALUE_ROOM = 80
_ABSENT = object()


def list_changes(recorded: Any, current: Any, place: str = "") -> list[str]:
    """Every difference between two JSON values: `model: "a" when recorded, "b" now`."""
    return list(_changes(recorded, current, place))


def _changes(had: Any, now: Any, place: str) -> Iterator[str]:
    if isinstance(had, Mapping) and isinstance(now, Mapping):
        before, after = cast("Mapping[str, Any]", had), cast("Mapping[str, Any]", now)
        for key in dict.fromkeys([*before, *after]):
            values = before.get(key, _ABSENT), after.get(key, _ABSENT)
            if key == FILES_KEY and not place:
                yield from _file_changes(*values)
            else:
                yield from _changes(*values, f"{place}.{key}" if place else str(key))
    elif isinstance(had, list) and isinstance(now, list):
        yield from _item_changes(cast("list[Any]", had), cast("list[Any]", now), place)
    elif had is _ABSENT or now is _ABSENT or codec.canonical_bytes(had) != codec.canonical_bytes(now):
        yield f"{place or 'definition'}: {_shown(had, now)} when recorded, {_shown(now, had)} now"


def _item_changes(had: Sequence[Any], now: Sequence[Any], place: str) -> Iterator[str]:
    for at in range(max(len(had), len(now))):
        yield from _changes(
            had[at] if at < len(had) else _ABSENT, now[at] if at < len(now) else _ABSENT, f"{place}[{at}]"
        )


def _file_changes(had: Any, now: Any) -> Iterator[str]:
    before, after = (cast("Mapping[str, str]", each) if isinstance(each, Mapping) else {} for each in (had, now))
    for path in dict.fromkeys([*before, *after]):
        if path not in before:
            yield f"file {path} is new"
        elif path not in after:
            yield f"file {path} is gone"
        elif before[path] != after[path]:
            yield f"file {path} changed"


def _shown(value: Any, other: Any) -> str:
    """A value, cut to the part in which it differs from the other one."""
    if value is _ABSENT:
        return "not set"
    if not isinstance(value, str):
        text = codec.compact_json(value)
        return text if len(text) <= _VALUE_ROOM else text[:_VALUE_ROOM] + "…"
    start = _first_difference(value, other) if isinstance(other, str) and len(value) > _VALUE_ROOM else 0
    start = max(0, start - 20)
    end = start + _VALUE_ROOM
    cut = ("…" if start else "") + value[start:end] + ("…" if end < len(value) else "")
    return codec.compact_json(cut)


def _first_difference(text: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))

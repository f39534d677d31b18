"""Full-text search over the conversations, tool arguments and reasons of a run.

The bytes of a record are searched first; only a record that may have all words is decoded. The page searches a report in the
same way: the list of texts is repeated in `ui/src/search.ts`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from viva.model import codec
from viva.state.trial_state import to_text

_WORD = re.compile(r'"([^"]+)"|[^\s"]+')
_SNIPPET = 70
_MAX_HITS = 3
_MAX_CASES_WITH_HITS = 500
"""Further cases are given without places."""


class SearchHit(Struct, frozen=True):
    """A place of a case with one of the words: the id of its element on the page, what it is, and the text around."""

    trial: int
    place: str
    kind: str
    snippet: str


class FoundCase(Struct, frozen=True, omit_defaults=True):
    """A case with all words, by its index, and its first places."""

    index: int
    hits: tuple[SearchHit, ...] = ()


class _ToolCall(Struct):
    name: str = ""
    args: Any = None
    result: Any = ""
    error: str | None = None


class _Turn(Struct):
    turn: int
    input: str
    output: str
    assertions: list[dict[str, Any]] = []
    tool_calls: list[_ToolCall] = []
    data: Any = None
    error: str | None = None


class _Checkpoint(Struct):
    id: str
    description: str = ""
    reason: str | None = None


class _Traceback(Struct):
    error: str
    printed: str = ""


class _Record(Struct):
    """The texts of a record."""

    trial: int
    turns: list[_Turn]
    final_assertions: list[dict[str, Any]] = []
    history: list[dict[str, Any]] | None = None
    checkpoints: list[_Checkpoint] | None = None
    error: str | None = None
    tracebacks: list[_Traceback] = []


_records = codec.Decoder[_Record](_Record, codec.OWN_MAX_DEPTH)
_Text = tuple[str, str, str]
"""Place, kind, text."""


def split_words(text: str) -> list[str]:
    """The words in lower case; several words in quotation marks are one."""
    return [word for match in _WORD.finditer(text.lower()) if (word := (match[1] or match[0]).strip())]


def search_cases(cases: Iterator[tuple[int, Sequence[bytes]]], text: str) -> Iterator[FoundCase]:
    """The cases with all words, in the order given."""
    words = split_words(text)
    encoded = [codec.encode(word)[1:-1].lower() for word in words]
    is_ascii = text.isascii()
    found = 0
    for index, raw in cases if words else ():
        if not _may_have(raw, encoded, is_ascii=is_ascii):
            continue
        hits = _search_records(raw, words)
        if hits is not None:
            found += 1
            yield FoundCase(index, hits if found <= _MAX_CASES_WITH_HITS else ())


def _may_have(raw: Sequence[bytes], words: Sequence[bytes], *, is_ascii: bool) -> bool:
    """Bytes know the case of ASCII letters only."""
    lower = [record.lower() if is_ascii else record.decode().lower().encode() for record in raw]
    return all(any(word in record for record in lower) for word in words)


def _search_records(raw: Sequence[bytes], words: Sequence[str]) -> tuple[SearchHit, ...] | None:
    missing = set(words)
    hits: dict[tuple[str, str], SearchHit] = {}
    for record in map(_records.decode, raw):
        for place, kind, text in _list_texts(record):
            lower = text.lower()
            for word in words:
                at = lower.find(word)
                if at >= 0:
                    missing.discard(word)
                    if len(hits) < _MAX_HITS and (place, kind) not in hits:
                        hits[place, kind] = SearchHit(record.trial, place, kind, _cut_snippet(text, at, len(word)))
    return None if missing else tuple(hits.values())


def _list_texts(record: _Record) -> Iterator[_Text]:
    for message in record.history or ():
        yield "turn-0", "history", _join(message.get("content"))
    for turn in record.turns:
        place = f"turn-{turn.turn}"
        yield place, "user", turn.input
        yield place, "reply", turn.output
        if turn.data is not None:
            yield place, "data", _join(turn.data)
        if turn.error:
            yield place, "error", turn.error
        for call in turn.tool_calls:
            yield place, f"tool {call.name}", _join([call.name, call.args, call.result or "", call.error or ""])
        for number, check in enumerate(turn.assertions, 1):
            yield f"check-{turn.turn}-{number}", "check", _check_text(check)
    for number, check in enumerate(record.final_assertions, 1):
        yield f"check-end-{number}", "check", _check_text(check)
    for checkpoint in record.checkpoints or ():
        yield "checkpoints", "checkpoint", _join([checkpoint.id, checkpoint.description, checkpoint.reason or ""])
    if record.error:
        yield "why", "error", record.error
    for traceback in record.tracebacks:
        yield "why", "traceback", _join([traceback.error, traceback.printed])


def _check_text(check: Mapping[str, Any]) -> str:
    return _join([check.get("label") or check.get("type") or "", check.get("message") or "", check.get("reason") or ""])


def _join(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_join, cast("list[Any]", value)))
    return to_text(value)


def _cut_snippet(text: str, at: int, length: int) -> str:
    start, end = max(0, at - _SNIPPET // 2), at + length + _SNIPPET
    middle = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{middle}{'…' if end < len(text) else ''}"

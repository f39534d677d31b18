"""Full-text search over the conversations, tool arguments and reasons of a run.

The bytes of a record are searched first; only a record that may have all words is decoded. A report has no server: there
`ui/src/search.ts` searches the same texts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from viva.model import codec
from viva.state.trial_state import to_text

_WORD = re.compile(r'"([^"]+)"|[^\s"]+')
_SNIPPET = 70
_MAX_HITS_PER_CASE = 3
_MAX_CASES_WITH_HITS = 500
"""Further cases are returned without hits."""


class SearchHit(Struct, frozen=True):
    """A text that has one of the searched words: the id of its HTML element (`place`), its kind, and the words around."""

    trial: int
    place: str
    kind: str
    snippet: str


class FoundCase(Struct, frozen=True, omit_defaults=True):
    """The index of a case that has all searched words, and its first hits."""

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


class _SearchedRecord(Struct):
    """The fields of a record that are searched."""

    trial: int
    turns: list[_Turn]
    final_assertions: list[dict[str, Any]] = []
    history: list[dict[str, Any]] | None = None
    checkpoints: list[_Checkpoint] | None = None
    error: str | None = None
    tracebacks: list[_Traceback] = []


_record_decoder = codec.Decoder[_SearchedRecord](_SearchedRecord, codec.OWN_MAX_DEPTH)
_PlacedText = tuple[str, str, str]
"""The id of an HTML element on the page, the kind of text, and the text."""


def split_words(text: str) -> list[str]:
    """The words in lower case; several words in quotation marks are one."""
    return [word for match in _WORD.finditer(text.lower()) if (word := (match[1] or match[0]).strip())]


def search_cases(cases: Iterator[tuple[int, Sequence[bytes]]], text: str) -> Iterator[FoundCase]:
    """The cases that have all words of a query, in the order of `cases`."""
    words = split_words(text)
    encoded = [codec.encode(word)[1:-1].lower() for word in words]
    is_ascii = text.isascii()
    count = 0
    for index, raw in cases if words else ():
        if not _may_have_all_words(raw, encoded, is_ascii=is_ascii):
            continue
        hits = _search_records(raw, words)
        if hits is not None:
            count += 1
            yield FoundCase(index, hits if count <= _MAX_CASES_WITH_HITS else ())


def _may_have_all_words(raw: Sequence[bytes], words: Sequence[bytes], *, is_ascii: bool) -> bool:
    """False if a word is in none of the encoded records. Lower case of bytes covers ASCII only, so other texts are decoded."""
    lower = [record.lower() if is_ascii else record.decode().lower().encode() for record in raw]
    return all(any(word in record for record in lower) for word in words)


def _search_records(raw: Sequence[bytes], words: Sequence[str]) -> tuple[SearchHit, ...] | None:
    missing = set(words)
    hits: dict[tuple[str, str], SearchHit] = {}
    for record in map(_record_decoder.decode, raw):
        for place, kind, text in _iter_texts(record):
            lower = text.lower()
            for word in words:
                at = lower.find(word)
                if at >= 0:
                    missing.discard(word)
                    if len(hits) < _MAX_HITS_PER_CASE and (place, kind) not in hits:
                        hits[place, kind] = SearchHit(record.trial, place, kind, _cut_snippet(text, at, len(word)))
    return None if missing else tuple(hits.values())


def _iter_texts(record: _SearchedRecord) -> Iterator[_PlacedText]:
    for message in record.history or ():
        yield "turn-0", "history", _join_texts(message.get("content"))
    for turn in record.turns:
        place = f"turn-{turn.turn}"
        yield place, "user", turn.input
        yield place, "reply", turn.output
        if turn.data is not None:
            yield place, "data", _join_texts(turn.data)
        if turn.error:
            yield place, "error", turn.error
        for call in turn.tool_calls:
            yield place, f"tool {call.name}", _join_texts([call.name, call.args, call.result or "", call.error or ""])
        for number, check in enumerate(turn.assertions, 1):
            yield f"check-{turn.turn}-{number}", "check", _get_check_text(check)
    for number, check in enumerate(record.final_assertions, 1):
        yield f"check-end-{number}", "check", _get_check_text(check)
    for checkpoint in record.checkpoints or ():
        yield "checkpoints", "checkpoint", _join_texts([checkpoint.id, checkpoint.description, checkpoint.reason or ""])
    if record.error:
        yield "why", "error", record.error
    for traceback in record.tracebacks:
        yield "why", "traceback", _join_texts([traceback.error, traceback.printed])


def _get_check_text(check: Mapping[str, Any]) -> str:
    return _join_texts(
        [check.get("label") or check.get("type") or "", check.get("message") or "", check.get("reason") or ""]
    )


def _join_texts(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_join_texts, cast("list[Any]", value)))
    return to_text(value)


def _cut_snippet(text: str, at: int, length: int) -> str:
    start, end = max(0, at - _SNIPPET // 2), at + length + _SNIPPET
    middle = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{middle}{'…' if end < len(text) else ''}"

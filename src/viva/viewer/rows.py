"""The rows of a large run: filtered, searched and sorted here, and sent in batches. For a small run the page does this
itself, in `ui/src/filters.ts`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from viva.model import codec
from viva.model.record import Cell
from viva.reporters.page import CaseRow, RowCounts
from viva.viewer.search import FoundCase, SearchHit, split_words

MAX_BATCH_ROWS = 500
_STATUS_ORDER = {"failed": 0, "error": 1, "skipped": 2, "passed": 3}
_STATUS_LETTERS = {"passed": "p", "failed": "f", "error": "e", "skipped": "s"}
_MAX_TAGS = 200
_row_decoder = codec.Decoder[CaseRow](CaseRow, codec.OWN_MAX_DEPTH)


class RowFilter(Struct, frozen=True):
    """Selects and sorts rows. The fields are the parameters of the page's URL."""

    status: str = ""
    fault: str = ""
    tag: str = ""
    suite: str = ""
    type: str = ""
    group: str = ""
    q: str = ""
    sort: str = ""

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> "RowFilter":
        return cls(**{name: query[name] for name in cls.__struct_fields__ if name in query})


class RowBatch(Struct, frozen=True, omit_defaults=True):
    """Some of the selected rows, from `offset`. `hits` has the search hits of these rows by the index of the case."""

    total: int
    offset: int
    rows: list[codec.Raw]
    hits: dict[str, tuple[SearchHit, ...]] = {}


class CasePosition(Struct, frozen=True, omit_defaults=True):
    """The row of a case with its neighbours among the selected rows. `position` is None if the case is not selected."""

    row: codec.Raw
    total: int
    position: int | None = None
    before: codec.Raw | None = None
    after: codec.Raw | None = None


SearchFunction = Callable[[str], Sequence[FoundCase]]


class RowTable:
    """The encoded rows of a run. The last selection is cached, since the page loads it batch by batch."""

    def __init__(self, rows: Sequence[bytes], search: SearchFunction) -> None:
        self._rows = rows
        self._search = search
        self._last: tuple[RowFilter, list[int], dict[int, tuple[SearchHit, ...]]] | None = None

    def count_rows(self) -> RowCounts:
        statuses, faults, tags = list[str](), Counter[str](), Counter[str]()
        for row in map(_row_decoder.decode, self._rows):
            statuses.append(_STATUS_LETTERS[row.status])
            faults.update([row.fault] if row.fault else [])
            tags.update(row.tags)
        return RowCounts("".join(statuses), faults.most_common(), tags.most_common(_MAX_TAGS))

    def load_batch(self, row_filter: RowFilter, offset: int, limit: int) -> RowBatch:
        positions, hits = self._select_rows(row_filter)
        piece = positions[offset : offset + min(limit, MAX_BATCH_ROWS)]
        rows = [self._rows[place] for place in piece]
        shown = {row.index for row in map(_row_decoder.decode, rows)} if hits else set[int]()
        return RowBatch(
            len(positions),
            offset,
            [codec.Raw(row) for row in rows],
            {str(index): hits[index] for index in shown if index in hits},
        )

    def find_case(self, row_filter: RowFilter, case: Cell) -> CasePosition | None:
        place = next((at for at, row in enumerate(self._rows) if _is_row_of(row, case)), None)
        if place is None:
            return None
        positions, _ = self._select_rows(row_filter)
        row = codec.Raw(self._rows[place])
        if place not in positions:
            return CasePosition(row, len(positions))
        position = positions.index(place)
        neighbours = [positions[at] if 0 <= at < len(positions) else None for at in (position - 1, position + 1)]
        before, after = (None if at is None else codec.Raw(self._rows[at]) for at in neighbours)
        return CasePosition(row, len(positions), position, before, after)

    def _select_rows(self, row_filter: RowFilter) -> tuple[list[int], dict[int, tuple[SearchHit, ...]]]:
        """The positions of the selected rows in order, and the search hits by the index of the case."""
        if self._last is not None and self._last[0] == row_filter:
            return self._last[1:]
        words = split_words(row_filter.q)
        hits = {case.index: case.hits for case in self._search(row_filter.q)} if words else {}
        statuses = set(filter(None, row_filter.status.split(",")))
        matches = [
            (place, row)
            for place, row in enumerate(map(_row_decoder.decode, self._rows))
            if (not statuses or row.status in statuses)
            and (not row_filter.fault or row.fault == row_filter.fault)
            and (not row_filter.tag or row_filter.tag in row.tags)
            and (not row_filter.suite or row.suite == row_filter.suite)
            and (not row_filter.type or row_filter.type in row.failed_types)
            and (not row_filter.group or str(row.group) == row_filter.group)
            and (not words or row.index in hits or _has_words(row, words))
        ]
        if (key := _get_sort_key(row_filter.sort)) is not None:
            matches.sort(key=lambda match: key(match[1]))
        positions = [place for place, _ in matches]
        self._last = row_filter, positions, hits
        return positions, hits


def _is_row_of(raw: bytes, case: Cell) -> bool:
    suite, name, agent = case
    if codec.encode(name) not in raw:
        return False
    row = _row_decoder.decode(raw)
    return (row.suite, row.id) == (suite, name) and (not row.agent or agent in ("", row.agent))


def _has_words(row: CaseRow, words: Sequence[str]) -> bool:
    text = " ".join([row.id, row.agent, row.name, row.suite, *row.tags, *row.findings, row.reason]).lower()
    return all(word in text for word in words)


def _get_sort_key(sort: str) -> Callable[[CaseRow], Any] | None:
    """The sort is stable: equal rows stay in input order."""
    match sort:
        case "input":
            return None
        case "slow":
            return lambda row: -row.duration_ms
        case "costly":
            return lambda row: -(row.cost_usd if row.cost_usd is not None else -1.0)
        case "turns":
            return lambda row: -row.turns
        case "name":
            return lambda row: row.id
        case _:
            return lambda row: (_STATUS_ORDER[row.status], len(set(row.trials)) == 1)

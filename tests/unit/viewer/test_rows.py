"""The rows of a large run: filters, order, search, pieces, and the neighbours of a case."""

import pytest

from viva.model import codec
from viva.reporters.page import CaseRow
from viva.viewer.rows import CasePosition, RowFilter, RowTable
from viva.viewer.search import FoundCase, SearchHit

HIT = SearchHit(1, "turn-1", "reply", "a whale")


def row(index: int, name: str, status: str = "passed", **fields: object) -> CaseRow:
    given = {"suite": "s", "trials": [status], "turns": 1, "duration_ms": 1.0, **fields}
    return codec.convert({"index": index, "id": name, "status": status, **given}, CaseRow)


ROWS = [
    row(0, "alpha", turns=3, tags=["x"]),
    row(2, "beta", "failed", fault="agent", group=0, failed_types=["contains"], reason="no Anchor", cost_usd=0.2),
    row(4, "gamma", "error", fault="infra", group=1, suite="t", duration_ms=9.0, tags=["x", "y"]),
    row(6, "delta", trials=["passed", "failed"], cost_usd=0.1),
    row(8, "epsilon", "skipped"),
]


def search(text: str) -> list[FoundCase]:
    return [FoundCase(6, (HIT,))] if text == "whale" else []


TABLE = RowTable([*map(codec.encode, ROWS)], search)


def select(**wanted: str) -> list[str]:
    piece = TABLE.load_batch(RowFilter(**wanted), 0, 100)
    assert piece.total == len(piece.rows)
    return [codec.decode(raw, type=CaseRow).id for raw in piece.rows]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"status": "failed,error"}, ["beta", "gamma"]),
        ({"fault": "infra"}, ["gamma"]),
        ({"tag": "x"}, ["gamma", "alpha"]),
        ({"suite": "t"}, ["gamma"]),
        ({"type": "contains"}, ["beta"]),
        ({"group": "1"}, ["gamma"]),
        ({"q": "ANCHOR"}, ["beta"]),
        ({"q": "whale"}, ["delta"]),
        ({"q": "nothing"}, []),
        ({}, ["beta", "gamma", "epsilon", "delta", "alpha"]),
        ({"sort": "input"}, ["alpha", "beta", "gamma", "delta", "epsilon"]),
        ({"sort": "slow"}, ["gamma", "alpha", "beta", "delta", "epsilon"]),
        ({"sort": "costly"}, ["beta", "delta", "alpha", "gamma", "epsilon"]),
        ({"sort": "turns"}, ["alpha", "beta", "gamma", "delta", "epsilon"]),
        ({"sort": "name"}, ["alpha", "beta", "delta", "epsilon", "gamma"]),
    ],
)
def test_rows_are_filtered_searched_and_sorted_as_on_the_page(wanted: dict[str, str], names: list[str]):
    assert select(**wanted) == names


def test_rows_come_in_pieces_with_the_places_of_their_words():
    piece = TABLE.load_batch(RowFilter(sort="input"), 1, 2)
    assert (piece.total, piece.offset, len(piece.rows), piece.hits) == (5, 1, 2, {})
    assert TABLE.load_batch(RowFilter(q="whale"), 0, 9).hits == {"6": (HIT,)}
    assert TABLE.load_batch(RowFilter(), 99, 9).rows == []


def ids(found: CasePosition) -> list[str | None]:
    raws = (found.before, found.row, found.after)
    return [None if raw is None else codec.decode(raw, type=CaseRow).id for raw in raws]


def test_a_case_has_neighbours_in_the_selection():
    found = TABLE.find_case(RowFilter(), ("t", "gamma", ""))
    assert found is not None
    assert (ids(found), found.position, found.total) == (["beta", "gamma", "epsilon"], 1, 5)
    outside = TABLE.find_case(RowFilter(status="passed"), ("t", "gamma", ""))
    assert outside is not None
    assert (ids(outside), outside.position, outside.total) == ([None, "gamma", None], None, 2)
    assert TABLE.find_case(RowFilter(), ("s", "gamma", "")) is None


def test_the_counts_are_those_of_the_filters():
    counts = TABLE.count_rows()
    assert counts.statuses == "pfeps"
    assert (counts.faults, counts.tags) == ([("agent", 1), ("infra", 1)], [("x", 2), ("y", 1)])

"""The positions of the records in a journal, in a few bytes each: a run may have hundreds of thousands of records."""

from array import array
from collections.abc import Container, Iterator, Sequence
from itertools import zip_longest


class RecordPositions:
    """The offset and length of each record, by the trial's index in the input. Of a repeated trial the last one counts."""

    def __init__(self) -> None:
        self._indexes = array("q")
        self._offsets = array("q")
        self._lengths = array("q")

    def add(self, index: int, offset: int, length: int) -> None:
        self._indexes.append(index)
        self._offsets.append(offset)
        self._lengths.append(length)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The offset and length of each record, in input order."""
        for place in self._iterate_in_order():
            yield self._offsets[place], self._lengths[place]

    def __len__(self) -> int:
        return len(set(self._indexes))

    def copy(self) -> "RecordPositions":
        other = RecordPositions()
        other._indexes, other._offsets, other._lengths = self._indexes[:], self._offsets[:], self._lengths[:]
        return other

    def keep_only(self, indexes: Container[int]) -> None:
        """Remove the positions of all other records."""
        self._keep_rows([place for place, index in enumerate(self._indexes) if index in indexes])

    def discard(self, indexes: Container[int]) -> None:
        """Remove the positions of these records."""
        self._keep_rows([place for place, index in enumerate(self._indexes) if index not in indexes])

    def list_indexes(self) -> list[int]:
        """The indexes of the trials that have a record."""
        return sorted(set(self._indexes))

    def _keep_rows(self, rows: Sequence[int]) -> None:
        self._indexes = array("q", (self._indexes[place] for place in rows))
        self._offsets = array("q", (self._offsets[place] for place in rows))
        self._lengths = array("q", (self._lengths[place] for place in rows))

    def _iterate_in_order(self) -> Iterator[int]:
        order = sorted(range(len(self._indexes)), key=self._indexes.__getitem__)  # stable: the last one stays last
        for place, after in zip_longest(order, order[1:]):
            if after is None or self._indexes[after] != self._indexes[place]:
                yield place

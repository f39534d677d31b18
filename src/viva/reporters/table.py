"""Tables of the console: aligned columns that fit the terminal."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

from msgspec import Struct

from viva.reporters.formatting import display_width, escape_controls, shorten_id, shorten_line

_GAP = "  "
_CELL_END = "\x1f"  # not in a cell: control characters are escaped there
_UNLIMITED = 10_000


class Column(Struct, frozen=True):
    """A column of a table. If the table is too wide, flexible columns are shortened, then optional columns are left out."""

    title: str
    align: Literal["left", "right"] = "left"
    is_flexible: bool = False
    is_text: bool = False
    """A text is cut at its end; ids and paths differ there, and are cut in the middle."""
    is_optional: bool = False
    min_width: int = 10
    """A flexible column is not shortened below this."""


def get_output_width() -> int:
    """The columns of the terminal or of COLUMNS. Output that goes to a file or a pipe is not shortened."""
    return shutil.get_terminal_size((100 if sys.stdout.isatty() else _UNLIMITED, 24)).columns


class Table:
    """A table whose rows are added one at a time. A row is kept as one text: 100,000 lists of cells would take 60 MB."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._widths = [0] * len(columns)
        self._rows: list[str] = []

    def add_row(self, cells: Iterable[str]) -> None:
        texts = [*map(escape_controls, cells)]
        self._widths = [*map(max, self._widths, map(display_width, texts))]
        self._rows.append(_CELL_END.join(texts))

    def format_lines(self, width: int) -> Iterator[str]:
        """A line of titles and a line for each row. Columns without any text are left out."""
        titles = [column.title for column in self._columns]
        used = {at: max(text, display_width(titles[at])) for at, text in enumerate(self._widths) if text}
        widths = _fit_widths(self._columns, used, width)
        for cells in chain([titles], (row.split(_CELL_END) for row in self._rows)):
            yield _format_row([(self._columns[at], widths[at], cells[at]) for at in widths])


def format_table(columns: Sequence[Column], rows: Iterable[Iterable[str]], width: int) -> list[str]:
    """The lines of a table of few rows."""
    table = Table(columns)
    for row in rows:
        table.add_row(row)
    return [*table.format_lines(width)]


def _fit_widths(columns: Sequence[Column], widths: dict[int, int], width: int) -> dict[int, int]:
    """The width of each column that is shown."""
    shortened = dict(widths)
    # Texts first: an id that is cut is hard to use.
    for at in sorted(widths, key=lambda at: not columns[at].is_text):
        if columns[at].is_flexible and (excess := _sum_widths(shortened) - width) > 0:
            shortened[at] = max(shortened[at] - excess, min(shortened[at], columns[at].min_width))
    optional = [at for at in widths if columns[at].is_optional]
    if _sum_widths(shortened) > width and optional:
        widths.pop(optional[-1])
        return _fit_widths(columns, widths, width)
    return shortened


def _sum_widths(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _format_row(cells: Sequence[tuple[Column, int, str]]) -> str:
    parts: list[str] = []
    for column, width, text in cells:
        shorten = shorten_line if column.is_text else shorten_id
        shown = shorten(text, width) if display_width(text) > width else text
        padding = " " * (width - display_width(shown))
        parts.append(padding + shown if column.align == "right" else shown + padding)
    return _GAP.join(parts).rstrip()

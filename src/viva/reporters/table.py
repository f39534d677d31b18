"""Tables of the console: aligned columns that fit the terminal."""

import shutil
import sys
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from viva.reporters.formatting import display_width, escape_controls, shorten_id, shorten_line

_GAP = "  "
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


def format_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A line of titles and a line for each row. Columns without any text are left out."""
    lines = [[column.title for column in columns], *([escape_controls(cell) for cell in row] for row in rows)]
    used = [at for at in range(len(columns)) if any(line[at] for line in lines[1:])]
    widths = _fit_widths(columns, {at: max(display_width(line[at]) for line in lines) for at in used}, width)
    return [_format_row([(columns[at], widths[at], line[at]) for at in widths]) for line in lines]


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

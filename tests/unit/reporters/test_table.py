"""Tables of the console."""

import tracemalloc

from viva.reporters.table import Column, Table, format_table

COLUMNS = (Column("id"), Column("remark", is_optional=True), Column("turns", "right"))


def test_columns_are_as_wide_as_their_widest_cell_and_an_empty_column_is_left_out():
    lines = format_table(COLUMNS, [["a", "", "1,000"], ["longer", "", "2"]], 80)
    assert lines == ["id      turns", "a       1,000", "longer      2"]


def test_control_characters_in_a_cell_do_not_end_it():
    line = format_table(COLUMNS, [["a\x1fb", "c", "1"]], 80)[1]
    assert line.split()[1:] == ["c", "1"]
    assert "\x1f" not in line


def test_a_row_takes_little_more_memory_than_its_text():  # 15: 100,000 cases
    row = ["case-000001", "", "12"]
    table = Table(COLUMNS)
    tracemalloc.start()
    try:
        for number in range(10_000):
            table.add_row([f"case-{number:06}", "", str(number)])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 10_000 * (sum(map(len, row)) + 80)
    assert len(list(table.format_lines(80))) == 10_001

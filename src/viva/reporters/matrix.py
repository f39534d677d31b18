"""The matrix of cases and agents as text: for the console, for Markdown, and a plot of quality against cost."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from viva.model.event import RunStarted
from viva.model.record import TrialRecord
from viva.reporters.formatting import (
    display_width,
    escape_controls,
    fit_line,
    format_cost,
    format_ms,
    shorten_id,
    wrap_text,
)
from viva.reporters.report import CaseTrials, RecordHead
from viva.stats.matrix import Matrix, MatrixBuilder, MatrixCell, MatrixColumn, MatrixRow, MatrixTrial

_MAX_ROWS = 30
_MAX_MARKDOWN_ROWS = 200
_MARKDOWN_ROOM = 20_000
"""The most characters of the rows: a comment on GitHub has 65,536, and the report has more than the matrix."""
_MIN_ID_ROOM = 24
"""The least room for the ids of cases beside cells with intervals."""
_PLOT_WIDTH, _PLOT_HEIGHT = 40, 9
_MARKS = {"better": "▲", "worse": "▼"}


class RunMatrixBuilder:
    """Builds the matrix of a run from its trials, which are added one by one."""

    def __init__(self, started: RunStarted) -> None:
        self._builder = MatrixBuilder(started.agents, is_sequential=bool(started.settings.get("sequential")))

    def add(self, record: TrialRecord | RecordHead) -> None:
        trial = MatrixTrial(record.suite, record.id, record.status, record.duration_ms, record.cost_usd, record.digest)
        self._builder.add(record.agent or "", trial)

    def build(self) -> Matrix:
        return self._builder.build()


def create_matrix_builder(started: RunStarted | None) -> RunMatrixBuilder | None:
    """A builder for a run of several agents; None for a run of one, which has no matrix."""
    return RunMatrixBuilder(started) if started is not None and len(started.agents) > 1 else None


def build_run_matrix(started: RunStarted | None, cases: Iterable[CaseTrials]) -> Matrix | None:
    """The matrix of a run that has ended; None for a run of one agent."""
    matrix = create_matrix_builder(started)
    if matrix is None:
        return None
    for case in cases:
        for head in case.heads:
            matrix.add(head)
    return matrix.build()


def get_column_letter(number: int) -> str:
    """The letter of a column: A to Z, then AA."""
    letter = chr(ord("A") + number % 26)
    return letter if number < 26 else get_column_letter(number // 26 - 1) + letter


def make_case_labeller(cases: Iterable[tuple[str, str]]) -> Callable[[str, str], str]:
    """Returns a function of suite and id that returns the id, with the suite behind it if two suites have that id."""
    suites = Counter(case for _, case in set(cases))
    return lambda suite, case: f"{case} ({suite})" if suites[case] > 1 else case


def format_matrix(matrix: Matrix, width: int) -> list[str]:
    """The matrix for the console: the agents, the cases that differ between them, and the plot."""
    lines = _format_agent_table(matrix, width)
    different = [row for row in matrix.rows if row.is_different]
    if different:
        lines += ["", *_format_case_table(matrix, different, width)]
    else:
        lines += ["", f"All {len(matrix.rows)} cases have the same result on all agents{_describe_unshared(matrix)}"]
    if plot := format_plot(matrix, width):
        lines += ["", *plot]
    notes = [line for note in matrix.notes for line in wrap_text(escape_controls(note), width, 9)]
    return [*lines, "", *notes] if notes else lines


def _format_agent_table(matrix: Matrix, width: int) -> list[str]:
    rows = [
        (
            f"{get_column_letter(number)} {escape_controls(column.name)}",
            _format_rate(column),
            _format_cost(column),
            format_ms(column.p95_ms) if column.p95_ms is not None else "",
        )
        for number, column in enumerate(matrix.columns)
    ]
    table = [("Agent", "Pass rate", "Cost", "p95"), *rows]
    name_room = max(
        12, width - 2 - sum(max(map(display_width, texts)) + 2 for texts in list(zip(*table, strict=True))[1:])
    )
    table = [(fit_line(name, name_room), *rest) for name, *rest in table]
    lines = align_table(table)
    for number, column in enumerate(matrix.columns):
        if column.difference is not None:
            lines.append(f"{get_column_letter(number)} − A: {format_difference(column)}")
    return lines


def _format_rate(column: MatrixColumn) -> str:
    if column.rate is None or column.low is None or column.high is None:
        return "no verdict"
    return f"{column.rate * 100:.1f} % ({column.low * 100:.0f} to {column.high * 100:.0f} %)"


def _format_cost(column: MatrixColumn) -> str:
    known = format_cost(column.cost_usd, 0)
    return "unknown" if known is None else f"{known}+" if column.unpriced_trials else known


def format_difference(column: MatrixColumn) -> str:
    """`+12.5 points [-20.0, +45.0], p=0.62: no difference shown`"""
    difference = column.difference
    if difference is None:
        return ""
    interval = (
        ""
        if difference.low is None or difference.high is None
        else f" [{difference.low * 100:+.1f}, {difference.high * 100:+.1f}]"
    )
    return f"{difference.delta * 100:+.1f} points{interval}, p={difference.p:.2g}: {difference.verdict}"


def _format_case_table(matrix: Matrix, different: Sequence[MatrixRow], width: int) -> list[str]:
    letters = [get_column_letter(number) for number in range(len(matrix.columns))]
    shown = different[:_MAX_ROWS]
    cells = [[format_cell(cell, has_interval=True) for cell in row.cells] for row in shown]
    if sum(max(map(display_width, texts)) + 2 for texts in zip(*cells, strict=True)) + _MIN_ID_ROOM > width:
        cells = [[format_cell(cell) for cell in row.cells] for row in shown]
    room = max(
        16,
        width
        - 2
        - sum(
            max(len(letter), *map(display_width, texts)) + 2
            for letter, texts in zip(letters, zip(*cells, strict=True), strict=True)
        ),
    )
    title = f"{len(different)} of {len(matrix.rows)} cases differ{_describe_unshared(matrix)}"
    table = [(title, *letters)]
    label = make_case_labeller((row.suite, row.case) for row in matrix.rows)
    names = [fit_line(escape_controls(label(row.suite, row.case)), room) for row in shown]
    table += [(name, *texts) for name, texts in zip(names, cells, strict=True)]
    lines = align_table(table)
    if len(different) > len(shown):
        lines.append(f"… and {len(different) - len(shown)} more")
    if any(cell and cell.verdict in _MARKS for row in different for cell in row.cells):
        lines.append("▲ ▼ better or worse than A, more than chance")
    return lines


def _describe_unshared(matrix: Matrix) -> str:
    """How many cases some agent did not run; nothing if each ran on all."""
    unshared = sum(not row.is_shared for row in matrix.rows)
    return f"; {unshared} {'is' if unshared == 1 else 'are'} not on all" if unshared else ""


def format_cell(cell: MatrixCell | None, *, has_interval: bool = False) -> str:
    """`✓`, `✗` or `3/5`, with `!` for trials in error and an arrow for a difference from the first agent.

    The interval of the rate follows if there are several trials: `3/5 (23-88 %)`.
    """
    if cell is None:
        return "–"
    if not cell.decided:
        return "!" if cell.errors else "skipped"
    text = ("✓" if cell.passed else "✗") if cell.decided == 1 else f"{cell.passed}/{cell.decided}"
    if has_interval and cell.decided > 1 and cell.low is not None and cell.high is not None:
        text += f" ({cell.low * 100:.0f}-{cell.high * 100:.0f} %)"
    errors = "!" if cell.errors else ""
    changed = "≠" if cell.is_changed else ""
    return f"{text}{errors}{changed}{_MARKS.get(cell.verdict or '', '')}"


def align_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows with aligned columns, the first to the left and the others to the right."""
    widths = [max(map(display_width, texts)) for texts in zip(*rows, strict=True)]
    lines: list[str] = []
    for first, *rest in rows:
        cells = [" " * (width - display_width(text)) + text for text, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first + " " * (widths[0] - display_width(first)), *cells]).rstrip())
    return lines


class PlotAxis(Struct, frozen=True):
    """The horizontal axis of the plot: its label, and a value or None for each agent."""

    label: str
    values: Sequence[float | None]
    format: Callable[[float], str]


def choose_axis(matrix: Matrix) -> PlotAxis | None:
    """The axis of cost per trial, or of time if costs are unknown. None if fewer than two agents have a value."""
    cost = PlotAxis(
        "cost per trial",
        [column.cost_per_trial_usd for column in matrix.columns],
        lambda value: format_cost(value, 0) or "$0",
    )
    time = PlotAxis("mean time per trial", [column.mean_ms for column in matrix.columns], format_ms)
    for axis in (cost, time):
        shown = [value for value, column in zip(axis.values, matrix.columns, strict=True) if column.rate is not None]
        if sum(value is not None for value in shown) > 1:
            return axis
    return None


def format_plot(matrix: Matrix, width: int) -> list[str]:
    """Quality against cost: one letter per agent. Better is higher, cheaper is further to the left."""
    axis = choose_axis(matrix)
    if axis is None:
        return []
    points = [
        (number, value, column.rate)
        for number, (value, column) in enumerate(zip(axis.values, matrix.columns, strict=True))
        if value is not None and column.rate is not None
    ]
    columns = max(16, min(_PLOT_WIDTH, width - 12))
    left, right = min(value for _, value, _ in points), max(value for _, value, _ in points)
    grid = [[" "] * columns for _ in range(_PLOT_HEIGHT)]
    for number, value, rate in points:
        at = round((value - left) / (right - left) * (columns - 1)) if right > left else columns // 2
        row = grid[math.ceil((1 - rate) * (_PLOT_HEIGHT - 1) - 0.5)]
        free = next((place for place in (*range(at, columns), *range(at, -1, -1)) if row[place] == " "), at)
        row[free] = get_column_letter(number)
    labels = {0: "100 %", _PLOT_HEIGHT // 2: "50 %", _PLOT_HEIGHT - 1: "0 %"}
    lines = [f"Pass rate against {axis.label}"]
    lines += [f"{labels.get(number, ''):>6} │{''.join(row)}".rstrip() for number, row in enumerate(grid)]
    low, high = axis.format(left), axis.format(right)
    return [*lines, f"       └{'─' * columns}", f"        {low}{high:>{max(columns - len(low), len(high) + 1)}}"]


def format_matrix_markdown(matrix: Matrix, escape: Callable[[str], str]) -> str:
    """The matrix as tables of Markdown, with the plot as text."""
    lines = ["| | agent | pass rate | vs. A | cost | p95 |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    lines += [
        f"| {get_column_letter(number)} | {escape(fit_line(column.name, 120))} | {_format_rate(column)} | {format_difference(column)} "
        f"| {_format_cost(column)} | {format_ms(column.p95_ms) if column.p95_ms is not None else ''} |"
        for number, column in enumerate(matrix.columns)
    ]
    letters = [get_column_letter(number) for number in range(len(matrix.columns))]
    lines += ["", f"| case | {' | '.join(letters)} |", f"| --- |{' ---: |' * len(letters)}"]
    rows = sorted(matrix.rows, key=lambda row: not row.is_different)
    label = make_case_labeller((row.suite, row.case) for row in rows)
    shown, length = 0, 0
    for row in rows[:_MAX_MARKDOWN_ROWS]:
        title = escape(shorten_id(label(row.suite, row.case), 120))  # a line break would end the table
        line = f"| {title} | {' | '.join(format_cell(cell, has_interval=True) for cell in row.cells)} |"
        length += len(line) + 1
        if length > _MARKDOWN_ROOM:
            break
        lines.append(line)
        shown += 1
    if len(rows) > shown:
        lines += ["", f"{len(rows) - shown} more cases are not listed."]
    if plot := format_plot(matrix, 80):
        lines += ["", "```text", *plot, "```"]
    lines += ["", *(f"- {escape(escape_controls(note))}" for note in matrix.notes)] if matrix.notes else []
    return "\n".join(lines) + "\n"

"""Building blocks of the console output: marks, colours, and the lines that explain a failure."""

from typing import Literal

from viva.model.record import STATUS_MARKS, Status
from viva.model.turn import Traceback
from viva.reporters.failures import FailedCheck, TrialFailure
from viva.reporters.formatting import display_width, escape_controls, fit_line, wrap_text

Style = Literal["green", "red", "yellow", "cyan", "dim", "bold"]

INFO_MARK = "\N{INFORMATION SOURCE}"
WARNING_MARK = "⚠"
TEXT_LINES = 3
_ANSI_CODES: dict[Style, str] = {"green": "32", "red": "31", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
_STATUS_STYLES: dict[Status, Style] = {"passed": "green", "failed": "red", "error": "yellow", "skipped": "cyan"}
# One ASCII character for each mark, so that lines keep their width on terminals without Unicode.
_ASCII_MARKS = str.maketrans("✓✗○►├│└─═→…·⏎" + WARNING_MARK + INFO_MARK, "+xo>||`-=>~-/!i")
_MAX_FAILED_CHECKS = 8
_COPYABLE_ROOM = 4096


class Palette:
    """Colours text with ANSI codes, or leaves it as it is."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour
        self.marks: dict[Status, str] = {
            status: self.style_status(status, mark) for status, mark in STATUS_MARKS.items()
        }

    def __call__(self, style: Style, text: str) -> str:
        return f"\x1b[{_ANSI_CODES[style]}m{text}\x1b[0m" if self._colour else text

    def style_status(self, status: Status, text: str) -> str:
        return self(_STATUS_STYLES[status], text)


def fit_encoding(text: str, encoding: str) -> str:
    """Replaces marks by ASCII, and escapes what the encoding of a stream cannot represent."""
    return text.translate(_ASCII_MARKS).encode(encoding, "backslashreplace").decode(encoding)


def format_labelled_text(label: str, text: str | None, width: int) -> list[str]:
    """`label: text` with hanging indent; nothing without a text."""
    if not text:
        return []
    first, *more = wrap_text(text, width - len(label) - 2, TEXT_LINES)
    return [f"{label}: {first}", *(" " * (len(label) + 2) + line for line in more)]


def to_copyable(text: str) -> str:
    """A path or a command in one line, not shortened."""
    return fit_line(text, _COPYABLE_ROOM)


def format_failed_check(check: FailedCheck, palette: Palette, width: int) -> list[str]:
    """Mark, name and reason, then expected, actual, differences and suggestions."""
    mark = palette.marks["error" if check.is_error else "failed"]
    head = format_check_title(check, width - 2) + (
        wrap_text(check.reason, width - 2, TEXT_LINES) if check.reason else []
    )
    first, *more = head or ["failed"]
    lines = [f"{mark} {first}", *(f"  {line}" for line in more)]
    if check.expected is not None:
        lines.append(f"  expected: {fit_line(check.expected, width - 12)}")
    if check.actual is not None and not (check.reason and check.actual == "[]"):  # "no tool was called" says it
        lines.append(f"  actual:   {fit_line(check.actual, width - 12)}")
    if check.differences:
        lines += ["  differs:", *(f"    {fit_line(line, width - 4)}" for line in check.differences)]
    for suggestion in check.suggestions:
        lines += [f"  {line}" for line in format_labelled_text("suggestion", suggestion, width - 2)]
    return lines


def format_check_title(check: FailedCheck, width: int) -> list[str]:
    """Label and message in one line or, where they do not fit, on separate lines."""
    title = check.title
    if not check.label or not check.message or (len(title) <= width and display_width(escape_controls(title)) <= width):
        return [fit_line(title, width)] if title else []
    return [fit_line(check.label, width), *wrap_text(check.message, width, TEXT_LINES)]


def format_traceback(traceback: Traceback, width: int, max_printed_lines: int = 0) -> list[str]:
    """An exception in the user's Python: each frame with its source line, and the end of the printed output."""
    turn = f"turn {traceback.turn}, " if traceback.turn else ""
    lines = [fit_line(f"{turn}{traceback.where}: {traceback.error}", width)]
    for frame in traceback.frames:
        lines.append(f"  {to_copyable(frame.file)}:{frame.line} in {fit_line(frame.function, 60)}")
        lines += [f"    {fit_line(frame.source, width - 4)}"] if frame.source else []
    printed = traceback.printed.splitlines()[-max_printed_lines:] if max_printed_lines else []
    return lines + (["  printed:", *(f"    {fit_line(line, width - 4)}" for line in printed)] if printed else [])


def format_failure(failure: TrialFailure, palette: Palette, width: int) -> list[str]:
    """The lines below a case that did not pass."""
    status = failure.status_text
    first, *more = format_labelled_text(status, failure.error, width) or [status]
    lines = [palette.style_status(failure.status, status) + first.removeprefix(status), *more]
    turn = None
    for check in failure.failed_checks[:_MAX_FAILED_CHECKS]:
        if check.turn is None or check.turn is not turn:
            lines += _format_place(check, width)
            turn = check.turn
        lines += [f"  {line}" for line in format_failed_check(check, palette, width - 2)]
        if check.actual is None and turn is not None and turn.output:
            lines.append(f'    agent:    "{fit_line(turn.output, width - 16)}"')
    if len(failure.failed_checks) > _MAX_FAILED_CHECKS:
        lines.append(f"… and {len(failure.failed_checks) - _MAX_FAILED_CHECKS} more")
    for traceback in failure.tracebacks:
        head, *frames = format_traceback(traceback, width)
        texts = [failure.error or "", *(check.reason for check in failure.failed_checks)]
        lines += [] if any(traceback.error in text for text in texts) else [head]
        lines += frames[-2:]  # the line that raised; `-v` shows all
    if failure.unanswered_question is not None:
        lines.append(f'agent asked: "{fit_line(failure.unanswered_question, width - 15)}"')
    lines += format_labelled_text("hint", failure.hint, width)
    if failure.command is not None and failure.source:
        lines.append(f"at {to_copyable(failure.source)}")
    return [*lines, f"workspace: {to_copyable(failure.workspace)}"] if failure.workspace else lines


def _format_place(check: FailedCheck, width: int) -> list[str]:
    if check.turn is not None:
        return [f'{check.place}: "{fit_line(check.turn.input, width - len(check.place) - 4)}"']
    return [fit_line(check.place, width)] if check.place else []

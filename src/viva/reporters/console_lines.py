"""The answer to "why did it not pass?" as lines of a console: used below a case's line and inside the tree."""

from viva.model.tracebacks import Traceback
from viva.reporters.failures import FailedCheck, TrialFailure
from viva.reporters.formatting import display_width, escape_controls, fit_line, wrap_text
from viva.reporters.palette import Palette

TEXT_LINES = 3
_MOST_FINDINGS = 8
_UNCUT = 4096  # paths and commands are there to be copied


def label_lines(label: str, text: str | None, room: int) -> list[str]:
    """`label: text`, wrapped below itself; nothing where there is no text."""
    if not text:
        return []
    first, *more = wrap_text(text, room - len(label) - 2, TEXT_LINES)
    return [f"{label}: {first}", *(" " * (len(label) + 2) + line for line in more)]


def to_copyable(text: str) -> str:
    """A path or a command: safe, but not shortened."""
    return fit_line(text, _UNCUT)


def format_failed_check(found: FailedCheck, ink: Palette, room: int) -> list[str]:
    """One check that did not hold: its mark and name, the reason, what was expected, what was there, and what is suggested."""
    mark = ink.marks["error" if found.is_error else "failed"]
    told = format_check_title(found, room - 2) + (wrap_text(found.reason, room - 2, TEXT_LINES) if found.reason else [])
    first, *more = told or ["did not hold"]
    lines = [f"{mark} {first}", *(f"  {line}" for line in more)]
    if found.expected is not None:
        lines.append(f"  expected: {fit_line(found.expected, room - 12)}")
    if found.actual is not None:
        lines.append(f"  actual:   {fit_line(found.actual, room - 12)}")
    if found.differences:
        lines += ["  differs:", *(f"    {fit_line(line, room - 4)}" for line in found.differences)]
    for suggestion in found.suggestions:
        lines += [f"  {line}" for line in label_lines("suggestion", suggestion, room - 2)]
    return lines


def format_check_title(found: FailedCheck, room: int) -> list[str]:
    """The check's name with its author's words on it: in one line or, where that is too short for both, below each other."""
    title = found.title
    if not found.label or not found.message or (len(title) <= room and display_width(escape_controls(title)) <= room):
        return [fit_line(title, room)] if title else []
    return [fit_line(found.label, room), *wrap_text(found.message, room, TEXT_LINES)]


def format_traceback(traceback: Traceback, room: int, max_printed_lines: int = 0) -> list[str]:
    """An error in the user's Python: each frame with its source line, and the end of what the code printed."""
    turn = f"turn {traceback.turn}, " if traceback.turn else ""
    lines = [fit_line(f"{turn}{traceback.where}: {traceback.error}", room)]
    for frame in traceback.frames:
        lines.append(f"  {to_copyable(frame.file)}:{frame.line} in {fit_line(frame.function, 60)}")
        lines += [f"    {fit_line(frame.source, room - 4)}"] if frame.source else []
    printed = traceback.printed.splitlines()[-max_printed_lines:] if max_printed_lines else []
    return lines + (["  printed:", *(f"    {fit_line(line, room - 4)}" for line in printed)] if printed else [])


def format_failure(found: TrialFailure, ink: Palette, room: int, show_command: str | None = None) -> list[str]:
    """The short answer, whole; `see` is the command that shows more of it."""
    verdict, *more = label_lines(found.status_text, found.error, room) or [found.status_text]
    lines = [ink.style_status(found.status, found.status_text) + verdict.removeprefix(found.status_text), *more]
    turn = None
    for each in found.failed_checks[:_MOST_FINDINGS]:
        if each.turn is None or each.turn is not turn:
            lines += _heading(each, room)
            turn = each.turn
        lines += [f"  {line}" for line in format_failed_check(each, ink, room - 2)]
        if each.actual is None and turn is not None and turn.output:
            lines.append(f'    agent:    "{fit_line(turn.output, room - 16)}"')
    if len(found.failed_checks) > _MOST_FINDINGS:
        lines.append(f"… and {len(found.failed_checks) - _MOST_FINDINGS} more")
    for traceback in found.tracebacks:
        lines += format_traceback(traceback, room)[-2:]  # the line that raised; `-v` shows all
    if found.unanswered_question is not None:
        lines.append(f'agent asked: "{fit_line(found.unanswered_question, room - 15)}"')
    lines += label_lines("hint", found.hint, room)
    if found.command is not None and found.source:
        lines.append(f"at {to_copyable(found.source)}")
    if found.workspace:
        lines.append(f"workspace: {to_copyable(found.workspace)}")
    lines += [ink("dim", to_copyable(command)) for command in (show_command, found.command) if command is not None]
    return lines


def _heading(found: FailedCheck, room: int) -> list[str]:
    if found.turn is not None:
        return [f'{found.place}: "{fit_line(found.turn.input, room - len(found.place) - 4)}"']
    return [fit_line(found.place, room)] if found.place else []

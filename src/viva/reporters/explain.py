"""The answer to "why did it not pass?" as lines of a console: used below a case's line and inside the tree."""

from viva.model.tracebacks import Traceback
from viva.reporters.ink import Ink
from viva.reporters.visible import columns, one_line, visible, wrapped
from viva.reporters.why import Finding, Why

TEXT_LINES = 3
_MOST_FINDINGS = 8
_UNCUT = 4096  # paths and commands are there to be copied


def labelled(label: str, text: str | None, room: int) -> list[str]:
    """`label: text`, wrapped below itself; nothing where there is no text."""
    if not text:
        return []
    first, *more = wrapped(text, room - len(label) - 2, TEXT_LINES)
    return [f"{label}: {first}", *(" " * (len(label) + 2) + line for line in more)]


def copyable(text: str) -> str:
    """A path or a command: safe, but not shortened."""
    return one_line(text, _UNCUT)


def finding_lines(found: Finding, ink: Ink, room: int) -> list[str]:
    """One check that did not hold: its mark and name, the reason, what was expected, what was there, and what is suggested."""
    mark = ink.marks["error" if found.broken else "failed"]
    told = titled(found, room - 2) + (wrapped(found.reason, room - 2, TEXT_LINES) if found.reason else [])
    first, *more = told or ["did not hold"]
    lines = [f"{mark} {first}", *(f"  {line}" for line in more)]
    if found.expected is not None:
        lines.append(f"  expected: {one_line(found.expected, room - 12)}")
    if found.actual is not None:
        lines.append(f"  actual:   {one_line(found.actual, room - 12)}")
    if found.differences:
        lines += ["  differs:", *(f"    {one_line(line, room - 4)}" for line in found.differences)]
    for suggestion in found.suggestions:
        lines += [f"  {line}" for line in labelled("suggestion", suggestion, room - 2)]
    return lines


def titled(found: Finding, room: int) -> list[str]:
    """The check's name with its author's words on it: in one line or, where that is too short for both, below each other."""
    title = found.title
    if not found.label or not found.message or (len(title) <= room and columns(visible(title)) <= room):
        return [one_line(title, room)] if title else []
    return [one_line(found.label, room), *wrapped(found.message, room, TEXT_LINES)]


def traceback_lines(traceback: Traceback, room: int, printed_lines: int = 0) -> list[str]:
    """An error in the user's Python: each frame with its source line, and the end of what the code printed."""
    turn = f"turn {traceback.turn}, " if traceback.turn else ""
    lines = [one_line(f"{turn}{traceback.where}: {traceback.error}", room)]
    for frame in traceback.frames:
        lines.append(f"  {copyable(frame.file)}:{frame.line} in {one_line(frame.function, 60)}")
        lines += [f"    {one_line(frame.source, room - 4)}"] if frame.source else []
    printed = traceback.printed.splitlines()[-printed_lines:] if printed_lines else []
    return lines + (["  printed:", *(f"    {one_line(line, room - 4)}" for line in printed)] if printed else [])


def why_lines(found: Why, ink: Ink, room: int, see: str | None = None) -> list[str]:
    """The short answer, whole; `see` is the command that shows more of it."""
    verdict, *more = labelled(found.verdict, found.error, room) or [found.verdict]
    lines = [ink.status(found.status, found.verdict) + verdict.removeprefix(found.verdict), *more]
    turn = None
    for each in found.findings[:_MOST_FINDINGS]:
        if each.turn is None or each.turn is not turn:
            lines += _heading(each, room)
            turn = each.turn
        lines += [f"  {line}" for line in finding_lines(each, ink, room - 2)]
        if each.actual is None and turn is not None and turn.output:
            lines.append(f'    agent:    "{one_line(turn.output, room - 16)}"')
    if len(found.findings) > _MOST_FINDINGS:
        lines.append(f"… and {len(found.findings) - _MOST_FINDINGS} more")
    for traceback in found.tracebacks:
        lines += traceback_lines(traceback, room)[-2:]  # the line that raised; `-v` shows all
    if found.asked is not None:
        lines.append(f'agent asked: "{one_line(found.asked, room - 15)}"')
    lines += labelled("hint", found.hint, room)
    if found.command is not None and found.source:
        lines.append(f"at {copyable(found.source)}")
    if found.workspace:
        lines.append(f"workspace: {copyable(found.workspace)}")
    lines += [ink("dim", copyable(command)) for command in (see, found.command) if command is not None]
    return lines


def _heading(found: Finding, room: int) -> list[str]:
    if found.turn is not None:
        return [f'{found.place}: "{one_line(found.turn.input, room - len(found.place) - 4)}"']
    return [one_line(found.place, room)] if found.place else []

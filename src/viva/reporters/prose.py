"""A trial as plain text of several lines, for reports that are files: why it did not pass, and what was said."""

from collections.abc import Iterator

from viva.model.record import TrialRecord, TurnRecord
from viva.model.tracebacks import Traceback
from viva.reporters.figures import counted, seconds
from viva.reporters.visible import literal, visible, visible_lines
from viva.reporters.why import Finding, Why, turn_status

_ARGUMENTS_ROOM = 500
_FILES = 20


def why_text(found: Why) -> str:
    """Every reason, one below the other."""
    lines = [found.verdict + (f": {visible_lines(found.error)}" if found.error else "")]
    for each in found.findings:
        lines += _finding(each)
    for traceback in found.tracebacks:
        lines += traceback_text(traceback)
    if found.asked is not None:
        lines.append(f'agent asked: "{visible(found.asked)}"')
    if found.hint:
        lines.append(f"hint: {visible_lines(found.hint)}")
    if found.command is not None:
        lines += [f"at {visible(found.source or '')}", visible(found.command)]
    return "\n".join(lines)


def traceback_text(traceback: Traceback) -> Iterator[str]:
    """An error in the user's Python, as Python prints it, and what the code had printed."""
    turn = f"turn {traceback.turn}, " if traceback.turn else ""
    yield f"{turn}{visible(traceback.where)}: {visible_lines(traceback.error)}"
    for frame in traceback.frames:
        yield f"    {visible(frame.file)}:{frame.line} in {visible(frame.function)}"
        yield f"        {visible(frame.source)}"
    if traceback.printed:
        yield f"    printed:\n        {_indented(traceback.printed, len(traceback.printed)).rstrip()}"


def transcript(record: TrialRecord, text_room: int) -> str:
    """The conversation; a text longer than `text_room` characters is cut, and says so."""
    return "\n".join(line for turn in record.turns for line in _turn(turn, record, text_room))


def _finding(found: Finding) -> Iterator[str]:
    head = ": ".join(visible(part) for part in (found.place, found.title) if part)
    said = visible_lines(found.reason)
    yield f"{'! ' if found.broken else '✗ '}{head or said}"
    if found.turn is not None:
        yield f'    user:     "{visible(cut(found.turn.input, _ARGUMENTS_ROOM))}"'
    if head and said:
        yield f"    reason:   {said}"
    if found.expected is not None:
        yield f"    expected: {visible(found.expected)}"
    if found.actual is not None:
        yield f"    actual:   {visible(found.actual)}"
    if found.differences:
        yield "    differs:"
        yield from (f"      {line}" for line in found.differences)
    for suggestion in found.suggestions:
        yield f"    suggestion: {visible(suggestion)}"


def _turn(turn: TurnRecord, record: TrialRecord, text_room: int) -> Iterator[str]:
    by = "" if turn.input_source == "static" else f", {turn.input_source}"
    yield f"Turn {turn.turn} ({turn_status(turn, record)}, {seconds(turn.duration_ms)}{by})"
    yield f"  user: {_indented(turn.input, text_room)}"
    for call in turn.tool_calls:
        inner = "" if call.args is None else literal(call.args, _ARGUMENTS_ROOM)
        failed = "" if call.error is None else f" failed: {visible(cut(call.error, _ARGUMENTS_ROOM))}"
        yield f"  tool: {visible(call.name)}({inner}){failed}"
    if turn.output:
        yield f"  agent: {_indented(turn.output, text_room)}"
    elif turn.data is not None:
        yield f"  agent: {literal(turn.data, text_room)}"
    for file in turn.files[:_FILES]:
        told = f"\n{file.diff}" if file.diff else ""
        yield f"  {file.change}: {_indented(f'{file.path}{told}', text_room)}"
    if turn.error is not None:
        yield f"  error: {_indented(turn.error, text_room)}"


def _indented(text: str, room: int) -> str:
    return visible_lines(cut(text, room)).replace("\n", "\n    ")


def cut(text: str, room: int) -> str:
    """The first `room` characters, and how many there were more."""
    return text if len(text) <= room else f"{text[:room]}… ({counted(len(text) - room, 'more character')})"

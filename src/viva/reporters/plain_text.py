"""A trial as plain text of several lines, for reports that are files: why it did not pass, and what was said."""

from collections.abc import Iterator

from viva.model.record import TrialRecord, TurnRecord
from viva.model.tracebacks import Traceback
from viva.reporters.failures import FailedCheck, TrialFailure, get_turn_status
from viva.reporters.formatting import escape_controls, escape_multiline, format_value
from viva.reporters.numbers import format_count, format_ms

_ARGUMENTS_ROOM = 500
_FILES = 20


def format_failure_text(found: TrialFailure) -> str:
    """Every reason, one below the other."""
    lines = [found.status_text + (f": {escape_multiline(found.error)}" if found.error else "")]
    for each in found.failed_checks:
        lines += _finding(each)
    for traceback in found.tracebacks:
        lines += format_traceback_text(traceback)
    if found.unanswered_question is not None:
        lines.append(f'agent asked: "{escape_controls(found.unanswered_question)}"')
    if found.hint:
        lines.append(f"hint: {escape_multiline(found.hint)}")
    if found.command is not None:
        lines += [f"at {escape_controls(found.source or '')}", escape_controls(found.command)]
    return "\n".join(lines)


def format_traceback_text(traceback: Traceback) -> Iterator[str]:
    """An error in the user's Python, as Python prints it, and what the code had printed."""
    turn = f"turn {traceback.turn}, " if traceback.turn else ""
    yield f"{turn}{escape_controls(traceback.where)}: {escape_multiline(traceback.error)}"
    for frame in traceback.frames:
        yield f"    {escape_controls(frame.file)}:{frame.line} in {escape_controls(frame.function)}"
        yield f"        {escape_controls(frame.source)}"
    if traceback.printed:
        yield f"    printed:\n        {_indented(traceback.printed, len(traceback.printed)).rstrip()}"


def format_transcript(record: TrialRecord, text_room: int) -> str:
    """The conversation; a text longer than `text_room` characters is cut, and says so."""
    return "\n".join(line for turn in record.turns for line in _turn(turn, record, text_room))


def _finding(found: FailedCheck) -> Iterator[str]:
    head = ": ".join(escape_controls(part) for part in (found.place, found.title) if part)
    said = escape_multiline(found.reason)
    yield f"{'! ' if found.is_error else '✗ '}{head or said}"
    if found.turn is not None:
        yield f'    user:     "{escape_controls(clip_text(found.turn.input, _ARGUMENTS_ROOM))}"'
    if head and said:
        yield f"    reason:   {said}"
    if found.expected is not None:
        yield f"    expected: {escape_controls(found.expected)}"
    if found.actual is not None:
        yield f"    actual:   {escape_controls(found.actual)}"
    if found.differences:
        yield "    differs:"
        yield from (f"      {line}" for line in found.differences)
    for suggestion in found.suggestions:
        yield f"    suggestion: {escape_controls(suggestion)}"


def _turn(turn: TurnRecord, record: TrialRecord, text_room: int) -> Iterator[str]:
    by = "" if turn.input_source == "static" else f", {turn.input_source}"
    yield f"Turn {turn.turn} ({get_turn_status(turn, record)}, {format_ms(turn.duration_ms)}{by})"
    yield f"  user: {_indented(turn.input, text_room)}"
    for call in turn.tool_calls:
        inner = "" if call.args is None else format_value(call.args, _ARGUMENTS_ROOM)
        failed = "" if call.error is None else f" failed: {escape_controls(clip_text(call.error, _ARGUMENTS_ROOM))}"
        yield f"  tool: {escape_controls(call.name)}({inner}){failed}"
    if turn.output:
        yield f"  agent: {_indented(turn.output, text_room)}"
    elif turn.data is not None:
        yield f"  agent: {format_value(turn.data, text_room)}"
    for file in turn.files[:_FILES]:
        told = f"\n{file.diff}" if file.diff else ""
        yield f"  {file.change}: {_indented(f'{file.path}{told}', text_room)}"
    if turn.error is not None:
        yield f"  error: {_indented(turn.error, text_room)}"


def _indented(text: str, room: int) -> str:
    return escape_multiline(clip_text(text, room)).replace("\n", "\n    ")


def clip_text(text: str, room: int) -> str:
    """The first `room` characters, and how many there were more."""
    return text if len(text) <= room else f"{text[:room]}… ({format_count(len(text) - room, 'more character')})"

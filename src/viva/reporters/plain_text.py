"""A trial as plain text for report files: why it did not pass, and its transcript."""

from collections.abc import Iterator

from viva.model.record import TrialRecord, TurnRecord
from viva.model.turn import Traceback
from viva.reporters.failures import FailedCheck, TrialFailure, get_turn_status
from viva.reporters.formatting import escape_controls, escape_multiline, format_count, format_turn_time, format_value

_ARGUMENTS_ROOM = 500
_MAX_FILES = 20


def format_failure_text(failure: TrialFailure) -> str:
    """The failure as text, each reason on its own line."""
    lines = [failure.status_text + (f": {escape_multiline(failure.error)}" if failure.error else "")]
    for check in failure.failed_checks:
        lines += _format_check(check)
    for traceback in failure.tracebacks:
        lines += format_traceback_text(traceback)
    if failure.unanswered_question is not None:
        lines.append(f'agent asked: "{escape_controls(failure.unanswered_question)}"')
    if failure.hint:
        lines.append(f"hint: {escape_multiline(failure.hint)}")
    if failure.command is not None:
        lines += [f"at {escape_controls(failure.source or '')}", escape_controls(failure.command)]
    return "\n".join(lines)


def format_traceback_text(traceback: Traceback) -> Iterator[str]:
    """An exception in the user's Python: its frames and the printed output."""
    turn = f"turn {traceback.turn}, " if traceback.turn else ""
    yield f"{turn}{escape_controls(traceback.where)}: {escape_multiline(traceback.error)}"
    for frame in traceback.frames:
        yield f"    {escape_controls(frame.file)}:{frame.line} in {escape_controls(frame.function)}"
        yield f"        {escape_controls(frame.source)}"
    if traceback.printed:
        yield f"    printed:\n        {_indent_text(traceback.printed, len(traceback.printed)).rstrip()}"


def format_transcript(record: TrialRecord, text_room: int) -> str:
    """The conversation; texts longer than `text_room` characters are cut."""
    return "\n".join(line for turn in record.turns for line in _format_turn(turn, record, text_room))


def _format_check(check: FailedCheck) -> Iterator[str]:
    head = ": ".join(escape_controls(part) for part in (check.place, check.title) if part)
    reason = escape_multiline(check.reason)
    yield f"{'! ' if check.is_error else '✗ '}{head or reason}"
    if check.turn is not None:
        yield f'    user:     "{escape_controls(clip_text(check.turn.input, _ARGUMENTS_ROOM))}"'
    if head and reason:
        yield f"    reason:   {reason}"
    if check.expected is not None:
        yield f"    expected: {escape_controls(check.expected)}"
    if check.actual is not None:
        yield f"    actual:   {escape_controls(check.actual)}"
    if check.differences:
        yield "    differs:"
        yield from (f"      {line}" for line in check.differences)
    for suggestion in check.suggestions:
        yield f"    suggestion: {escape_controls(suggestion)}"


def _format_turn(turn: TurnRecord, record: TrialRecord, text_room: int) -> Iterator[str]:
    source = "" if turn.input_source == "static" else f", {turn.input_source}"
    yield f"Turn {turn.turn} ({get_turn_status(turn, record)}, {format_turn_time(turn)}{source})"
    yield f"  user: {_indent_text(turn.input, text_room)}"
    for call in turn.tool_calls:
        arguments = "" if call.args is None else format_value(call.args, _ARGUMENTS_ROOM)
        error = "" if call.error is None else f" failed: {escape_controls(clip_text(call.error, _ARGUMENTS_ROOM))}"
        yield f"  tool: {escape_controls(call.name)}({arguments}){error}"
    if turn.output:
        yield from (f"  agent: {_indent_text(message, text_room)}" for message in turn.parts or (turn.output,))
    elif turn.data is not None:
        yield f"  agent: {format_value(turn.data, text_room)}"
    for file in turn.files[:_MAX_FILES]:
        diff = f"\n{file.diff}" if file.diff else ""
        yield f"  {file.change}: {_indent_text(f'{file.path}{diff}', text_room)}"
    if turn.error is not None:
        yield f"  error: {_indent_text(turn.error, text_room)}"


def _indent_text(text: str, room: int) -> str:
    return escape_multiline(clip_text(text, room)).replace("\n", "\n    ")


def clip_text(text: str, room: int) -> str:
    """The first `room` characters, and the number of characters that are left out."""
    return text if len(text) <= room else f"{text[:room]}… ({format_count(len(text) - room, 'more character')})"

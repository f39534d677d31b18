"""The tree of `-v`: one case with its turns, checkpoints and final assertions.

    ► [T001] Name (2 turns)             start
      ├─ Turn 1: "…" → PASSED (2.1s)    start_turn, end_turn
      │          Agent: "…"
      └─ Final Assertions: PASSED       finish

This module builds the text; `console` writes it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from viva.model.case import InputSource
from viva.model.record import CheckpointRecord, Status, ToolCallRecord, TrialRecord, TurnRecord
from viva.reporters.console_lines import (
    TEXT_LINES,
    WARNING_MARK,
    Palette,
    format_check_title,
    format_failed_check,
    format_labelled_text,
    format_traceback,
    to_copyable,
)
from viva.reporters.failures import (
    build_failed_check,
    explain_failure,
    find_unanswered_question,
    format_unmet_checkpoints,
    get_assertions_status,
    get_turn_error,
    get_turn_status,
)
from viva.reporters.formatting import (
    display_width,
    fit_line,
    format_count,
    format_turn_time,
    format_value,
    shorten_id,
    shorten_line,
    wrap_text,
)

_DETAIL_PREFIX = "  │          "
_LAST_PREFIX = "     "
_PRINTED_LINES = 20
_STATUS_ROOM = len(" → SKIPPED (59m 59s)")
_SOURCES: dict[InputSource, str] = {
    "static": "",
    "initial": "[Initial] ",
    "simulated": "[Simulated] ",
    "interactive": "[Interactive] ",
}


class CaseTree:
    """Formats the tree of one case. Each method returns the next text, so that a tree can be printed live or as a whole.

    A turn that may have been cut off is printed when the next event tells its status.
    """

    def __init__(self, palette: Palette, width: int, reply_lines: int = TEXT_LINES) -> None:
        self._palette = palette
        self._width = width
        self._reply_lines = reply_lines
        self._needs_gap = False  # a bare │ comes between details and the next item
        self._is_midline = False  # the head of a turn is printed, its status is not
        self._started_turn = 0
        self._ended_turn = 0
        self._open_turn: TurnRecord | None = None

    def render(self, record: TrialRecord, *, trial: int | None = None) -> str:
        """The whole tree of a finished trial."""
        turns = record.total_turns + len(record.turns_not_run or ())
        return self.start(record.id, record.name, turns, record.simulator, trial) + self.finish(record)

    def start(self, case: str, name: str, turns: int, simulator: str | None, trial: int | None = None) -> str:
        notes = [f"trial {trial}"] if trial else []
        if simulator:
            notes.append(f"simulator: {fit_line(simulator, 40)}")
        elif turns > 1:
            notes.append(format_count(turns, "turn"))
        note = f" ({', '.join(notes)})" if notes else ""
        shown = shorten_id(case, self._width // 2)
        room = max(self._width - display_width(shown) - display_width(note) - 5, 10)
        title = f" {fit_line(name, room)}" if name and name != case else ""
        return f"► [{self._palette('bold', shown)}]{title}{note}\n"

    def start_turn(self, number: int, source: InputSource, message: str) -> str:
        """The line of a turn whose message was sent to the agent; its status follows later."""
        text = ""
        if self._open_turn is not None:  # the conversation continues, so its last turn is complete
            turn, self._open_turn = self._open_turn, None
            text = self._format_turn_end(turn, get_turn_status(turn))
        head = f"  ├─ Turn {number}: {_SOURCES[source]}"
        room = max(self._width - len(head) - 2 - _STATUS_ROOM, 10)
        text += self._put_gap_before(f'{head}"{fit_line(message, room)}"')
        self._started_turn, self._is_midline = number, True
        return text

    def end_turn(self, turn: TurnRecord) -> str:
        """The status and the details of a turn, when the agent has replied or was cut off."""
        has_reply = turn.output or turn.tool_calls or turn.assertions or turn.data is not None
        if turn.error is not None or not has_reply:
            self._open_turn = turn
            return ""
        return self._format_turn_end(turn, get_turn_status(turn))

    def break_line(self) -> str:
        """A line break if the last line still waits for its status, so that other output can follow."""
        is_midline, self._is_midline = self._is_midline, False
        return "\n" if is_midline else ""

    def abandon(self, reason: str) -> str:
        """The end of the tree of a trial that has no outcome, with the reason."""
        return self.break_line() + self._put_gap_before(f"  └─ {reason}\n")

    def finish(self, record: TrialRecord) -> str:
        """The turns that are not printed yet, checkpoints, final assertions and the result."""
        self._open_turn = None
        text = ""
        for turn in record.turns:
            if turn.turn > self._ended_turn:
                text += self._format_turn_end(turn, get_turn_status(turn, record), get_turn_error(turn, record))
        text += self.break_line()
        if record.goal_achieved:
            text += self._format_details([f"Goal achieved: {fit_line(record.goal_reason or '', self._room - 15)}"])
        text += self._format_unrun_turns(record)
        if record.checkpoints:
            text += self._format_checkpoints(record.checkpoints, record.status)
        return text + self._format_result(record)

    @property
    def _room(self) -> int:
        return max(self._width - len(_DETAIL_PREFIX), 20)

    def _put_gap_before(self, text: str) -> str:
        gap, self._needs_gap = self._needs_gap, False
        return f"  │\n{text}" if gap else text

    def _format_details(self, lines: list[str]) -> str:
        self._needs_gap = bool(lines)
        return "".join(f"{_DETAIL_PREFIX}{line}\n" for line in lines)

    def _format_turn_end(self, turn: TurnRecord, status: Status, error: str | None = None) -> str:
        """The status of a turn; its head too, if that is not printed yet."""
        text = "" if self._started_turn == turn.turn else self.start_turn(turn.turn, turn.input_source, turn.input)
        status_text = f"→ {self._palette.style_status(status, status.upper())} ({format_turn_time(turn)})\n"
        text += f" {status_text}" if self._is_midline else f"{_DETAIL_PREFIX}{status_text}"
        self._is_midline, self._ended_turn = False, turn.turn
        return text + self._format_details(
            [*self._format_turn_details(turn), *format_labelled_text("Error", error, self._room)]
        )

    def _format_turn_details(self, turn: TurnRecord) -> list[str]:
        palette, room = self._palette, self._room
        lines = [f"Attached: {_format_attachment(attachment, room - 10)}" for attachment in turn.attachments or ()]
        if turn.comment:
            lines.append(palette("dim", f"({fit_line(turn.comment, room - 2)})"))
        lines += self._format_reply(turn)
        if turn.awaiting_input and turn.awaiting_reason:
            lines.append(palette("dim", f"awaiting input: {turn.awaiting_reason}"))
        if turn.input_hint:
            lines.append(f"Hint: {fit_line(turn.input_hint, room - 6)}")
        if turn.files:
            signs = {"added": "+", "changed": "~", "removed": "-"}
            changes = " ".join(signs[file.change] + file.path for file in turn.files[:20])
            lines.append(fit_line(f"Files: {changes}", room))
        for assertion in turn.assertions:
            lines += self._format_assertion(assertion, room)
        return lines

    def _format_reply(self, turn: TurnRecord) -> list[str]:
        room = self._room - len("Agent: ")
        lines = [_format_tool_call(call, room) for call in turn.tool_calls]
        for message in turn.parts or (turn.output,):
            if not message:
                continue
            text = wrap_text(message, room - 2, self._reply_lines)
            lines += [f'"{text[0]}', *(f" {line}" for line in text[1:])]
            lines[-1] += '"'
        if not turn.output and turn.data is not None:
            lines.append(shorten_line(format_value(turn.data, 2 * room), room))
        return [("Agent: " if not at else "       ") + line for at, line in enumerate(lines)]

    def _format_assertion(self, assertion: Mapping[str, Any], room: int) -> list[str]:
        """The mark and name of a check and, if it did not pass, the reason."""
        check = build_failed_check(assertion, "")
        if assertion.get("passed") is True:
            first, *more = format_check_title(check, room - 2)
            return [f"{self._palette.marks['passed']} {first}", *(f"  {line}" for line in more)]
        return format_failed_check(check, self._palette, room)

    def _format_unrun_turns(self, record: TrialRecord) -> str:
        """Planned turns that did not run, or the agent's question that has no answer."""
        number = record.turns[-1].turn if record.turns else 0
        text = ""
        for line in record.turns_not_run or ():
            number += 1
            head = f"  ├─ Turn {number}: "
            shown = fit_line(line, max(self._width - len(head) - 2 - len(" → NOT RUN"), 10))
            text += self._put_gap_before(f'{head}"{shown}" → {self._palette("dim", "NOT RUN")}\n')
        question = find_unanswered_question(record)
        if question is None:
            return text
        status = self._palette.style_status(record.status, record.status.upper())
        text += self._put_gap_before(f"  ├─ Turn {number + 1}: {status}\n")
        lines = format_labelled_text("Reason", record.error, self._room)
        lines.append(f'Agent asked: "{fit_line(question, self._room - 15)}"')
        return text + self._format_details([*lines, *format_labelled_text("Hint", record.hint, self._room)])

    def _format_checkpoints(self, checkpoints: list[CheckpointRecord], status: Status) -> str:
        reached = sum(checkpoint.reached for checkpoint in checkpoints)
        text = self._put_gap_before(f"  ├─ Checkpoints: {reached}/{len(checkpoints)} reached\n")
        lines: list[str] = []
        for checkpoint in checkpoints:
            missed: Status = "skipped" if not checkpoint.required or status in ("passed", "skipped") else "failed"
            mark = self._palette.marks["passed" if checkpoint.reached else missed]
            name = f"{checkpoint.id}: {checkpoint.description}" if checkpoint.description else checkpoint.id
            lines.append(f"{mark} {fit_line(name, self._room - 2)}")
            lines += [f"  {line}" for line in wrap_text(_format_checkpoint(checkpoint), self._room - 2, TEXT_LINES)]
        return text + self._format_details(lines)

    def _format_result(self, record: TrialRecord) -> str:
        """The last branch: the final assertions if they decide the status, else the result."""
        palette, room = self._palette, self._width - len(_LAST_PREFIX)
        status_text = palette.style_status(record.status, record.status.upper())
        if record.fault:
            status_text += f" (fault: {record.fault})"
        final_lines = [
            line for assertion in record.final_assertions for line in self._format_assertion(assertion, room)
        ]
        status = get_assertions_status(record.final_assertions)
        if final_lines and status == record.status:
            text = self._put_gap_before(f"  └─ Final Assertions: {status_text}\n") + _join_lines(
                _LAST_PREFIX, final_lines
            )
        elif final_lines:
            text = self._put_gap_before(f"  ├─ Final Assertions: {palette.style_status(status, status.upper())}\n")
            text += self._format_details(final_lines) + self._put_gap_before(f"  └─ Result: {status_text}\n")
        else:
            text = self._put_gap_before(f"  └─ Result: {status_text}\n")
        return text + _join_lines(_LAST_PREFIX, self._format_explanation(record, room))

    def _format_explanation(self, record: TrialRecord, room: int) -> list[str]:
        """Error, hint, tracebacks, warnings and paths."""
        failure = explain_failure(record)
        lines: list[str] = []
        if failure.unanswered_question is None:
            lines += format_labelled_text("Reason" if record.status == "skipped" else "Error", failure.error, room)
            lines += format_labelled_text("Hint", failure.hint, room)
        for traceback in record.tracebacks:
            lines += format_traceback(traceback, room, _PRINTED_LINES)
        if record.findings:
            lines.append(
                f"{self._palette('yellow', WARNING_MARK)} safety findings: {', '.join(map(str, record.findings))}"
            )
        lines += [
            f"{self._palette('yellow', WARNING_MARK)} {fit_line(text, room - 2)}" for text in record.warnings or ()
        ]
        lines += [self._palette("dim", fit_line(text, room)) for text in record.notes or ()]
        if record.status in ("failed", "error") and failure.source:
            lines.append(f"Source: {to_copyable(failure.source)}")
        if record.workspace:
            lines.append(f"Workspace: {to_copyable(record.workspace)}")
        return lines


def _join_lines(prefix: str, lines: Iterable[str]) -> str:
    return "".join(f"{prefix}{line}\n" for line in lines)


def _format_tool_call(call: ToolCallRecord, room: int) -> str:
    """Name, error and arguments share the room, in this order of priority."""
    room -= len("[tool: ()]")
    error = f" failed: {fit_line(call.error, max(room // 3, 8))}" if call.error is not None else ""
    name = fit_line(call.name, max(room - display_width(error) - 1, 8))
    arguments = shorten_line(
        format_value(call.args, 2 * room), max(room - display_width(name) - display_width(error), 1)
    )
    return f"[tool: {name}({'' if call.args is None else arguments}){error}]"


def _format_attachment(attachment: Mapping[str, Any], room: int) -> str:
    return fit_line(f"{attachment.get('name') or attachment.get('source')} ({attachment.get('type')})", room)


def _format_checkpoint(checkpoint: CheckpointRecord) -> str:
    """The turn that reached a checkpoint, or why it was not reached."""
    if checkpoint.reached:
        return f"reached at turn {checkpoint.turn}" + (f" by {checkpoint.reason}" if checkpoint.reason else "")
    optional = "" if checkpoint.required else " (optional)"
    reason = checkpoint.reason or format_unmet_checkpoints(checkpoint)
    return f"not reached{optional}" + (f": {reason}" if reason else "")

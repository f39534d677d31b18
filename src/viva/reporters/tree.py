"""The tree of `-v`: one case with its turns, checkpoints and final assertions.

    ► [T001] Name (2 turns)             open
      ├─ Turn 1: "…" → PASSED (2.1s)    begin_turn, end_turn
      │          Agent: "…"
      └─ Final Assertions: PASSED       close

Only text is made here; `console` decides when it is written.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from viva.model.case import InputSource
from viva.model.record import CheckpointRecord, Status, ToolCallRecord, TrialRecord, TurnRecord
from viva.reporters.console_lines import (
    TEXT_LINES,
    format_check_title,
    format_failed_check,
    format_traceback,
    label_lines,
    to_copyable,
)
from viva.reporters.failures import (
    build_failed_check,
    explain_failure,
    find_unanswered_question,
    get_assertions_status,
    get_turn_error,
    get_turn_status,
)
from viva.reporters.formatting import display_width, fit_line, format_value, shorten_id, shorten_line, wrap_text
from viva.reporters.numbers import format_count, format_ms
from viva.reporters.palette import WARNING_MARK, Palette

_DETAIL = "  │          "
_LAST = "     "
_PRINTED_LINES = 20
_OUTCOME_ROOM = len(" → SKIPPED (59m 59s)")
_SOURCES: dict[InputSource, str] = {
    "static": "",
    "initial": "[Initial] ",
    "simulated": "[Simulated] ",
    "interactive": "[Interactive] ",
}


class CaseTree:
    """Each method returns the text that comes next, so a tree can grow live or be printed whole.

    A turn that may have been cut off is held back until what follows tells how it ended.
    """

    def __init__(self, ink: Palette, width: int, reply_lines: int = TEXT_LINES) -> None:
        self._ink = ink
        self._width = width
        self._reply_lines = reply_lines
        self._gap = False  # details stand above: a bare │ comes before the next item
        self._midline = False  # a turn's head stands without its end
        self._begun = 0
        self._ended = 0
        self._held: TurnRecord | None = None

    def render(self, record: TrialRecord, *, trial: int | None = None) -> str:
        """A case that has ended, from its first line to its last."""
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
        return f"► [{self._ink('bold', shown)}]{title}{note}\n"

    def start_turn(self, number: int, source: InputSource, message: str) -> str:
        """The user has spoken."""
        before = ""
        if self._held is not None:  # the talk goes on, so its last turn was whole
            held, self._held = self._held, None
            before = self._end(held, get_turn_status(held))
        head = f"  ├─ Turn {number}: {_SOURCES[source]}"
        room = max(self._width - len(head) - 2 - _OUTCOME_ROOM, 10)
        text = before + self._item(f'{head}"{fit_line(message, room)}"')
        self._begun, self._midline = number, True
        return text

    def end_turn(self, turn: TurnRecord) -> str:
        """The agent has answered, or was cut off."""
        answered = turn.output or turn.tool_calls or turn.assertions or turn.data is not None
        if turn.error is not None or not answered:
            self._held = turn
            return ""
        return self._end(turn, get_turn_status(turn))

    def break_line(self) -> str:
        """What has to be written before something else may come between."""
        midline, self._midline = self._midline, False
        return "\n" if midline else ""

    def abandon(self, reason: str) -> str:
        """Closes a tree whose trial has no outcome."""
        return self.break_line() + self._item(f"  └─ {reason}\n")

    def finish(self, record: TrialRecord) -> str:
        """The rest: turns that are not shown yet, checkpoints, final assertions, the result."""
        self._held = None
        text = ""
        for turn in record.turns:
            if turn.turn > self._ended:
                text += self._end(turn, get_turn_status(turn, record), get_turn_error(turn, record))
        text += self.break_line()
        if record.goal_achieved:
            text += self._details([f"Goal achieved: {fit_line(record.goal_reason or '', self._room - 15)}"])
        text += self._turns_to_come(record)
        if record.checkpoints:
            text += self._checkpoints(record.checkpoints, record.status)
        return text + self._result(record)

    @property
    def _room(self) -> int:
        return max(self._width - len(_DETAIL), 20)

    def _item(self, text: str) -> str:
        gap, self._gap = self._gap, False
        return f"  │\n{text}" if gap else text

    def _details(self, lines: list[str]) -> str:
        self._gap = bool(lines)
        return "".join(f"{_DETAIL}{line}\n" for line in lines)

    def _end(self, turn: TurnRecord, status: Status, error: str | None = None) -> str:
        """A turn's end; its head too, if that is not there yet."""
        text = "" if self._begun == turn.turn else self.start_turn(turn.turn, turn.input_source, turn.input)
        outcome = f"→ {self._ink.style_status(status, status.upper())} ({format_ms(turn.duration_ms)})\n"
        text += f" {outcome}" if self._midline else f"{_DETAIL}{outcome}"
        self._midline, self._ended = False, turn.turn
        return text + self._details([*self._turn_details(turn), *label_lines("Error", error, self._room)])

    def _turn_details(self, turn: TurnRecord) -> list[str]:
        ink, room = self._ink, self._room
        lines = [f"Attached: {_attachment(each, room - 10)}" for each in turn.attachments or ()]
        if turn.comment:
            lines.append(ink("dim", f"({fit_line(turn.comment, room - 2)})"))
        lines += self._reply(turn)
        if turn.awaiting_input and turn.awaiting_reason:
            lines.append(ink("dim", f"awaiting input: {turn.awaiting_reason}"))
        if turn.input_hint:
            lines.append(f"Hint: {fit_line(turn.input_hint, room - 6)}")
        if turn.files:
            signs = {"added": "+", "changed": "~", "removed": "-"}
            changes = " ".join(signs[each.change] + each.path for each in turn.files[:20])
            lines.append(fit_line(f"Files: {changes}", room))
        for assertion in turn.assertions:
            lines += self._assertion(assertion, room)
        return lines

    def _reply(self, turn: TurnRecord) -> list[str]:
        room = self._room - len("Agent: ")
        said = [_tool_call(call, room) for call in turn.tool_calls]
        if turn.output:
            text = wrap_text(turn.output, room - 2, self._reply_lines)
            said += [f'"{text[0]}', *(f" {line}" for line in text[1:])]
            said[-1] += '"'
        elif turn.data is not None:
            said.append(shorten_line(format_value(turn.data, 2 * room), room))
        return [("Agent: " if not at else "       ") + line for at, line in enumerate(said)]

    def _assertion(self, assertion: Mapping[str, Any], room: int) -> list[str]:
        """One check: its mark and name and, where it did not hold, why."""
        found = build_failed_check(assertion, "")
        if assertion.get("passed") is True:
            first, *more = format_check_title(found, room - 2)
            return [f"{self._ink.marks['passed']} {first}", *(f"  {line}" for line in more)]
        return format_failed_check(found, self._ink, room)

    def _turns_to_come(self, record: TrialRecord) -> str:
        """The turns that nobody took: lines not said, or an answer that nobody had."""
        number = record.turns[-1].turn if record.turns else 0
        text = ""
        for line in record.turns_not_run or ():
            number += 1
            head = f"  ├─ Turn {number}: "
            shown = fit_line(line, max(self._width - len(head) - 2 - len(" → NOT RUN"), 10))
            text += self._item(f'{head}"{shown}" → {self._ink("dim", "NOT RUN")}\n')
        asked = find_unanswered_question(record)
        if asked is None:
            return text
        status = self._ink.style_status(record.status, record.status.upper())
        text += self._item(f"  ├─ Turn {number + 1}: {status}\n")
        lines = label_lines("Reason", record.error, self._room)
        lines.append(f'Agent asked: "{fit_line(asked, self._room - 15)}"')
        return text + self._details([*lines, *label_lines("Hint", record.hint, self._room)])

    def _checkpoints(self, checkpoints: list[CheckpointRecord], status: Status) -> str:
        reached = sum(checkpoint.reached for checkpoint in checkpoints)
        text = self._item(f"  ├─ Checkpoints: {reached}/{len(checkpoints)} reached\n")
        lines: list[str] = []
        for each in checkpoints:
            missed: Status = "skipped" if not each.required or status in ("passed", "skipped") else "failed"
            mark = self._ink.marks["passed" if each.reached else missed]
            name = f"{each.id}: {each.description}" if each.description else each.id
            lines.append(f"{mark} {fit_line(name, self._room - 2)}")
            lines += [f"  {line}" for line in wrap_text(_how(each), self._room - 2, TEXT_LINES)]
        return text + self._details(lines)

    def _result(self, record: TrialRecord) -> str:
        """The last branch. Final assertions are the result where they decided it."""
        ink, room = self._ink, self._width - len(_LAST)
        said = ink.style_status(record.status, record.status.upper())
        if record.fault:
            said += f" (fault: {record.fault})"
        finals = [line for each in record.final_assertions for line in self._assertion(each, room)]
        status = get_assertions_status(record.final_assertions)
        if finals and status == record.status:
            text = self._item(f"  └─ Final Assertions: {said}\n") + _prefixed(_LAST, finals)
        elif finals:
            text = self._item(f"  ├─ Final Assertions: {ink.style_status(status, status.upper())}\n")
            text += self._details(finals) + self._item(f"  └─ Result: {said}\n")
        else:
            text = self._item(f"  └─ Result: {said}\n")
        return text + _prefixed(_LAST, self._closing(record, room))

    def _closing(self, record: TrialRecord, room: int) -> list[str]:
        """What is left to say of the whole."""
        found = explain_failure(record)
        lines: list[str] = []
        if found.unanswered_question is None:
            lines += label_lines("Reason" if record.status == "skipped" else "Error", found.error, room)
            lines += label_lines("Hint", found.hint, room)
        for traceback in record.tracebacks:
            lines += format_traceback(traceback, room, _PRINTED_LINES)
        if record.findings:
            lines.append(f"{self._ink('yellow', WARNING_MARK)} found {', '.join(map(str, record.findings))}")
        lines += [f"{self._ink('yellow', WARNING_MARK)} {fit_line(text, room - 2)}" for text in record.warnings or ()]
        lines += [self._ink("dim", fit_line(text, room)) for text in record.notes or ()]
        if record.status in ("failed", "error") and found.source:
            lines.append(f"Source: {to_copyable(found.source)}")
        if record.workspace:
            lines.append(f"Workspace: {to_copyable(record.workspace)}")
        return lines


def _prefixed(prefix: str, lines: Iterable[str]) -> str:
    return "".join(f"{prefix}{line}\n" for line in lines)


def _tool_call(call: ToolCallRecord, room: int) -> str:
    """Name, error and arguments share the room, in that order of weight."""
    room -= len("[tool: ()]")
    failed = f" failed: {fit_line(call.error, max(room // 3, 8))}" if call.error is not None else ""
    name = fit_line(call.name, max(room - display_width(failed) - 1, 8))
    inner = shorten_line(format_value(call.args, 2 * room), max(room - display_width(name) - display_width(failed), 1))
    return f"[tool: {name}({'' if call.args is None else inner}){failed}]"


def _attachment(attachment: Mapping[str, Any], room: int) -> str:
    return fit_line(f"{attachment.get('name') or attachment.get('source')} ({attachment.get('type')})", room)


def _how(checkpoint: CheckpointRecord) -> str:
    """By what a checkpoint was reached, or how close it came."""
    if checkpoint.reached:
        return f"reached at turn {checkpoint.turn}" + (f" by {checkpoint.reason}" if checkpoint.reason else "")
    waits = "waits for " + ", ".join(checkpoint.unmet_after) if checkpoint.unmet_after else ""
    optional = "" if checkpoint.required else " (optional)"
    return f"not reached{optional}" + (f": {checkpoint.reason or waits}" if checkpoint.reason or waits else "")

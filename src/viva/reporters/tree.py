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
from viva.reporters.explain import TEXT_LINES, copyable, finding_lines, labelled, titled, traceback_lines
from viva.reporters.figures import counted, seconds
from viva.reporters.ink import WARNING, Ink
from viva.reporters.visible import columns, literal, one_line, short_id, shortened, wrapped
from viva.reporters.why import claims_status, finding, turn_error, turn_status, unanswered, why

_DETAIL = "  │          "
_LAST = "     "
_PRINTED_LINES = 20
_ENDING_ROOM = len(" → SKIPPED (59m 59s)")
_SOURCES: dict[InputSource, str] = {
    "static": "",
    "initial": "[Initial] ",
    "simulated": "[Simulated] ",
    "interactive": "[Interactive] ",
}


class Tree:
    """Each method returns the text that comes next, so a tree can grow live or be printed whole.

    A turn that may have been cut off is held back until what follows tells how it ended.
    """

    def __init__(self, ink: Ink, width: int, reply_lines: int = TEXT_LINES) -> None:
        self._ink = ink
        self._width = width
        self._reply_lines = reply_lines
        self._gap = False  # details stand above: a bare │ comes before the next item
        self._midline = False  # a turn's head stands without its end
        self._begun = 0
        self._ended = 0
        self._held: TurnRecord | None = None

    def whole(self, record: TrialRecord, *, trial: int | None = None) -> str:
        """A case that has ended, from its first line to its last."""
        turns = record.total_turns + len(record.turns_not_run or ())
        return self.open(record.id, record.name, turns, record.simulator, trial) + self.close(record)

    def open(self, case: str, name: str, turns: int, simulator: str | None, trial: int | None = None) -> str:
        notes = [f"trial {trial}"] if trial else []
        if simulator:
            notes.append(f"simulator: {one_line(simulator, 40)}")
        elif turns > 1:
            notes.append(counted(turns, "turn"))
        note = f" ({', '.join(notes)})" if notes else ""
        shown = short_id(case, self._width // 2)
        room = max(self._width - columns(shown) - columns(note) - 5, 10)
        title = f" {one_line(name, room)}" if name and name != case else ""
        return f"► [{self._ink('bold', shown)}]{title}{note}\n"

    def begin_turn(self, number: int, by: InputSource, said: str) -> str:
        """The user has spoken."""
        before = ""
        if self._held is not None:  # the talk goes on, so its last turn was whole
            held, self._held = self._held, None
            before = self._end(held, turn_status(held))
        head = f"  ├─ Turn {number}: {_SOURCES[by]}"
        room = max(self._width - len(head) - 2 - _ENDING_ROOM, 10)
        text = before + self._item(f'{head}"{one_line(said, room)}"')
        self._begun, self._midline = number, True
        return text

    def end_turn(self, turn: TurnRecord) -> str:
        """The agent has answered, or was cut off."""
        answered = turn.output or turn.tool_calls or turn.assertions or turn.data is not None
        if turn.error is not None or not answered:
            self._held = turn
            return ""
        return self._end(turn, turn_status(turn))

    def pause(self) -> str:
        """What has to be written before something else may come between."""
        midline, self._midline = self._midline, False
        return "\n" if midline else ""

    def give_up(self, why: str) -> str:
        """Closes a tree whose trial has no outcome."""
        return self.pause() + self._item(f"  └─ {why}\n")

    def close(self, record: TrialRecord) -> str:
        """The rest: turns that are not shown yet, checkpoints, final assertions, the result."""
        self._held = None
        text = ""
        for turn in record.turns:
            if turn.turn > self._ended:
                text += self._end(turn, turn_status(turn, record), turn_error(turn, record))
        text += self.pause()
        if record.goal_achieved:
            text += self._details([f"Goal achieved: {one_line(record.goal_reason or '', self._room - 15)}"])
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
        text = "" if self._begun == turn.turn else self.begin_turn(turn.turn, turn.input_source, turn.input)
        ending = f"→ {self._ink.status(status, status.upper())} ({seconds(turn.duration_ms)})\n"
        text += f" {ending}" if self._midline else f"{_DETAIL}{ending}"
        self._midline, self._ended = False, turn.turn
        return text + self._details([*self._turn_details(turn), *labelled("Error", error, self._room)])

    def _turn_details(self, turn: TurnRecord) -> list[str]:
        ink, room = self._ink, self._room
        lines = [f"Attached: {_attachment(each, room - 10)}" for each in turn.attachments or ()]
        if turn.comment:
            lines.append(ink("dim", f"({one_line(turn.comment, room - 2)})"))
        lines += self._reply(turn)
        if turn.awaiting_input and turn.awaiting_reason:
            lines.append(ink("dim", f"awaiting input: {turn.awaiting_reason}"))
        if turn.input_hint:
            lines.append(f"Hint: {one_line(turn.input_hint, room - 6)}")
        if turn.files:
            signs = {"added": "+", "changed": "~", "removed": "-"}
            changes = " ".join(signs[each.change] + each.path for each in turn.files[:20])
            lines.append(one_line(f"Files: {changes}", room))
        for assertion in turn.assertions:
            lines += self._assertion(assertion, room)
        return lines

    def _reply(self, turn: TurnRecord) -> list[str]:
        room = self._room - len("Agent: ")
        said = [_tool_call(call, room) for call in turn.tool_calls]
        if turn.output:
            text = wrapped(turn.output, room - 2, self._reply_lines)
            said += [f'"{text[0]}', *(f" {line}" for line in text[1:])]
            said[-1] += '"'
        elif turn.data is not None:
            said.append(shortened(literal(turn.data, 2 * room), room))
        return [("Agent: " if not at else "       ") + line for at, line in enumerate(said)]

    def _assertion(self, assertion: Mapping[str, Any], room: int) -> list[str]:
        """One check: its mark and name and, where it did not hold, why."""
        found = finding(assertion, "")
        if assertion.get("passed") is True:
            first, *more = titled(found, room - 2)
            return [f"{self._ink.marks['passed']} {first}", *(f"  {line}" for line in more)]
        return finding_lines(found, self._ink, room)

    def _turns_to_come(self, record: TrialRecord) -> str:
        """The turns that nobody took: lines not said, or an answer that nobody had."""
        number = record.turns[-1].turn if record.turns else 0
        text = ""
        for line in record.turns_not_run or ():
            number += 1
            head = f"  ├─ Turn {number}: "
            shown = one_line(line, max(self._width - len(head) - 2 - len(" → NOT RUN"), 10))
            text += self._item(f'{head}"{shown}" → {self._ink("dim", "NOT RUN")}\n')
        asked = unanswered(record)
        if asked is None:
            return text
        status = self._ink.status(record.status, record.status.upper())
        text += self._item(f"  ├─ Turn {number + 1}: {status}\n")
        lines = labelled("Reason", record.error, self._room)
        lines.append(f'Agent asked: "{one_line(asked, self._room - 15)}"')
        return text + self._details([*lines, *labelled("Hint", record.hint, self._room)])

    def _checkpoints(self, checkpoints: list[CheckpointRecord], status: Status) -> str:
        reached = sum(checkpoint.reached for checkpoint in checkpoints)
        text = self._item(f"  ├─ Checkpoints: {reached}/{len(checkpoints)} reached\n")
        lines: list[str] = []
        for each in checkpoints:
            missed: Status = "skipped" if not each.required or status in ("passed", "skipped") else "failed"
            mark = self._ink.marks["passed" if each.reached else missed]
            name = f"{each.id}: {each.description}" if each.description else each.id
            lines.append(f"{mark} {one_line(name, self._room - 2)}")
            lines += [f"  {line}" for line in wrapped(_how(each), self._room - 2, TEXT_LINES)]
        return text + self._details(lines)

    def _result(self, record: TrialRecord) -> str:
        """The last branch. Final assertions are the result where they decided it."""
        ink, room = self._ink, self._width - len(_LAST)
        said = ink.status(record.status, record.status.upper())
        if record.fault:
            said += f" (fault: {record.fault})"
        finals = [line for each in record.final_assertions for line in self._assertion(each, room)]
        status = claims_status(record.final_assertions)
        if finals and status == record.status:
            text = self._item(f"  └─ Final Assertions: {said}\n") + _prefixed(_LAST, finals)
        elif finals:
            text = self._item(f"  ├─ Final Assertions: {ink.status(status, status.upper())}\n")
            text += self._details(finals) + self._item(f"  └─ Result: {said}\n")
        else:
            text = self._item(f"  └─ Result: {said}\n")
        return text + _prefixed(_LAST, self._closing(record, room))

    def _closing(self, record: TrialRecord, room: int) -> list[str]:
        """What is left to say of the whole."""
        found = why(record)
        lines: list[str] = []
        if found.asked is None:
            lines += labelled("Reason" if record.status == "skipped" else "Error", found.error, room)
            lines += labelled("Hint", found.hint, room)
        for traceback in record.tracebacks:
            lines += traceback_lines(traceback, room, _PRINTED_LINES)
        if record.findings:
            lines.append(f"{self._ink('yellow', WARNING)} found {', '.join(map(str, record.findings))}")
        lines += [f"{self._ink('yellow', WARNING)} {one_line(text, room - 2)}" for text in record.warnings or ()]
        lines += [self._ink("dim", one_line(text, room)) for text in record.notes or ()]
        if record.status in ("failed", "error") and found.source:
            lines.append(f"Source: {copyable(found.source)}")
        if record.workspace:
            lines.append(f"Workspace: {copyable(record.workspace)}")
        return lines


def _prefixed(prefix: str, lines: Iterable[str]) -> str:
    return "".join(f"{prefix}{line}\n" for line in lines)


def _tool_call(call: ToolCallRecord, room: int) -> str:
    """Name, error and arguments share the room, in that order of weight."""
    room -= len("[tool: ()]")
    failed = f" failed: {one_line(call.error, max(room // 3, 8))}" if call.error is not None else ""
    name = one_line(call.name, max(room - columns(failed) - 1, 8))
    inner = shortened(literal(call.args, 2 * room), max(room - columns(name) - columns(failed), 1))
    return f"[tool: {name}({'' if call.args is None else inner}){failed}]"


def _attachment(attachment: Mapping[str, Any], room: int) -> str:
    return one_line(f"{attachment.get('name') or attachment.get('source')} ({attachment.get('type')})", room)


def _how(checkpoint: CheckpointRecord) -> str:
    """By what a checkpoint was reached, or how close it came."""
    if checkpoint.reached:
        return f"reached at turn {checkpoint.turn}" + (f" by {checkpoint.reason}" if checkpoint.reason else "")
    waits = "waits for " + ", ".join(checkpoint.unmet_after) if checkpoint.unmet_after else ""
    optional = "" if checkpoint.required else " (optional)"
    return f"not reached{optional}" + (f": {checkpoint.reason or waits}" if checkpoint.reason or waits else "")

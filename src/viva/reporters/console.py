"""The console output of a run: a line or tree per case, a progress line, and the summary."""

import codecs
import time
from collections.abc import Callable, Sequence
from typing import Literal, TextIO

from msgspec import Struct

from viva.model.event import (
    Event,
    Note,
    RunEnded,
    RunResumed,
    RunStarted,
    TrialEnded,
    TrialRetried,
    TrialStarted,
    TurnEnded,
    TurnStarted,
)
from viva.model.message import Usage
from viva.model.record import STATUS_MARKS, Status, TrialRecord
from viva.reporters.console_lines import (
    INFO_MARK,
    TEXT_LINES,
    WARNING_MARK,
    Palette,
    fit_encoding,
    format_failure,
    to_copyable,
)
from viva.reporters.failure_list import FailureList, format_next_steps
from viva.reporters.failures import explain_failure
from viva.reporters.formatting import (
    display_width,
    escape_controls,
    escape_multiline,
    fit_line,
    format_cost,
    format_count,
    format_ms,
    shorten_id,
    wrap_text,
)
from viva.reporters.github import disarm_commands
from viva.reporters.matrix import RunMatrixBuilder, create_matrix_builder, format_matrix
from viva.reporters.summary import describe_stop, format_counts, format_summary, format_summary_line
from viva.reporters.tree import CaseTree

_RULE_WIDTH = 63
_CLEAR_LINE = "\r\x1b[K"
_FULL_REPLY_LINES = 1000


class ProgressLine:
    """The last line of a terminal: finished trials, rate, remaining time and cost.

    It is drawn at most ten times in any second: five in a burst, and five more for each second that passes.
    """

    _BURST = 5

    def __init__(self, clock: Callable[[], float], describe_pace: Callable[[], str] | None = None) -> None:
        self._clock = clock
        self._describe_pace = describe_pace
        self._start_time = self._refill_time = clock()
        self._tokens = float(self._BURST)
        self.total = 0
        self.done = 0
        self._earlier = 0  # trials of a resumed run that had ended before
        self.counts: dict[Status, int] = {}
        self._cost_usd: float | None = None
        self._unpriced_calls = 0

    def start(self, total: int) -> None:
        self.total = total
        self._start_time = self._clock()

    def resume(self) -> None:
        """Restarts the clock of a resumed run: trials that ended before do not count for the rate."""
        self._earlier = self.done
        self._start_time = self._clock()

    def add(self, record: TrialRecord) -> None:
        self.done += 1
        self.counts[record.status] = self.counts.get(record.status, 0) + 1
        self.add_usage(record.usage)

    def add_usage(self, usage: Usage | None) -> None:
        if usage is not None:
            self._unpriced_calls += usage.calls_without_price
            if (cost_usd := usage.least_cost_usd) is not None:
                self._cost_usd = (self._cost_usd or 0.0) + cost_usd

    def is_due(self) -> bool:
        now = self._clock()
        self._tokens = min(self._BURST, self._tokens + (now - self._refill_time) * self._BURST)
        self._refill_time = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def render(self, width: int) -> str:
        """All parts that fit; the least important ones are left out first."""
        marks = " ".join(
            f"{self.counts[status]} {mark}" for status, mark in STATUS_MARKS.items() if self.counts.get(status)
        )
        parts = {"done": f"{self.done}/{self.total}", "marks": marks}
        elapsed_s = self._clock() - self._start_time
        if self.done > self._earlier and elapsed_s > 0:
            rate = (self.done - self._earlier) / elapsed_s
            left_ms = max(self.total - self.done, 0) / rate * 1000
            parts |= {"rate": f"{rate:.1f}/s", "eta": f"ETA {format_ms(left_ms)}"}
        parts["cost"] = self._format_cost()
        if self._describe_pace is not None:
            parts["pace"] = self._describe_pace()
        for part in ("rate", "cost", "pace", "marks", "eta"):
            if display_width(line := " · ".join(filter(None, parts.values()))) < width:
                return line
            parts.pop(part, None)
        return parts["done"]

    def _format_cost(self) -> str:
        """The cost so far; a plus sign if some calls have no price."""
        known = format_cost(self._cost_usd, 0) or ""
        return f"{known}+" if known and self._unpriced_calls else known


class ConsoleOptions(Struct, frozen=True, kw_only=True):
    """Options of the console output. With `full_replies`, for interactive runs, replies are not cut and lines are ended at once."""

    verbose: bool = False
    quiet: bool = False
    colour: bool = False
    is_terminal: bool = False
    width: int = 100
    parallel: int = 1
    describe_pace: Callable[[], str] | None = None
    """How many conversations run in parallel now, and how fast the providers take calls."""
    full_replies: bool = False
    is_github_log: bool = False
    """Does a runner of GitHub read the output? Then no line of it may be a command to the runner."""


class Console:
    """Writes one line per case, or the tree of `-v`, and the summary."""

    def __init__(self, stream: TextIO, options: ConsoleOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._quiet = options.quiet
        self._verbose = options.verbose and not options.quiet
        self._palette = Palette(options.colour)
        self._width = max(options.width, 40)
        self._full_replies = options.full_replies
        self._is_github_log = options.is_github_log
        self.live = self._verbose and options.parallel == 1
        has_progress = options.is_terminal and not self._quiet and not self.live
        self._progress = ProgressLine(clock, options.describe_pace) if has_progress else None
        self._is_progress_shown = False
        encoding = getattr(stream, "encoding", None) or "utf-8"
        self._encoding = None if codecs.lookup(encoding).name.startswith("utf") else encoding
        self._started: RunStarted | None = None
        self._tree: CaseTree | None = None
        self._failures = FailureList(self._palette, self._width)
        self._pending: list[str] = []
        self._has_blank_line = True  # above the next output
        self._matrix: RunMatrixBuilder | None = None  # only for several agents

    def receive(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case TrialEnded():
                    self._on_trial_ended(event)
                case TurnStarted() if self._tree is not None:
                    self._pending.append(self._tree.start_turn(event.turn, event.source, event.input))
                case TurnEnded() if self._tree is not None:
                    self._pending.append(self._tree.end_turn(event.turn))
                    if self._full_replies:
                        self._pending.append(self._tree.break_line())
                case TrialStarted() if self.live:
                    self._on_trial_started(event)
                case TrialRetried() if self._progress is not None:
                    self._progress.add_usage(event.usage)
                case Note():
                    self._on_note(event)
                case RunStarted():
                    self._on_run_started(event)
                case RunResumed() if self._progress is not None:
                    self._progress.resume()
                case RunEnded():
                    self._on_run_ended(event)
                case _:
                    pass
        self._flush()

    def _flush(self) -> None:
        """Writes all pending text at once. The progress line is cleared first and drawn again below the text."""
        text = "".join(self._pending)
        self._pending.clear()
        if text and self._is_progress_shown:
            text = _CLEAR_LINE + text
            self._is_progress_shown = False
        if self._progress is not None and self._progress.total and self._progress.is_due():
            text += _CLEAR_LINE + self._progress.render(self._width)
            self._is_progress_shown = True
        if text and self._is_github_log:
            text = disarm_commands(text)
        if text:
            self._stream.write(fit_encoding(text, self._encoding) if self._encoding else text)
            self._stream.flush()

    def _on_run_started(self, event: RunStarted) -> None:
        self._started = event
        self._failures.start(event)
        self._matrix = create_matrix_builder(event)
        if self._progress is not None:
            self._progress.start(event.trials)
        self._pending += [f"{escape_controls(note)}\n" for note in event.verified]
        if self._quiet:
            return
        rule, info = "═" * min(self._width, _RULE_WIDTH), self._palette("cyan", INFO_MARK)
        count = format_count(event.cases, "test case")
        if event.trials > event.cases:
            count += f", {'up to ' if event.settings.get('sequential') else ''}{format_count(event.trials, 'trial')}"
        inputs = ", ".join(event.inputs[:3])
        if len(event.inputs) > 3:
            inputs += f" and {len(event.inputs) - 3} more"
        shown = fit_line(inputs, max(self._width - len(count) - 12, 20))
        self._pending.append(
            f"{rule}\n  {self._palette('bold', 'Viva')}\n{rule}\n{info} {'Agents' if self._matrix else 'Agent'}: {fit_line(event.agent, self._width - 9)}\n"
            f"{info} Input: {shown} ({count})\n\n{self._format_heading('Running Tests')}\n"
        )

    def _format_heading(self, title: str) -> str:
        rule = "─" * min(self._width, _RULE_WIDTH)
        return f"{rule}\n  {self._palette('bold', title)}\n{rule}\n"

    def _on_trial_started(self, event: TrialStarted) -> None:
        if self._tree is not None:
            self._pending.append(self._tree.abandon(f"retried, attempt {event.key.attempt}") + "\n")
        self._tree = CaseTree(self._palette, self._width, _FULL_REPLY_LINES if self._full_replies else TEXT_LINES)
        trial = event.key.trial if self._failures.has_repeats else None
        self._pending.append(self._tree.start(event.key.case, event.name, event.turns, event.simulator, trial))

    def _on_trial_ended(self, event: TrialEnded) -> None:
        record = event.record
        if self._progress is not None:
            self._progress.add(record)
        if self._matrix is not None:
            self._matrix.add(record)
        trial = record.trial if self._failures.has_repeats else None
        settings = self._started.settings if self._started else {}
        failure = explain_failure(record, settings) if record.status != "passed" else None
        same_trial = self._failures.add(event, failure)
        if self._verbose:
            tree, self._tree = self._tree, None
            if tree is not None:
                block = tree.finish(record)
            else:
                block = CaseTree(self._palette, self._width).render(record, trial=trial)
            self._pending.append(block + "\n")
            self._has_blank_line = True
            return
        self._has_blank_line = False
        if not self._quiet or record.status != "passed":
            self._pending.append(
                self._format_case_line(record, trial, f"same as trial {same_trial}" if same_trial else "")
            )
        if record.findings and record.status == "passed":  # else the failure lists them
            self._pending.append(
                self._format_note("warning", f"safety findings: {', '.join(map(str, record.findings))}", "    ")
            )
        if record.workspace and record.status == "passed":
            self._pending.append(self._format_note("info", f"workspace: {to_copyable(record.workspace)}", "    "))
        if record.warnings:
            self._pending += [self._format_note("warning", text, "    ") for text in record.warnings]
        if record.notes and record.status != "passed":
            self._pending += [self._format_note("info", text, "    ") for text in record.notes]
        if failure is not None and same_trial is None:
            lines = format_failure(failure, self._palette, self._width - 4)
            self._pending += [f"    {line}\n" for line in lines]

    def _format_case_line(self, record: TrialRecord, trial: int | None, remark: str = "") -> str:
        """`✓ T001 Expense Reimbursement Flow  3 turns  7.1s`"""
        turns = format_count(record.total_turns, "turn") if record.total_turns else ""
        time_text = format_ms(record.duration_ms) if turns or record.duration_ms >= 1 else ""
        tail = "".join(f"  {part}" for part in (turns, time_text, remark) if part)
        case = shorten_id(record.id, self._width // 2)
        if self._matrix is not None:
            case += f" [{fit_line(record.agent or '', self._width // 4)}]"
        if trial is not None:
            case += f" (trial {trial})"
        name = record.name
        if name and name != record.id:
            room = self._width - display_width(case) - len(tail) - 3
            return f"{self._palette.marks[record.status]} {case} {fit_line(name, max(room, 10))}{tail}\n"
        return f"{self._palette.marks[record.status]} {case}{tail}\n"

    def _on_note(self, event: Note) -> None:
        if self._tree is not None:
            self._pending.append(self._tree.break_line())
        if event.level == "warning" or not self._quiet:
            self._pending.append(self._format_note(event.level, event.text))
            self._has_blank_line = False

    def _format_note(self, level: Literal["info", "warning"], text: str, indent: str = "") -> str:
        mark = self._palette("yellow", WARNING_MARK) if level == "warning" else self._palette("cyan", INFO_MARK)
        line_break = f"\n{indent}  "
        return f"{indent}{mark} {escape_multiline(text).replace(chr(10), line_break)}\n"

    def _on_run_ended(self, event: RunEnded) -> None:
        self._progress = None
        if self._tree is not None:
            self._pending.append(self._tree.abandon("not finished") + "\n")
            self._tree = None
        if self._quiet:
            self._pending.append(f"{format_summary_line(event)}\n")
            return
        self._pending.append("" if self._has_blank_line else "\n")
        if failures := self._failures.format_failures():
            self._pending += [self._format_heading("Failures"), *(f"{line}\n" for line in failures), "\n"]
        if self._matrix is not None:
            lines = format_matrix(self._matrix.build(), self._width - 2)
            self._pending += [self._format_heading("Agents"), *(f"  {line}".rstrip() + "\n" for line in [*lines, ""])]
        self._pending.append(self._format_heading("Summary"))
        lines = [*format_summary(self._started, event), *self._failures.format_rates()]
        if (stop := describe_stop(event)) is not None:
            lines.append(f"Stopped: {stop}")
        for line in lines:
            is_path = line.startswith("Report: ")  # to be copied: not wrapped
            self._pending += [f"  {part}\n" for part in ([line] if is_path else wrap_text(line, self._width - 2, 9))]
        self._pending.append(("\n" if lines else "") + self._format_result_line(event))
        steps = self._failures.list_next_steps(self._started, event) if self._started else []
        if steps:
            next_lines = format_next_steps(steps, self._palette, self._width - 2)
            self._pending += ["\n", *(f"  {line}\n" for line in next_lines)]

    def _format_result_line(self, event: RunEnded) -> str:
        """The counts and the time, in the colour of the result."""
        summary = event.summary
        status: Status = "passed" if event.exit_code == 0 else "failed"
        if status == "failed" and not summary.failed and (summary.errors or event.stopped):
            status = "error"
        text = f"{STATUS_MARKS[status]} {format_counts(summary, with_faults=True)} · {format_ms(summary.duration_ms)}"
        return "".join(f"{self._palette.style_status(status, line)}\n" for line in wrap_text(text, self._width, 9))

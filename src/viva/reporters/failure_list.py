"""The list at the end of the console output: each case that did not pass, with its place and one reason."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from viva.model.event import RunEnded, RunStarted, TrialEnded
from viva.model.record import Cell, Status, TrialRecord
from viva.reporters.commands import build_rerun_command, build_rerun_failed_command, quote_shell
from viva.reporters.console_lines import Palette, to_copyable
from viva.reporters.failures import TrialFailure
from viva.reporters.formatting import display_width, fit_line, shorten_id, wrap_text
from viva.stats.pass_rate import pass_rate
from viva.stats.pass_rule import PassRule

_MAX_CASES = 50
"""More are counted, not listed."""
_MIN_GROUP = 3
"""At least this many cases with the same reason are listed together."""
_REASON_WIDTH = 400
_REASON_LINES = 2


class _FailedCase(Struct):
    """A case with a trial that did not pass. `reasons` are those of its failed trials, with their numbers."""

    record: TrialRecord
    index: int
    source: str | None
    label: str
    reasons: dict[str, list[int]] = field(default_factory=dict)


class FailureList:
    """Collects the trials that did not pass. It holds the first cases only, so memory does not grow with the failures."""

    def __init__(self, palette: Palette, width: int) -> None:
        self._palette = palette
        self._width = width
        self._cases: dict[Cell, _FailedCase] = {}
        self._skipped: dict[tuple[Cell, str], int] = {}
        self._unlisted = 0
        self._trials: dict[Cell, dict[int, Status]] | None = None  # only if cases are repeated
        self._planned: dict[Cell, int] = {}
        self._rule = PassRule.from_settings({})
        self._settings: Mapping[str, Any] = {}
        self._names_agents = False

    def start(self, started: RunStarted) -> None:
        self._settings = started.settings
        self._rule = PassRule.from_settings(started.settings)
        self._trials = {} if started.trials > started.cases else None
        self._names_agents = len(started.agents) > 1

    @property
    def has_repeats(self) -> bool:
        return self._trials is not None

    def add(self, ended: TrialEnded, failure: TrialFailure | None) -> int | None:
        """Adds a trial. Returns the number of an earlier trial of the case that ended for the same reason."""
        record = ended.record
        name = record.cell
        if self._trials is not None:
            self._trials.setdefault(name, {})[record.trial] = record.status
            self._planned[name] = record.trials
        if failure is not None and record.status == "skipped" and self._trials is not None:
            first = self._skipped.setdefault((name, failure.headline), record.trial)
            return first if first != record.trial else None
        if failure is None or record.status not in ("failed", "error"):
            return None
        if name not in self._cases and len(self._cases) >= _MAX_CASES and self._trials is None:
            self._unlisted += 1
            return None
        label = failure.status_text if record.status == "error" else ""
        case = self._cases.setdefault(name, _FailedCase(record, ended.index, failure.source, label))
        same = case.reasons.setdefault(fit_line(failure.headline, _REASON_WIDTH), [])
        same.append(record.trial)
        return same[0] if len(same) > 1 else None

    def format_failures(self) -> list[str]:
        """The failed cases; many with the same reason are listed together."""
        failed = self._find_failed()
        groups: dict[tuple[Status, tuple[str, ...]], list[_FailedCase]] = {}
        for case in failed:
            status = self._get_status(case)
            groups.setdefault((status, _get_shared_reasons(case, status)), []).append(case)
        lines: list[str] = []
        for (status, reasons), cases in groups.items():
            mark = self._palette.marks[status]
            if self.has_repeats or len(cases) < _MIN_GROUP:
                for case in cases:
                    lines += self._format_case(case, mark)
            else:
                count = f"{len(cases)} × "
                is_same = all(case.reasons.keys() == cases[0].reasons.keys() for case in cases)
                reason = next(iter(cases[0].reasons)) if is_same else reasons[0]
                lines.append(f"{mark} {count}{fit_line(reason, self._width - len(count) - 2)}")
                lines += [f"    {self._format_place(case, self._width - 4)}" for case in cases]
        if self._unlisted:
            lines.append(f"… and {self._unlisted:,} more")
        return lines

    def format_rates(self) -> list[str]:
        """The pass rate of a run with repeats, and the cases that passed although not every trial did, or of which too few ran.

        In a sequential test, the decision of each case that passed.
        """
        if not self._trials:
            return []
        from viva.reporters.repeats import format_suite_rate  # few runs have repeats

        cases = {name: _order_statuses(trials) for name, trials in self._trials.items()}
        if self._names_agents and self._rule.test is None:
            return []  # the matrix has them
        suite_rate = format_suite_rate(cases.values(), self._rule)
        lines = [f"Pass rate: {suite_rate}"] if suite_rate else []
        listed = {case.record.cell for case in self._find_failed()}
        for name, statuses in cases.items():
            rate = pass_rate(statuses)
            is_shown = self._rule.test is not None or rate.passed < len(statuses) + self._count_missing(name)
            if name not in listed and rate.decided and is_shown:
                lines.append(
                    f"{shorten_id(name[1], 40)}{self._format_agent_suffix(name[2])}: {self._format_rate(name)}"
                )
        return lines

    def list_next_steps(self, started: RunStarted, ended: RunEnded) -> list[tuple[str, str]]:
        """Commands to go on with, each with what it does."""
        steps: list[tuple[str, str]] = []
        has_journal = bool(started.settings.get("journal"))
        failed = self._find_failed()
        if has_journal and ended.stopped is not None:
            steps.append((f"viva test --resume {started.run}", "continue the run"))
        if has_journal:
            steps.append((f"viva view {started.run}", "see the run in the browser"))
        if has_journal and failed and failed[0].record.turns:
            dash = "-- " if failed[0].record.id.startswith("-") else ""
            case = quote_shell(failed[0].record.id)
            steps.append((f"viva runs show {started.run} {dash}{case}", "show a conversation"))
        if len(failed) == 1 and not self._unlisted:
            command = build_rerun_command(failed[0].record, started.settings)
        else:
            command = build_rerun_failed_command(started, [case.record for case in failed]) if failed else None
        return [*steps, (command, "run what failed again")] if command is not None else steps

    def _find_failed(self) -> list[_FailedCase]:
        """The cases that failed or had an error, in input order."""
        failed = (case for case in self._cases.values() if self._get_status(case) in ("failed", "error"))
        return sorted(failed, key=lambda case: case.index)

    def _get_status(self, case: _FailedCase) -> Status:
        if self._trials is None:
            return case.record.status
        name = case.record.cell
        return self._rule.status(self._get_statuses(name), self._count_missing(name))

    def _count_missing(self, name: Cell) -> int:
        return self._rule.count_missing(len(self._get_statuses(name)), self._planned.get(name, 0))

    def _get_statuses(self, name: Cell) -> Sequence[Status]:
        return _order_statuses((self._trials or {})[name])

    def _format_case(self, case: _FailedCase, mark: str) -> list[str]:
        lines = [f"{mark} {self._format_place(case, self._width - 2)}"]
        if self.has_repeats:
            lines.append(f"    {fit_line(self._format_rate(case.record.cell), self._width - 4)}")
        for reason, trials in case.reasons.items():
            count = f"{len(trials)} × " if self.has_repeats else ""
            room = self._width - 4 - len(count)
            first, *more = wrap_text(reason, room, _REASON_LINES)
            lines += [f"    {count}{first}", *(f"    {' ' * len(count)}{line}" for line in more)]
        return lines

    def _format_rate(self, name: Cell) -> str:
        from viva.reporters.repeats import format_case_rate  # few runs have repeats

        return format_case_rate(self._get_statuses(name), self._rule, self._count_missing(name))

    def _format_agent_suffix(self, agent: str) -> str:
        return f" [{fit_line(agent, self._width // 4)}]" if self._names_agents else ""

    def _format_place(self, case: _FailedCase, width: int) -> str:
        """Id, file and line, and whose fault an error is. A long path gets a line of its own: it is not cut."""
        name = shorten_id(case.record.id, self._width // 2) + self._format_agent_suffix(case.record.agent or "")
        source = to_copyable(case.source or "")
        label = "" if self.has_repeats else case.label
        line = "  ".join(part for part in (name, source, label) if part)
        if display_width(line) <= width or not source:
            return line
        return "  ".join(part for part in (name, label) if part) + f"\n    {source}"


def _get_shared_reasons(case: _FailedCase, status: Status) -> tuple[str, ...]:
    """The reasons by which cases are listed together. Errors are alike if only numbers and ids differ, as on the page."""
    if status != "error":
        return tuple(case.reasons)
    from viva.reporters.breakdown import mask_varying_parts  # few runs have errors

    parts = (reason.partition(": ") for reason in case.reasons)
    return tuple(f"{place}{colon}{mask_varying_parts(text)}" for place, colon, text in parts)


def _order_statuses(trials: Mapping[int, Status]) -> list[Status]:
    return [trials[number] for number in sorted(trials)]


def format_next_steps(steps: Sequence[tuple[str, str]], palette: Palette, width: int) -> list[str]:
    """Commands that can be copied with the comments beside them, which are left out where they do not fit."""
    commands = [to_copyable(command) for command, _ in steps]
    column = max((display_width(command) for command in commands if display_width(command) <= width - 30), default=0)
    lines: list[str] = []
    for command, (_, purpose) in zip(commands, steps, strict=True):
        is_short = display_width(command) <= column
        padding = " " * (column - display_width(command) + 2)
        lines.append(f"{command}{padding}{palette('dim', f'# {purpose}')}" if is_short else command)
    return lines

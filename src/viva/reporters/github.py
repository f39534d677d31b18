"""Annotations for GitHub Actions: each case that did not pass becomes an error at its file and line.

GitHub reads them as commands from the log of a step: `::error file=tests/a.jsonl,line=3,title=T001 failed::reason`.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from viva.errors import Problem
from viva.model.event import Event, RunEnded, RunStarted, TrialEnded
from viva.model.record import Cell, Status, TrialRecord
from viva.reporters.failures import TrialFailure, explain_failure
from viva.reporters.formatting import fit_line
from viva.reporters.repeats import explain_undetermined
from viva.stats.pass_rule import PassRule

_MAX_ANNOTATIONS = 50
"""GitHub shows ten errors of a step and fifty of a job."""
_WIDTH = 1000
_COMMAND = re.compile(r"^(\s*)(:(?=:)|#(?=#\[))", re.MULTILINE)


class GithubAnnotations:
    """Writes the annotations when the run has ended. `repository` is the folder that GitHub's paths start from."""

    live = False

    def __init__(self, stream: TextIO, repository: Path) -> None:
        self._stream = stream
        self._repository = repository
        self._rule = PassRule.from_settings({})
        self._names_agents = False
        self._trials: dict[Cell, dict[int, Status]] = {}
        self._failed: dict[Cell, tuple[TrialRecord, TrialFailure]] = {}

    def receive(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, RunStarted):
                self._rule = PassRule.from_settings(event.settings)
                self._names_agents = len(event.agents) > 1
            elif isinstance(event, TrialEnded):
                self._add_event(event)
            elif isinstance(event, RunEnded):
                self._write_cases()
                for suite in event.summary.suites:
                    for text in suite.failures:
                        self._stream.write(_format_error([("title", f"{suite.suite}: threshold not met")], text))
                self._stream.flush()

    def _add_event(self, event: TrialEnded) -> None:
        record, name = event.record, event.record.cell
        if event.of > 1:
            self._trials.setdefault(name, {})[record.trial] = record.status
        is_new = name not in self._failed and len(self._failed) < _MAX_ANNOTATIONS
        if record.status in ("failed", "error") and is_new:
            self._failed[name] = (record, explain_failure(record))

    def _write_cases(self) -> None:
        for name, (record, failure) in self._failed.items():
            trials = self._trials.get(name, {})
            statuses: list[Status] = [trials[number] for number in sorted(trials)] or [record.status]
            missing = self._rule.count_missing(len(statuses), record.trials)
            status = self._rule.status(statuses, missing)
            if status not in ("failed", "error"):
                continue  # enough of its trials passed
            rate = f"{statuses.count('passed')} of {len(statuses)} trials passed" if len(statuses) > 1 else ""
            rate = explain_undetermined(statuses, self._rule, missing) or rate
            rate = f"{rate}; " if rate else ""
            word = "undecided" if self._rule.is_undecided(statuses) else status
            place = _list_place_properties(failure.file or "", failure.line or 0, self._repository)
            agent = f" on {record.agent}" if self._names_agents else ""
            title = ("title", f"{record.id}{agent} {word}")
            self._stream.write(_format_error([*place, title], rate + failure.headline))


def annotate_problems(problems: Sequence[Problem], stream: TextIO, repository: Path) -> None:
    """Writes an annotation for each problem that has a file. The output has the other problems already."""
    for problem in problems[:_MAX_ANNOTATIONS]:
        if place := _list_place_properties(problem.file, problem.line, repository):
            message = f"{problem.path}: {problem.message}" if problem.path else problem.message
            stream.write(_format_error([*place, ("title", "Bad input")], message))


def _format_error(properties: Sequence[tuple[str, str]], message: str) -> str:
    text = ",".join(f"{key}={_escape_property(fit_line(value, _WIDTH))}" for key, value in properties)
    return f"::error {text}::{_escape_message(fit_line(message, _WIDTH))}\n"


def _list_place_properties(file: str, line: int, repository: Path) -> list[tuple[str, str]]:
    if not file:
        return []
    path = Path(file).absolute()
    shown = path.relative_to(repository) if path.is_relative_to(repository) else path
    return [("file", shown.as_posix()), *([("line", str(line))] if line else [])]


def _escape_message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_message(text).replace(":", "%3A").replace(",", "%2C")


def disarm_commands(text: str) -> str:
    """Breaks up commands to the GitHub runner in a text, since an agent could say one."""
    return _COMMAND.sub(r"\1\2 ", text)

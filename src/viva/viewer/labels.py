"""Labels that people give to verdicts in the browser. They are stored beside the run."""

import getpass
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from viva.errors import BadInput
from viva.model.label import Label, LabelValue
from viva.model.record import Status, TrialRecord
from viva.record.labels import append_label, read_labels, select_current_labels
from viva.stats.agreement import Agreement, LabelSummary, summarize_labels
from viva.viewer.runs import ProjectRuns, RunJournal

_MAX_NOTE = 10_000
_MAX_RUNS = 100
_JUDGE_TYPES = frozenset({"judge", "agent", "rubric"})
_CHECK_NAME = re.compile(r"(?:(\d{1,6})|end|checkpoint)-(\d{1,6})", re.ASCII)


class LabelRequest(Struct, forbid_unknown_fields=True):
    """A label that the page sends. A null `label` removes the earlier label."""

    label: LabelValue | None
    trial: int = 1
    check: str = ""
    note: str = ""


class RunLabels(Struct):
    """The labels of a run, and the user name of new labels."""

    who: str
    summary: LabelSummary


class LabelPoint(Struct):
    """How often people agree with the verdicts of one run: a point of the chart of all runs."""

    run: str
    at: str
    agent: str
    judges: Agreement | None
    all: Agreement | None


class LabelStore:
    """Reads and writes the labels of a project's runs. `redact` removes secrets from notes."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._who = _get_user_name()

    def load(self, run: RunJournal) -> RunLabels:
        return RunLabels(self._who, summarize_labels(select_current_labels(read_labels(run.path))))

    def add(self, run: RunJournal, records: list[TrialRecord], request: LabelRequest) -> RunLabels:
        """Appends a label. BadInput if the case does not have the trial or check."""
        record = next((each for each in records if each.trial == request.trial), None)
        if record is None:
            raise BadInput.of(f"trial: the case has no trial {request.trial}")
        if len(request.note) > _MAX_NOTE:
            raise BadInput.of(f"note: is longer than {_MAX_NOTE} characters")
        check = _find_check(record, request.check) if request.check else {}
        name = str(check.get("label") or check.get("type") or "")
        label = Label(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            who=self._who,
            suite=record.suite,
            case=record.id,
            agent=record.agent or "",
            trial=record.trial,
            check=request.check,
            name=name,
            type=str(check.get("type") or ""),
            is_judge=check.get("type") in _JUDGE_TYPES,
            verdict=_get_status(check) if request.check else record.status,
            label=request.label,
            note=self._redact(request.note.strip()),
        )
        try:
            append_label(run.path, label)
        except OSError as error:
            raise BadInput.of(f"The label cannot be stored: {error.strerror}") from error
        return self.load(run)

    def list_agreements(self, runs: ProjectRuns) -> list[LabelPoint]:
        """The runs with labels, oldest first."""
        points: list[LabelPoint] = []
        for row in runs.history.list_runs(limit=_MAX_RUNS):
            labels = select_current_labels(read_labels(runs.history.journal_path(row.id)))
            if labels:
                summary = summarize_labels(labels)
                points.append(LabelPoint(row.id, row.at, row.agent, summary.judges, summary.all))
        return points[::-1]


def _get_user_name() -> str:
    """The name of the account: the viewer listens on this machine only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, in a container
        return "unknown"


def _find_check(record: TrialRecord, name: str) -> Mapping[str, Any]:
    match = _CHECK_NAME.fullmatch(name)
    position = int(match[2]) - 1 if match else -1
    if match and match[1]:
        checks = [check for turn in record.turns if turn.turn == int(match[1]) for check in turn.assertions]
    elif name.startswith("end-"):
        checks = record.final_assertions
    else:
        checks = [
            {**(checkpoint.assertion or {}), "label": checkpoint.id, "passed": checkpoint.reached}
            for checkpoint in record.checkpoints or ()
        ]
    if not 0 <= position < len(checks):
        raise BadInput.of(f"check: trial {record.trial} has no check {name!r}")
    return checks[position]


def _get_status(check: Mapping[str, Any]) -> Status:
    passed = check.get("passed")
    return "passed" if passed is True else "failed" if passed is False else "error"

"""What happened, as data. The journal gets each event first; reporters, history, viewer and host read the same stream."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from viva.model.case import By, Key
from viva.model.record import Status, TrialRecord, TurnRecord

Stopped = Literal["interrupted", "fail_fast", "budget", "broken"]


class Event(Struct, frozen=True, tag_field="event", omit_defaults=True):
    """The root of all events; the tag is the event's name in the journal and in `--json`."""


class RunStarted(Event, frozen=True, tag="run_started"):
    """The first event of a run. `cases` counts what will run, repeats not included."""

    run: str
    at: str
    viva: str
    agent: str
    inputs: tuple[str, ...]
    cases: int
    trials: int
    parallel: int
    settings: Mapping[str, Any] = {}


class RunResumed(Event, frozen=True, tag="run_resumed"):
    """A run that had been cut off goes on from here."""

    run: str
    at: str


class CaseGenerated(Event, frozen=True, tag="case_generated"):
    """A case that no file holds, one `of` so many; a resumed run takes it from here."""

    suite: str
    case: Mapping[str, Any]
    of: int = 1


class TrialStarted(Event, frozen=True, tag="trial_started"):
    """A trial opens its session. `turns` is how many lines its user will surely say."""

    key: Key
    index: int
    name: str
    turns: int = 0
    simulator: str | None = None


class TurnStarted(Event, frozen=True, tag="turn_started"):
    """The user has spoken; the agent has not answered yet."""

    key: Key
    turn: int
    input: str
    by: By


class TurnEnded(Event, frozen=True, tag="turn_ended"):
    """The agent has answered and the turn's claims are judged."""

    key: Key
    turn: TurnRecord


class TrialEnded(Event, frozen=True, tag="trial_ended"):
    """A trial has its outcome: one `of` so many of its case. `index` is its place in the input, for reports in input order."""

    key: Key
    index: int
    of: int
    record: TrialRecord


class Note(Event, frozen=True, tag="note"):
    """Something that a person should know and that is no verdict."""

    text: str
    level: Literal["info", "warning"] = "info"
    key: Key | None = None


class RunEnded(Event, frozen=True, tag="run_ended"):
    """The last event of a run, with its summary."""

    run: str
    at: str
    exit_code: int
    summary: "RunSummary"
    stopped: Stopped | None = None
    why: str | None = None


class RunSummary(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Counts of cases, with what is missing from each denominator said apart. `trials` counts each status of single trials."""

    total: int
    passed: int
    failed: int
    errors: int
    skipped: int
    not_run: int
    unchecked: int
    total_turns: int
    avg_turns: float
    duration_ms: float
    checks: int
    checks_passed: int
    trials: Mapping[Status, int] = {}
    faults: Mapping[str, int] = {}
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    unpriced_calls: int = 0
    undecided: int = 0
    """Cases of a sequential test that has shown neither; they are among the errors."""


AnyEvent = (
    RunStarted | RunResumed | CaseGenerated | TrialStarted | TurnStarted | TurnEnded | TrialEnded | Note | RunEnded
)
"""What a journal may hold, for decoding."""

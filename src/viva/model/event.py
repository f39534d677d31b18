"""What happened, as data. The journal gets each event first; reporters, history, viewer and host read the same stream."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from viva.errors import Fault
from viva.model.case import InputSource, Key, Threshold
from viva.model.message import Usage
from viva.model.record import Status, TrialRecord, TurnRecord

StopReason = Literal["interrupted", "fail_fast", "budget", "broken"]


class Event(Struct, frozen=True, tag_field="event", omit_defaults=True):
    """The root of all events; the tag is the event's name in the journal and in `--json`."""


class RunStarted(Event, frozen=True, tag="run_started"):
    """The first event of a run. `cases` counts what will run, repeats not included."""

    run: str
    """Its id: the name of its folder under .viva/runs."""
    at: str
    """When, in UTC (ISO 8601)."""
    viva: str
    """The version of Viva."""
    agent: str
    """The agent under test."""
    inputs: tuple[str, ...]
    """What stood after -i."""
    cases: int
    """How many cases will run."""
    trials: int
    """How many trials at most: cases times repeats."""
    parallel: int
    """How many at once."""
    settings: Mapping[str, Any] = {}
    """How it was asked for, so that it can be resumed."""
    verified: tuple[str, ...] = ()
    """Packs whose signature was verified: by which key, and what it covers."""
    number: int = 0
    """Its place in the sequence of runs of this project, from 1; 0 where none was given."""


class RunResumed(Event, frozen=True, tag="run_resumed"):
    """A run that had been cut off goes on from here."""

    run: str
    """Its id, the same as before."""
    at: str
    """When, in UTC."""


class CaseGenerated(Event, frozen=True, tag="case_generated"):
    """A case that no file holds, one `of` so many; a resumed run takes it from here."""

    suite: str
    """The suite that it belongs to."""
    case: Mapping[str, Any]
    """The case, as a file would hold it."""
    of: int = 1
    """How many were generated together."""


class TrialStarted(Event, frozen=True, tag="trial_started"):
    """A trial opens its session. `turns` is how many lines its user will surely say."""

    key: Key
    """Which suite, case, trial and attempt."""
    index: int
    """The place of the case in the input, from 0."""
    name: str
    """The name of the case."""
    turns: int = 0
    """So many lines are known before; 0 where a simulator speaks."""
    simulator: str | None = None
    """Who speaks for the user, if an agent does."""


class TurnStarted(Event, frozen=True, tag="turn_started"):
    """The user has spoken; the agent has not answered yet."""

    key: Key
    """Which trial."""
    turn: int
    """Which turn, from 1."""
    input: str
    """What the user said."""
    source: InputSource
    """Who said it: a script, the case itself, a simulator, or a person."""


class TurnEnded(Event, frozen=True, tag="turn_ended"):
    """The agent has answered and the turn's claims are judged."""

    key: Key
    """Which trial."""
    turn: TurnRecord
    """The turn, whole."""


class TrialEnded(Event, frozen=True, tag="trial_ended"):
    """A trial has its outcome: one `of` so many of its case. `index` is its place in the input, for reports in input order."""

    key: Key
    """Which trial."""
    index: int
    """The place of the case in the input, from 0."""
    of: int
    """How many trials its case has."""
    record: TrialRecord
    """All that is kept of it."""


class TrialRetried(Event, frozen=True, tag="trial_retried"):
    """An attempt ended in an error that is not the agent's, and the trial is run again. What it used is in the totals."""

    key: Key
    """Which trial, and which attempt of it."""
    index: int
    """The place of the case in the input, from 0."""
    turns: int
    """How many turns it had."""
    fault: Fault | None = None
    """Whose fault it was."""
    error: str | None = None
    """Why it ended."""
    usage: Usage | None = None
    """Its model calls, helpers included, added up."""
    workspace: str | None = None
    """Where its workspace was kept, if it was."""


class Note(Event, frozen=True, tag="note"):
    """Something that a person should know and that is no verdict."""

    text: str
    """In words."""
    level: Literal["info", "warning"] = "info"
    """How much it matters."""
    key: Key | None = None
    """Which trial it is about; none: the run."""


class RunEnded(Event, frozen=True, tag="run_ended"):
    """The last event of a run, with its summary."""

    run: str
    """Its id."""
    at: str
    """When, in UTC."""
    exit_code: int
    """What the process exits with."""
    summary: "RunSummary"
    """The counts."""
    stopped: StopReason | None = None
    """Why it ended early, if it did."""
    stop_message: str | None = None
    """The same in words."""


class SuiteSummary(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a suite stands against its bar. `score` is the mean of its cases' scores, each the mean of its trials.

    `cost_usd` is None as soon as one price is unknown, `p95_ms` where nothing was measured. `missed` says in words, with
    both numbers, which parts of the bar were not reached; `regressed` is said apart, since it decides only where asked,
    and `worse` are the cases that scored more in the baseline. As long as cases are `uncompared`, so are the scores.
    """

    suite: str
    """The suite's id."""
    version: str = ""
    """Its version, where it has one."""
    score: float
    """From 0 to 1."""
    passed: bool
    """Did it reach its bar?"""
    cases: int
    """How many cases it has."""
    passed_cases: int
    """How many of them passed."""
    failed_cases: int = 0
    """How many failed."""
    threshold: Threshold
    """What it had to reach."""
    cost_usd: float | None = None
    """All model calls, judges included."""
    p95_ms: int | None = None
    """The 95th percentile of the latencies of its cases."""
    unmet: tuple[str, ...] = ()
    """What was not reached, in words."""
    regression: str | None = None
    """How far the score is below the baseline, in words."""
    worse_cases: tuple[str, ...] = ()
    """Cases that scored more in the baseline."""
    uncompared_cases: tuple[str, ...] = ()
    """Cases that have no verdict, here or in the baseline."""

    @property
    def score_change(self) -> float | None:
        """How far the score is above the baseline; None where there is none, or the two tell of different cases."""
        before = self.threshold.baseline
        return None if before is None or self.uncompared_cases else round(self.score - before.score, 6)

    @property
    def failures(self) -> tuple[str, ...]:
        """All that fails the suite, in words: a baseline too, where it must not be worse than that."""
        if not self.threshold.fail_on_regression:
            return self.unmet
        unknown = (
            f"not compared with the baseline: {', '.join(self.uncompared_cases)}" if self.uncompared_cases else None
        )
        return (*self.unmet, *(said for said in (self.regression, unknown) if said is not None))


class RunSummary(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Counts of cases, with what is missing from each denominator said apart. `trials` counts each status of single trials."""

    total: int
    """Cases that were to run."""
    passed: int
    """Cases that passed."""
    failed: int
    """Cases that failed: the agent's fault."""
    errors: int
    """Cases that could not be judged: not the agent's fault."""
    skipped: int
    """Cases that were left out, or in which nothing was checked."""
    not_run: int
    """Cases that never began, or were cut off."""
    unchecked: int
    """Of the skipped ones, those in which nothing was checked."""
    total_turns: int
    """Turns of all trials, attempts that were run again included."""
    avg_turns: float
    """Turns for each trial that ran, without attempts that were run again."""
    duration_ms: float
    """Wall time of the run."""
    checks: int
    """Checks that were evaluated, or should have been."""
    checks_passed: int
    """How many of them passed."""
    trials: Mapping[Status, int] = {}
    """Single trials by status."""
    faults: Mapping[str, int] = {}
    """Trials that did not pass, by whose fault it was."""
    retried: int = 0
    """Trials that were run again after somebody else's fault; what their earlier attempts used is in the totals."""
    input_tokens: int = 0
    """Tokens sent to models, helpers and attempts that were run again included."""
    output_tokens: int = 0
    """Tokens that models sent back."""
    cost_usd: float | None = None
    """What the trials cost whose prices are all known; none where no price is."""
    unpriced_calls: int = 0
    """Model calls of the other trials: they are not in the cost."""
    undecided: int = 0
    """Cases of which a sequential test has shown neither that they are good enough nor that they are not."""
    suites: tuple[SuiteSummary, ...] = ()
    """Suites that have a bar, and where they stand."""
    lost_reports: tuple[str, ...] = ()
    """Reports that could not be written, each with the reason: then the exit code is not 0."""


AnyEvent = (
    RunStarted
    | RunResumed
    | CaseGenerated
    | TrialStarted
    | TurnStarted
    | TurnEnded
    | TrialRetried
    | TrialEnded
    | Note
    | RunEnded
)
"""What a journal may hold, for decoding."""

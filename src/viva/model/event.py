"""The events of a run. The journal stores each event first; reporters, history, viewer and host read the same stream."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from viva.errors import Fault
from viva.model.case import InputSource, Key, SuiteKind, Threshold
from viva.model.message import Usage
from viva.model.record import Status, TrialRecord, TurnRecord

NoteKind = Literal["message", "not_merged"]
StopReason = Literal["interrupted", "fail_fast", "budget", "broken"]
AGENTS_KEY = "agents"
"""The setting of a run that says what its agents under test are made of, by name: settings, prompts, digests of code."""
ELSEWHERE_KEY = "made_elsewhere"
"""The setting of a merged run with parts that are not runs of this project's `.viva`: nothing that it names is run here."""
JOURNAL_VERSION = 3
"""Changes when fields of events or records get other names or meanings. A journal without a version is of version 1."""


class Event(Struct, frozen=True, tag_field="event", omit_defaults=True):
    """The base of all events; the tag is the event's name in the journal and in `--json`."""


class PlannedSuite(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A suite of a run that starts."""

    suite: str
    """The suite's id."""
    kind: SuiteKind = "cases"
    """Its format."""
    version: str = ""
    """Its version, if it has one."""
    size: int = 0
    """How many cases it has."""
    cases: int = 0
    """How many of them the filters select, in all shards."""
    threshold: Threshold | None = None
    """What it must reach."""


class RunOrigin(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a run comes from, as far as it is known."""

    model: str = ""
    """The model of the agent under test, if the config or a flag names one; several are joined by commas."""
    commit: str = ""
    """The commit of the Git repository that the run was started in. Files may have changed since."""
    branch: str = ""
    """The branch of that repository."""
    rerun_of: str = ""
    """The id of the run that this one repeats."""


class RunStarted(Event, frozen=True, tag="run_started"):
    """The first event of a run."""

    run: str
    """Its id: the name of its folder under .viva/runs."""
    at: str
    """When, in UTC (ISO 8601)."""
    viva: str
    """The version of Viva."""
    agent: str
    """The agent under test; several are joined by commas."""
    inputs: tuple[str, ...]
    """The values of -i."""
    cases: int
    """How many cases will run; a case counts once for each agent."""
    trials: int
    """How many trials at most: cases times repeats."""
    parallel: int
    """How many trials run in parallel at most."""
    settings: Mapping[str, Any] = {}
    """The options of the run, so that it can be resumed."""
    verified: tuple[str, ...] = ()
    """Packs whose signature was verified: by which key, and what it covers."""
    number: int = 0
    """Its number among the runs of this project, from 1; 0 if it has none."""
    suites: tuple[PlannedSuite, ...] = ()
    """Its suites, in input order."""
    all_trials: int = 0
    """How many trials all shards have at most; 0 if the run is not a shard."""
    agents: tuple[str, ...] = ()
    """The agents under test, in the order of -n; empty if there is none."""
    origin: RunOrigin = RunOrigin()
    """Where it comes from."""
    journal_version: int = field(default_factory=lambda: JOURNAL_VERSION)  # a factory, so that it is always written
    """The version of the journal's format."""


class RunResumed(Event, frozen=True, tag="run_resumed"):
    """A run that was interrupted continues here."""

    run: str
    """Its id, the same as before."""
    at: str
    """When, in UTC."""
    discarded: tuple[int, ...] = ()
    """The indexes of trials that ended before and do not count any more: with --force, those of changed cases."""


class CaseGenerated(Event, frozen=True, tag="case_generated"):
    """A generated case; a resumed run takes it from here."""

    suite: str
    """The suite that it belongs to."""
    case: Mapping[str, Any]
    """The case, as it would be written in a file."""
    of: int = 1
    """How many were generated together."""


class TrialStarted(Event, frozen=True, tag="trial_started"):
    """A trial starts."""

    key: Key
    """Which suite, case, trial and attempt."""
    index: int
    """The place of the case in the input, from 0."""
    name: str
    """The name of the case."""
    turns: int = 0
    """How many messages are planned; 0 if a simulator plays the user."""
    simulator: str | None = None
    """The agent that plays the user, if one does."""


class TurnStarted(Event, frozen=True, tag="turn_started"):
    """The user has sent a message; the agent has not replied yet."""

    key: Key
    """Which trial."""
    turn: int
    """Which turn, from 1."""
    input: str
    """The text of the user's message."""
    source: InputSource
    """Where it comes from: static, initial, simulated or interactive."""


class TurnEnded(Event, frozen=True, tag="turn_ended"):
    """The agent has replied, and the turn's assertions are evaluated."""

    key: Key
    """Which trial."""
    turn: TurnRecord
    """The record of the turn."""


class TrialEnded(Event, frozen=True, tag="trial_ended"):
    """A trial has ended."""

    key: Key
    """Which trial."""
    index: int
    """The place of the case in the input, from 0."""
    of: int
    """How many trials its case has."""
    record: TrialRecord
    """The record of the trial."""


class TrialRetried(Event, frozen=True, tag="trial_retried"):
    """An attempt ended in an error that is not the agent's fault, and the trial is retried. Its usage is in the totals."""

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
    """The sum of its model calls, helpers included."""
    workspace: str | None = None
    """The path of its workspace, if it was kept."""


class Note(Event, frozen=True, tag="note"):
    """A message for people, without effect on the outcome."""

    text: str
    """The message."""
    level: Literal["info", "warning"] = "info"
    """info or warning."""
    key: Key | None = None
    """The trial it is about; null for the run."""
    kind: NoteKind = "message"
    """not_merged: cases that a merged run lacks. A later merge may have them."""


class RunEnded(Event, frozen=True, tag="run_ended"):
    """The last event of a run."""

    run: str
    """Its id."""
    at: str
    """When, in UTC."""
    exit_code: int
    """The exit code of the process."""
    summary: "RunSummary"
    """The counts."""
    stopped: StopReason | None = None
    """Why it ended early, if it did."""
    stop_message: str | None = None
    """The reason in words."""


class SuiteSummary(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A suite compared with its threshold, on one agent. While there are `uncompared_cases`, the scores are not compared either."""

    suite: str
    """The suite's id."""
    agent: str = ""
    """The agent under test."""
    kind: SuiteKind = "cases"
    """Its format."""
    version: str = ""
    """Its version, if it has one."""
    score: float
    """The mean score of its cases, from 0 to 1; that of a case is the mean of its trials."""
    passed: bool
    """Did it reach its threshold?"""
    cases: int
    """How many cases it has."""
    passed_cases: int
    """How many of them passed."""
    failed_cases: int = 0
    """How many failed."""
    threshold: Threshold
    """What it had to reach."""
    cost_usd: float | None = None
    """The cost of all model calls, judges included; null if a price is unknown."""
    p95_ms: int | None = None
    """The 95th percentile of the latencies; null if nothing was measured."""
    unmet: tuple[str, ...] = ()
    """The parts of the threshold that were not reached, in words."""
    regression: str | None = None
    """How far the score is below the baseline, in words."""
    worse_cases: tuple[str, ...] = ()
    """The cases that scored higher in the baseline."""
    uncompared_cases: tuple[str, ...] = ()
    """The cases that did not pass or fail in both runs."""

    @property
    def score_change(self) -> float | None:
        """How far the score is above the baseline; None if there is none, or if it has other cases."""
        before = self.threshold.baseline
        return None if before is None or self.uncompared_cases else round(self.score - before.score, 6)

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that fails the suite, in words; a regression only with `fail_on_regression`."""
        if not self.threshold.fail_on_regression:
            return self.unmet
        unknown = (
            f"not compared with the baseline: {', '.join(self.uncompared_cases)}" if self.uncompared_cases else None
        )
        return (*self.unmet, *(text for text in (self.regression, unknown) if text is not None))


class RunSummary(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The counts of a run."""

    total: int
    """Cases that were planned; a case counts once for each agent."""
    passed: int
    """Cases that passed."""
    failed: int
    """Cases that failed: the agent's fault."""
    errors: int
    """Cases that ended in an error: not the agent's fault."""
    skipped: int
    """Cases that were skipped, or in which nothing was checked."""
    not_run: int
    """Cases that did not start, or were cancelled."""
    unchecked: int
    """Skipped cases in which nothing was checked."""
    total_turns: int
    """Turns of all trials, retried attempts included."""
    avg_turns: float
    """Mean turns per trial, without retried attempts."""
    duration_ms: float
    """Wall time of the run; of a resumed run that of all its parts, without the time between them."""
    checks: int
    """Checks, evaluated or in error."""
    checks_passed: int
    """How many of them passed."""
    trials: Mapping[Status, int] = {}
    """Single trials by status."""
    faults: Mapping[str, int] = {}
    """Trials that did not pass, by fault."""
    retried: int = 0
    """Trials that were retried; the usage of their earlier attempts is in the totals."""
    input_tokens: int = 0
    """Tokens sent to models, helpers and retried attempts included."""
    output_tokens: int = 0
    """Tokens that models returned."""
    cost_usd: float | None = None
    """The cost of the model calls whose price is known; null if none is."""
    unpriced_calls: int = 0
    """Model calls without a known price: they are not in the cost."""
    undecided: int = 0
    """Cases that a sequential test could not decide."""
    suites: tuple[SuiteSummary, ...] = ()
    """The suites that have a threshold."""
    lost_reports: tuple[str, ...] = ()
    """Reports that could not be written, each with the reason; then the exit code is not 0."""


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
"""Every event of a journal, for decoding."""

"""What is kept of a trial: the shape of a line in the JSONL report and in the journal, which are the same bytes.

The names are those of the specification's sample, so they differ here and there from the words of the engine.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from viva.errors import Fault
from viva.model.case import InputSource, Key
from viva.model.finding import Finding
from viva.model.message import ModelCall, Usage
from viva.model.tracebacks import Traceback
from viva.model.turn import AwaitingReason, FileChange

Status = Literal["passed", "failed", "skipped", "error"]


class ToolCallRecord(Struct, omit_defaults=True):
    """A tool call as reports show it."""

    name: str
    """The tool."""
    args: Any
    """What it was called with."""
    id: str = ""
    """The id of the call."""
    result: Any | UnsetType = UNSET
    """What it gave back; absent while it had not ended."""
    error: str | None = None
    """What went wrong, where it was refused or failed."""
    pending: bool = False
    """Does it wait, for an approval say?"""
    refused: bool = False
    """It did not run: a policy forbids it, or there is no such tool."""


class TurnRecord(Struct, omit_defaults=True):
    """One turn. `assertions` hold each claim as it was written, with `passed` (null: could not be evaluated) and `reason`."""

    turn: int
    """Which turn, from 1."""
    input: str
    """What the user said."""
    input_source: InputSource
    """Who said it: static, initial, simulated or interactive."""
    output: str
    """What the agent said; where `error` is set, what it had said until then."""
    awaiting_input: bool
    """Does the agent wait for the user?"""
    tool_calls: list[ToolCallRecord]
    """The tools that it used, in order."""
    assertions: list[dict[str, Any]]
    """The claims of this turn, with their verdicts."""
    duration_ms: float
    """How long the agent took."""
    awaiting_reason: AwaitingReason | None = None
    """What `awaiting_input` rests on."""
    awaiting_confidence: float | None = None
    """From 0 to 1."""
    input_hint: str | None = None
    """What the agent says that it waits for."""
    data: Any = None
    """The structured part of the reply."""
    attachments: list[dict[str, Any]] | None = None
    """What was sent along, by its source."""
    options: dict[str, Any] | None = None
    """What this line says to the agent beside its words, as it was written."""
    error: str | None = None
    """What went wrong, where no usable reply came."""
    assertion_errors: list[str] | None = None
    """One line for each claim that does not hold."""
    finish_reason: str | None = None
    """Why the model stopped, in its provider's words."""
    usage: Usage | None = None
    """The model calls behind the reply, added up."""
    cost_usd: float | None = None
    """What they cost; absent where a price is unknown."""
    files: tuple[FileChange, ...] = ()
    """Files of the workspace that the turn added, changed or removed."""
    comment: str | None = None
    """What the simulator said about its line."""


class CheckpointRecord(Struct, omit_defaults=True):
    """How a checkpoint ended: reached at which turn by what, or how close it came."""

    id: str
    """Its id."""
    description: str
    """In words."""
    required: bool
    """Is it needed to pass?"""
    reached: bool
    """Was it reached?"""
    turn: int | None = None
    """At which turn."""
    reason: str | None = None
    """Why it counts as reached, or how close it came."""
    unmet_after: tuple[str, ...] = ()
    """Checkpoints of its `after` that were not reached."""
    assertion: dict[str, Any] | None = None
    """The claim as it was written, with its last verdict."""


class TrialRecord(Struct, omit_defaults=True):
    """One trial, whole."""

    id: str
    """The case."""
    name: str
    """Its name, else its id."""
    status: Status
    """The outcome."""
    turns: list[TurnRecord]
    """The conversation."""
    final_assertions: list[dict[str, Any]]
    """The claims about the whole of it, with their verdicts."""
    total_turns: int
    """How many turns there were."""
    duration_ms: float
    """How long the trial took, helpers included."""
    suite: str
    """The suite: the file's path, or its own id."""
    trial: int
    """Which repeat, from 1."""
    attempt: int
    """Which attempt, from 1: a trial runs again after somebody else's fault."""
    trials: int = 1
    """How many trials its case has; with --until-decided, at most."""
    fault: Fault | None = None
    """Whose fault it is, where it did not pass."""
    fault_evidence: list[str] | None = None
    """What that rests on, a line each."""
    error: str | None = None
    """Why it ended as it did, where it did not pass."""
    deterministic: bool = False
    """Would the same error come again? Then the trial is not retried."""
    hint: str | None = None
    """What could be done about it."""
    assertion_errors: list[str] | None = None
    """One line for each claim that does not hold."""
    checkpoints: list[CheckpointRecord] | None = None
    """How each checkpoint ended."""
    goal_achieved: bool | None = None
    """true, where the simulator said so."""
    goal_reason: str | None = None
    """Why it said so."""
    turns_not_run: list[str] | None = None
    """The lines that were never said."""
    checks: int = 0
    """How many checks were evaluated."""
    score: float | None = None
    """The weighted share of claims that hold, from 0 to 1."""
    usage: Usage | None = None
    """All model calls of the trial, helpers included, added up."""
    cost_usd: float | None = None
    """What they cost; absent where a price is unknown."""
    model_calls: tuple[ModelCall, ...] = ()
    """Each of them, the agent's first, where the case wants them kept."""
    tags: tuple[str, ...] = ()
    """The tags of the case."""
    history: list[dict[str, Any]] | None = None
    """What had been said before the first turn: messages as a case holds them, attachments by their source."""
    options: dict[str, Any] | None = None
    """What the case says to the agent beside its lines, as it was written."""
    metadata: dict[str, Any] | None = None
    """What the case says about itself, as it was written."""
    agent: str | None = None
    """The agent under test."""
    simulator: str | None = None
    """The agent that spoke for the user."""
    session_id: str | None = None
    """The id of the session with the agent."""
    started_at: str | None = None
    """When, in UTC (ISO 8601)."""
    source: str | None = None
    """The file and line of the case."""
    digest: str | None = None
    """Names the definition of the case: another definition, another digest."""
    warnings: list[str] | None = None
    """What somebody should look at, such as an `after` hook that failed."""
    notes: list[str] | None = None
    """What somebody may want to know."""
    tracebacks: tuple[Traceback, ...] = ()
    """Errors in the user's own Python: an agent, a tool, a check, a hook."""
    workspace: str | None = None
    """Where the workspace was kept, if it was."""
    findings: tuple[Finding, ...] = ()
    """What a safety check found."""

    @property
    def key(self) -> Key:
        """Which suite, case, trial and attempt it is."""
        return Key(self.suite, self.id, self.trial, self.attempt)

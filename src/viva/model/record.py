"""The record of a trial: one line of the JSONL report and of the journal, which have the same bytes.

Some names differ from those of the engine: they are the names of the specification's sample.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from viva.errors import Fault
from viva.model.case import InputSource, Key
from viva.model.finding import Finding
from viva.model.message import ModelCall, Step, Usage
from viva.model.turn import AwaitingReason, FileChange, HelperCall, Traceback

Status = Literal["passed", "failed", "skipped", "error"]
STATUS_MARKS: dict[Status, str] = {"passed": "✓", "failed": "✗", "error": "!", "skipped": "○"}
ASSERTION_RESULT_FIELDS = frozenset(
    {
        *("label", "passed", "reason", "score", "expected", "actual", "evidence", "suggestions", "live"),
        *("criteria_results", "judge_calls", "duration_ms"),
    }
)
"""The fields that a record adds to the definition of an assertion. The page has the same list, for "Copy as case"."""
Cell = tuple[str, str, str]
"""Suite, case and agent: what the trials of a case on one agent have in common."""


class ToolCallRecord(Struct, omit_defaults=True):
    """A tool call."""

    name: str
    """The tool."""
    args: Any
    """The arguments of the call."""
    id: str = ""
    """The id of the call."""
    result: Any | UnsetType = UNSET
    """The result; absent if the call did not end."""
    error: str | None = None
    """The error, if it was refused or failed."""
    pending: bool = False
    """Does it wait, for example for an approval?"""
    refused: bool = False
    """Did it not run, because a policy forbids it or the tool does not exist?"""


class TurnRecord(Struct, omit_defaults=True):
    """One turn."""

    turn: int
    """Which turn, from 1."""
    input: str
    """The text of the user's message."""
    input_source: InputSource
    """Where it comes from: static, initial, simulated or interactive."""
    output: str
    """The agent's text; with an `error`, the text until then."""
    awaiting_input: bool
    """Does the agent await input?"""
    tool_calls: list[ToolCallRecord]
    """The tool calls, in order."""
    assertions: list[dict[str, Any]]
    """The assertions as written, each with `passed` (null: not evaluated) and `reason`."""
    duration_ms: float
    """The agent's latency."""
    first_token_ms: float | None = None
    """The time until the first text of the reply arrived, if it was streamed."""
    parts: tuple[str, ...] = ()
    """The texts of the agent's messages, if the reply consists of several."""
    awaiting_reason: AwaitingReason | None = None
    """The reason for `awaiting_input`."""
    awaiting_confidence: float | None = None
    """From 0 to 1."""
    input_hint: str | None = None
    """What the agent says it waits for."""
    data: Any = None
    """The structured part of the reply."""
    attachments: list[dict[str, Any]] | None = None
    """The attachments, by source."""
    options: dict[str, Any] | None = None
    """The options of the message, as written."""
    error: str | None = None
    """What went wrong, if there is no usable reply."""
    assertion_errors: list[str] | None = None
    """One line for each assertion that did not pass."""
    finish_reason: str | None = None
    """Why the model stopped, as its provider says."""
    path: tuple[str, ...] = ()
    """The graph nodes or agents that the reply passed through, in order."""
    usage: Usage | None = None
    """The sum of the reply's model calls."""
    cost_usd: float | None = None
    """Their cost; absent if a price is unknown."""
    files: tuple[FileChange, ...] = ()
    """The files that the turn added, changed or removed."""
    comment: str | None = None
    """The simulator's comment on its message."""
    start_ms: float = 0.0
    """When the message was sent, since the start of the trial."""
    checks_ms: float = 0.0
    """How long its assertions took together, if that is worth showing."""
    steps: tuple[Step, ...] = ()
    """The model calls and tool calls of the reply with their times, if they were measured."""


class CheckpointRecord(Struct, omit_defaults=True):
    """A checkpoint: reached, or how close it came."""

    id: str
    """Its id."""
    description: str
    """The description."""
    required: bool
    """Must it be reached to pass?"""
    reached: bool
    """Was it reached?"""
    turn: int | None = None
    """The turn at which it was reached."""
    reason: str | None = None
    """The reason of the last verdict."""
    unmet_after: tuple[str, ...] = ()
    """The checkpoints of its `after` that were not reached."""
    assertion: dict[str, Any] | None = None
    """The assertion as written, with its last verdict."""


class TrialRecord(Struct, omit_defaults=True):
    """Everything recorded about one trial: one line of the journal and of the .jsonl report."""

    id: str
    """The case."""
    name: str
    """Its name, else its id."""
    status: Status
    """The status."""
    turns: list[TurnRecord]
    """The conversation."""
    final_assertions: list[dict[str, Any]]
    """The assertions about the whole conversation, with their verdicts."""
    total_turns: int
    """The number of turns."""
    duration_ms: float
    """The duration, helpers included."""
    suite: str
    """The suite: the file's path, or its own id."""
    trial: int
    """Which repeat, from 1."""
    attempt: int
    """Which attempt, from 1: an error that is not the agent's fault is retried."""
    trials: int = 1
    """The number of trials of its case; with --until-decided, the maximum."""
    fault: Fault | None = None
    """The cause, if it did not pass: agent, simulator, judge, infra or undetermined."""
    fault_evidence: list[str] | None = None
    """The evidence for the fault, one line each."""
    error: str | None = None
    """The message, if it did not pass."""
    deterministic: bool = False
    """Would the same error happen again? Then it is not retried."""
    unchecked: bool = False
    """Was it skipped because it ran no check?"""
    hint: str | None = None
    """What to do about it."""
    assertion_errors: list[str] | None = None
    """One line for each assertion that did not pass."""
    checkpoints: list[CheckpointRecord] | None = None
    """The checkpoints."""
    goal_achieved: bool | None = None
    """true if the simulator declared the goal achieved."""
    goal_reason: str | None = None
    """The simulator's reason."""
    turns_not_run: list[str] | None = None
    """The planned messages that were not sent."""
    checks: int = 0
    """The number of checks."""
    score: float | None = None
    """The weighted share of passed assertions, from 0 to 1."""
    usage: Usage | None = None
    """The sum of all model calls, helpers included."""
    cost_usd: float | None = None
    """Their cost; absent if a price is unknown."""
    model_calls: tuple[ModelCall, ...] = ()
    """Every model call, if the case keeps them."""
    tags: tuple[str, ...] = ()
    """The tags of the case."""
    history: list[dict[str, Any]] | None = None
    """The messages before the first turn, attachments by source."""
    options: dict[str, Any] | None = None
    """The options of the case, as written."""
    metadata: dict[str, Any] | None = None
    """The metadata of the case, as written."""
    agent: str | None = None
    """The agent under test."""
    simulator: str | None = None
    """The agent that played the user."""
    session_id: str | None = None
    """The id of the session with the agent."""
    started_at: str | None = None
    """When, in UTC (ISO 8601)."""
    source: str | None = None
    """The file and line of the case."""
    digest: str | None = None
    """Identifies the definition of the case."""
    warnings: list[str] | None = None
    """Warnings, such as an `after` hook that failed."""
    notes: list[str] | None = None
    """What the test logged."""
    tracebacks: tuple[Traceback, ...] = ()
    """Errors in the user's own Python code: an agent, a tool, a check, a hook."""
    helper_calls: tuple[HelperCall, ...] = ()
    """The questions to simulators and judges, in order; `judge_calls` of an assertion are numbers of these, from 1."""
    workspace: str | None = None
    """The path of the workspace, if it was kept."""
    findings: tuple[Finding, ...] = ()
    """The findings of safety checks."""

    @property
    def key(self) -> Key:
        """Its suite, case, trial, attempt and agent."""
        return Key(self.suite, self.id, self.trial, self.attempt, self.agent or "")

    @property
    def cell(self) -> Cell:
        """Its case on its agent."""
        return self.suite, self.id, self.agent or ""

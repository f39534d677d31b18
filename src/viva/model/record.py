"""What is kept of a trial: the shape of a line in the JSONL report and in the journal, which are the same bytes.

The names are those of the specification's sample, so they differ here and there from the words of the engine.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from viva.errors import Fault
from viva.model.case import By, Key
from viva.model.finding import Finding
from viva.model.message import Usage
from viva.model.talk import AwaitingReason, FileChange

Status = Literal["passed", "failed", "skipped", "error"]


class ToolCallRecord(Struct, omit_defaults=True):
    """A tool call as reports show it."""

    name: str
    args: Any
    id: str = ""
    result: Any | UnsetType = UNSET
    error: str | None = None


class TurnRecord(Struct, omit_defaults=True):
    """One turn. `assertions` hold each claim as it was written, with `passed` (null: could not be evaluated) and `reason`."""

    turn: int
    input: str
    input_source: By
    output: str
    awaiting_input: bool
    tool_calls: list[ToolCallRecord]
    assertions: list[dict[str, Any]]
    duration_ms: float
    awaiting_reason: AwaitingReason | None = None
    awaiting_confidence: float | None = None
    input_hint: str | None = None
    data: Any = None
    attachments: list[dict[str, Any]] | None = None
    error: str | None = None
    assertion_errors: list[str] | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    files: tuple[FileChange, ...] = ()
    remark: str | None = None


class CheckpointRecord(Struct, omit_defaults=True):
    """How a checkpoint ended: reached at which turn by what, or how close it came."""

    id: str
    description: str
    required: bool
    reached: bool
    turn: int | None = None
    reason: str | None = None
    unmet_after: tuple[str, ...] = ()
    assertion: dict[str, Any] | None = None


class TrialRecord(Struct, omit_defaults=True):
    """One trial, whole."""

    id: str
    name: str
    status: Status
    turns: list[TurnRecord]
    final_assertions: list[dict[str, Any]]
    total_turns: int
    duration_ms: float
    suite: str
    trial: int
    attempt: int
    fault: Fault | None = None
    fault_evidence: list[str] | None = None
    error: str | None = None
    hint: str | None = None
    assertion_errors: list[str] | None = None
    checkpoints: list[CheckpointRecord] | None = None
    goal_achieved: bool | None = None
    goal_reason: str | None = None
    turns_not_run: list[str] | None = None
    checks: int = 0
    score: float | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    tags: tuple[str, ...] = ()
    agent: str | None = None
    simulator: str | None = None
    session_id: str | None = None
    started_at: str | None = None
    source: str | None = None
    digest: str | None = None
    warnings: list[str] | None = None
    notes: list[str] | None = None
    workspace: str | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def key(self) -> Key:
        return Key(self.suite, self.id, self.trial, self.attempt)

"""One turn of a conversation and what came of it: the reply, verdicts, file changes."""

from typing import Any, Literal

from msgspec import UNSET, Struct, field

from viva.errors import Fault
from viva.model.case import Assertion, UserMessage
from viva.model.finding import Finding
from viva.model.message import ModelCall, Reply

VerdictStatus = Literal["passed", "failed", "error"]
AwaitingReason = Literal[
    "agent_declared",
    "protocol_state",
    "tool_requires_confirmation",
    "finish_reason",
    "content_is_question",
    "content_is_request",
    "closing_offer",
    "completed",
]


class Quote(Struct, frozen=True):
    """What a judge points at."""

    turn: int
    quote: str


class Verdict(Struct, frozen=True, omit_defaults=True):
    """What came of a check. `error` means that it could not be evaluated: neither a pass nor a failure, and whose `fault`;
    one that is `deterministic` would come again.

    `findings` are kept whatever the status.
    """

    status: VerdictStatus
    reason: str = ""
    score: float | None = None
    expected: Any = UNSET
    actual: Any = UNSET
    evidence: tuple[Quote, ...] = ()
    suggestions: tuple[str, ...] = ()
    calls: tuple[ModelCall, ...] = ()
    fault: Fault = "undetermined"
    deterministic: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        """Does it hold? Neither a failure nor an error does."""
        return self.status == "passed"


PASSED = Verdict("passed")


class AssertionResult(Struct, frozen=True):
    """A claim and what came of it. `live`: a cassette is involved, and the check looked at more than what that holds."""

    assertion: Assertion
    verdict: Verdict
    is_live: bool = False


class AwaitingState(Struct, frozen=True):
    """Does the agent wait for the user? Said by whom, and how surely."""

    is_awaiting: bool
    reason: AwaitingReason
    confidence: float = 1.0


class FileChange(Struct, frozen=True, omit_defaults=True):
    """A file of the workspace that a turn added, changed or removed."""

    path: str
    """Relative to the workspace."""
    change: Literal["added", "changed", "removed"]
    """What became of it."""
    diff: str | None = None
    """The difference, where it is text and not too long."""


class FileImage(Struct, frozen=True, omit_defaults=True):
    """A file of the workspace as a turn left it, whole, so that a replay can put it there: its bytes, or where its link leads,
    or that it is a folder. None of these: it is gone. The paths of folders end in `/`.
    """

    path: str
    content: bytes | None = None
    link: str | None = None
    executable: bool = False
    folder: bool = False


class Turn(Struct):
    """One user input and the agent's reply to it, with its verdicts.

    `error` is set when no usable reply came; `partial` is then what the agent had said and done until it failed.
    """

    number: int
    user_message: UserMessage
    reply: Reply | None = None
    awaiting: AwaitingState | None = None
    results: list[AssertionResult] = field(default_factory=list[AssertionResult])
    files: tuple[FileChange, ...] = ()
    latency_ms: float = 0.0
    error: str | None = None
    partial_reply: Reply | None = None

    @property
    def is_unanswered(self) -> bool:
        """Does the agent wait for an answer? A closing offer waits too, but its task is finished."""
        return self.awaiting is not None and self.awaiting.is_awaiting and self.awaiting.reason != "closing_offer"


class CheckpointState(Struct):
    """What is known of a checkpoint: reached at which turn, or how close it came."""

    turn: int | None = None
    verdict: Verdict | None = None
    unmet_after: tuple[str, ...] = ()

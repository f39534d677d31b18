"""One turn of a conversation: the reply, the verdicts, the file changes, errors of the user's code."""

from typing import Any, Literal

from msgspec import UNSET, Struct

from viva.errors import Fault, Role
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
    """Text that a judge quotes as evidence."""

    turn: int
    quote: str


class CriterionResult(Struct, frozen=True, omit_defaults=True):
    """The verdict on one criterion of a rubric."""

    criterion: str
    passed: bool
    reason: str = ""
    score: float | None = None
    weight: float = 1.0
    evidence: tuple[Quote, ...] = ()


class Verdict(Struct, frozen=True, omit_defaults=True):
    """The verdict of a check. `error` means that it could not be evaluated, because of `fault`; a `deterministic` error would
    happen again. `findings` count whatever the status.
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
    criteria: tuple[CriterionResult, ...] = ()

    @property
    def passed(self) -> bool:
        """Is the status passed? Failures and errors are not."""
        return self.status == "passed"


PASSED = Verdict("passed")


class AssertionResult(Struct, frozen=True):
    """An assertion and its verdict. `is_live`: the run uses a cassette, but the check looked at more than that holds.

    `helper_calls` are the numbers of the calls of judges behind it; `duration_ms` is measured for checks that wait.
    """

    assertion: Assertion
    verdict: Verdict
    is_live: bool = False
    helper_calls: tuple[int, ...] = ()
    duration_ms: float | None = None


class AwaitingState(Struct, frozen=True):
    """Does the agent await input? With the reason and the confidence."""

    is_awaiting: bool
    reason: AwaitingReason
    confidence: float = 1.0


class FileChange(Struct, frozen=True, omit_defaults=True):
    """A file of the workspace that a turn added, changed or removed."""

    path: str
    """Relative to the workspace."""
    change: Literal["added", "changed", "removed"]
    """What happened to it."""
    diff: str | None = None
    """The text difference, if it is text and not too long."""


class RecordedFile(Struct, frozen=True, omit_defaults=True):
    """A file of the workspace as it was after a turn, for a replay: its content, the target of a link, or a folder, whose
    path ends in `/`. If none of these is set, the file was removed.
    """

    path: str
    content: bytes | None = None
    link: str | None = None
    executable: bool = False
    folder: bool = False


class Frame(Struct, frozen=True):
    """One frame of a traceback."""

    file: str
    """The source file."""
    line: int
    """The line number."""
    function: str
    """The function."""
    source: str = ""
    """The source line."""


class Traceback(Struct, frozen=True, omit_defaults=True):
    """One error in the user's own Python code."""

    where: str
    """What was running: the agent, a tool, a check, a hook."""
    error: str
    """The exception: its type and message."""
    frames: tuple[Frame, ...] = ()
    """The frames of the user's files, outermost first; those of installed packages if there are no others."""
    printed: str = ""
    """The end of what the code printed to stdout and stderr in this turn."""
    turn: int | None = None
    """The turn in which it happened, from 1."""


class SentMessage(Struct, frozen=True):
    """A message that a judge was sent."""

    role: str
    """The role of the sender: system or user."""
    text: str
    """The text, word for word."""


class HelperCall(Struct, frozen=True, omit_defaults=True):
    """One call of a simulator or a judge, with its duration. For a judge also the request and the answer."""

    role: Role
    """simulator or judge."""
    agent: str
    """Its name."""
    turn: int
    """The turn after which the call was made."""
    start_ms: float
    """When the call was made, since the start of the trial."""
    duration_ms: float
    """How long the answer took."""
    criteria: str = ""
    """What a judge had to decide."""
    sent: tuple[SentMessage, ...] = ()
    """What a judge was sent, word for word, at most 32,000 characters of each message."""
    metadata: str = ""
    """The metadata that a judge got with the message, as JSON. For a model it is part of the message."""
    answer: str = ""
    """What the judge answered, word for word."""
    error: str | None = None
    """Why the answer could not be used, or why there is none."""
    tokens: int = 0
    """Tokens sent and returned."""
    cost_usd: float | None = None
    """The cost, if it is known."""


class Turn(Struct):
    """One user message and the agent's reply, with assertion results.

    `error` is set if there is no usable reply; `partial_reply` is then the reply until the failure.
    """

    number: int
    user_message: UserMessage
    reply: Reply | None = None
    awaiting: AwaitingState | None = None
    results: list[AssertionResult] = []
    files: tuple[FileChange, ...] = ()
    latency_ms: float = 0.0
    error: str | None = None
    partial_reply: Reply | None = None
    start_ms: float = 0.0
    checks_ms: float = 0.0

    @property
    def awaits_user(self) -> bool:
        """Does the agent wait for an answer? A closing offer does not count: the task is finished."""
        return self.awaiting is not None and self.awaiting.is_awaiting and self.awaiting.reason != "closing_offer"


class CheckpointState(Struct):
    """The state of a checkpoint: the turn at which it was reached, its last verdict, and what it still waits for."""

    turn: int | None = None
    verdict: Verdict | None = None
    unmet_after: tuple[str, ...] = ()
    helper_calls: tuple[int, ...] = ()

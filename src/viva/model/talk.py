"""A conversation while it happens: turns, what is known so far, and what a check gets to see of it."""

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Struct, field

from viva.errors import Fault, Role
from viva.model import codec
from viva.model.case import Case, Assertion, Key, TextScope, TurnScope, UserMessage
from viva.model.embedded import find_json
from viva.model.finding import Finding
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.model.tracebacks import Traceback

if TYPE_CHECKING:
    from viva.protocols import Clock, Helpers, Workspace

WaitingFor = Role | Literal["person", "script"]
"""Whom a time-out is charged to; a `script` is code of the test's own: a hook, or a script test."""

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


class TrialState(Struct, dict=True):
    """All that a user, a check or a reporter may know of a running conversation. The trial owns it: a cut-off keeps its turns.

    `waiting_for` is whom we wait for now, so that a time-out is charged to the one who hung; `helping` counts the
    helpers who are being asked, since several judges may be at once.
    `not_found` says of each variable that a `set` looked for in vain where that was.
    `calls` counts every model call of the trial, those of replies that were cut off too.
    `set_up` is what the case's `before` returned, once it has; `notes` are what the test itself logged.
    `kept_at` is where the workspace stays to be looked at; a talk that is `taped` is kept on a cassette, or comes from one.
    `progress` is the state of the agent's current call; `helper_trouble` is the provider failure that a helper's call was
    being retried for when it was cut off; `tracebacks` are errors of the user's own code, wherever they happened.
    `input_missing` says why the user fell silent before all was said: a person stopped, or did not answer in time.
    """

    case: Case
    key: Key
    helpers: "Helpers"
    clock: "Clock"
    turns: list[Turn] = field(default_factory=list[Turn])
    final_results: list[AssertionResult] = field(default_factory=list[AssertionResult])
    checkpoints: dict[str, CheckpointState] = field(default_factory=dict[str, CheckpointState])
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    unset_variables: dict[str, str] = field(default_factory=dict[str, str])
    calls: list[ModelCall] = field(default_factory=list[ModelCall])
    warnings: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    before_result: Any = UNSET
    goal_reason: str | None = None
    missing_input: str | None = None
    waiting_for: WaitingFor = "agent"
    active_helpers: int = 0
    progress: CallProgress = field(default_factory=CallProgress)
    helper_trouble: str | None = None
    tracebacks: list[Traceback] = field(default_factory=list[Traceback])
    workspace: "Workspace | None" = None
    kept_workspace: str | None = None
    uses_cassette: bool = False
    session_id: str = ""
    confirmation_tools: frozenset[str] = frozenset()
    started: float = field(default_factory=time.perf_counter)

    @property
    def last_turn(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    def messages(self) -> list[Message]:
        """The conversation so far, prior history included, as messages."""
        said = list(self.case.history)
        for turn in self.turns:
            said.append(turn.user_message.message)
            if (reply := turn.reply) is not None:
                said.append(Message("assistant", reply.content, data=reply.data, tool_calls=reply.tool_calls))
        return said


def to_text(value: Any) -> str:
    """A value as text: a string as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else codec.compact_json(value)


def reply_text(reply: Reply) -> str:
    """What text is asserted on: the content or, where it is empty, the data as compact JSON."""
    if reply.content or reply.data is None:
        return reply.content
    return to_text(reply.data)


def reply_output(reply: Reply) -> Any:
    """What the agent gives back: the reply's data if it has some, else its text."""
    return reply.content if reply.data is None else reply.data


class CheckContext(Struct, dict=True):
    """What a check sees. `text` and `tool_calls` follow the claim's `on` and `over`."""

    state: TrialState
    turn: Turn
    text_scope: TextScope = "reply"
    turn_scope: TurnScope = "turn"

    @property
    def reply(self) -> Reply:
        """The reply of the turn; an empty one, where none came."""
        return self.turn.reply or Reply()

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns that count: this one, or all of the case."""
        return self.state.turns if self.turn_scope == "case" else (self.turn,)

    @cached_property
    def text(self) -> str:
        """The text that the check looks at."""
        if self.text_scope == "reply":
            return reply_text(self.reply)
        if self.text_scope == "output":
            return to_text(reply_output(self.reply))
        if self.text_scope == "reply_and_tools":
            results = (to_text(call.result) for call in self.reply.tool_calls if call.result is not UNSET)
            return "\n".join((reply_text(self.reply), *results))
        return "\n".join(reply_text(turn.reply) for turn in self.state.turns if turn.reply)

    @cached_property
    def json(self) -> Any:
        """The reply's data or, without any, JSON found in its text; else UNSET."""
        reply = self.reply
        return find_json(reply.content) if reply.data is None else codec.to_plain(reply.data)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the turns that count."""
        return [call for turn in self.turns if turn.reply for call in turn.reply.tool_calls]


EXAMPLE_INPUT = "your next message"
"""What stands for the user's words where a simulator is shown the form of its answers. Weak models copy it."""


def structured_answer(reply: Reply) -> Any:
    """The structured answer of a helper: its data or, without any, JSON found in its text; else UNSET."""
    return find_json(reply.content) if reply.data is None else reply.data

"""The state of a running trial, and what a check sees of it."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from viva.errors import Role
from viva.model import codec
from viva.model.case import Case, Key, TextScope, TurnScope
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.model.turn import AssertionResult, CheckpointState, HelperCall, Traceback, Turn
from viva.text.embedded_json import find_json
from viva.text.json_path import find_values_at

if TYPE_CHECKING:
    from viva.protocols import Clock, Helpers, Workspace

WaitingFor = Role | Literal["person", "script"]
"""What a timeout is charged to; `script` is the test's own code: a hook or a script test."""


_NOT_SEARCHED: Any = object()


def format_current_time() -> str:
    """The time in UTC, as records and events have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class TrialState(Struct):
    """The state of a running trial, for users, checks and the record. The trial owns it, so a cut-off keeps its turns.

    `waiting_for` is what the trial waits for now, so that a timeout is charged to it; `active_helpers` counts the helpers
    that are being called, since several judges may run concurrently. `progress` is the state of the agent's current call.
    `unset_variables` says for each variable that a `set` did not find where it looked. `calls` holds every model call of
    the trial, also of replies that were cut off. `before_result` is what the case's `before` returned, once it has.
    `notes` are what the test logged. `tracebacks` are errors of the user's own code. `helper_provider_failure` is the provider
    failure that a helper's call was retrying when it was cut off. `helper_calls` are the questions to simulators and judges;
    `recordable_characters` is how many characters of them the record still takes. `missing_input` says why the user stopped early: a person
    stopped, or did not answer in time. `replayed_ms` is the time that replayed replies took when they were recorded.
    """

    case: Case
    key: Key
    helpers: "Helpers"
    clock: "Clock"
    turns: list[Turn] = []
    final_results: list[AssertionResult] = []
    checkpoints: dict[str, CheckpointState] = {}
    variables: dict[str, Any] = {}
    unset_variables: dict[str, str] = {}
    calls: list[ModelCall] = []
    warnings: list[str] = []
    notes: list[str] = []
    before_result: Any = UNSET
    goal_reason: str | None = None
    missing_input: str | None = None
    waiting_for: WaitingFor = "agent"
    active_helpers: int = 0
    progress: CallProgress = field(default_factory=CallProgress)
    helper_provider_failure: str | None = None
    tracebacks: list[Traceback] = []
    helper_calls: list[HelperCall] = []
    recordable_characters: int = 512_000
    workspace: "Workspace | None" = None
    kept_workspace: str | None = None
    uses_cassette: bool = False
    session_id: str = ""
    confirmation_tools: frozenset[str] = frozenset()
    started: float = field(default_factory=time.perf_counter)
    started_at: str = field(default_factory=format_current_time)
    replayed_ms: float = 0.0

    def ms_since_start(self) -> float:
        return (time.perf_counter() - self.started) * 1e3 + self.replayed_ms

    def add_replayed_time(self, began_ms: float, recorded_ms: float) -> None:
        """Adds the time by which a replayed call, started at `began_ms`, is shorter now than in the recording."""
        self.replayed_ms += max(0.0, began_ms + recorded_ms - self.ms_since_start())

    @property
    def last_turn(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    def list_messages(self) -> list[Message]:
        """The conversation so far as messages, with the history of the case."""
        messages = list(self.case.history)
        for turn in self.turns:
            messages.append(turn.user_message.message)
            if (reply := turn.reply) is not None:
                messages.append(Message("assistant", reply.content, data=reply.data, tool_calls=reply.tool_calls))
        return messages


def to_text(value: Any) -> str:
    """A value as text: a string as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else codec.compact_json(value)


def get_reply_text(reply: Reply) -> str:
    """The text of a reply: its content or, if that is empty, its data as compact JSON."""
    if reply.content or reply.data is None:
        return reply.content
    return to_text(reply.data)


def get_reply_output(reply: Reply) -> Any:
    """The output of a reply: its data if it has any, else its text."""
    return reply.content if reply.data is None else reply.data


class CheckContext(Struct):
    """What a check sees. `text` and `tool_calls` depend on the assertion's `on` and `over`."""

    state: TrialState
    turn: Turn
    text_scope: TextScope = "reply"
    turn_scope: TurnScope = "turn"
    calls_directly: bool = False
    """Are user functions called in this thread? The caller of `expect` waits for them anyway."""
    _text: str | UnsetType = UNSET
    _json: Any = _NOT_SEARCHED

    @property
    def reply(self) -> Reply:
        """The reply of the turn; an empty one if there is none."""
        return self.turn.reply or Reply()

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns in scope: this one, or all of the case."""
        return self.state.turns if self.turn_scope == "case" else (self.turn,)

    @property
    def text(self) -> str:
        """The text in scope."""
        if self._text is UNSET:
            self._text = self._find_text()
        return self._text

    def _find_text(self) -> str:
        if self.text_scope == "reply":
            return get_reply_text(self.reply)
        if self.text_scope == "output":
            return to_text(get_reply_output(self.reply))
        if self.text_scope == "reply_and_tools":
            results = (to_text(call.result) for call in self.reply.tool_calls if call.result is not UNSET)
            return "\n".join((get_reply_text(self.reply), *results))
        return "\n".join(get_reply_text(turn.reply) for turn in self.state.turns if turn.reply)

    @property
    def json(self) -> Any:
        """The reply's data or, without any, JSON found in its text; else UNSET."""
        if self._json is _NOT_SEARCHED:
            reply = self.reply
            self._json = find_json(reply.content) if reply.data is None else codec.to_plain(reply.data)
        return self._json

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the turns in scope."""
        return [call for turn in self.turns if turn.reply for call in turn.reply.tool_calls]


EXAMPLE_INPUT = "your next message"
"""The example message in the prompt of a simulator. Weak models return it instead of a message of their own."""


def get_structured_answer(reply: Reply) -> Any:
    """The structured answer of a helper: its data or, without any, JSON found in its text; else UNSET."""
    return find_json(reply.content) if reply.data is None else reply.data


def iterate_json_documents(context: CheckContext) -> Iterator[Any]:
    """The documents that paths search: the reply's data or JSON; for a whole case then the tool results, newest first."""
    if context.json is not UNSET:
        yield context.json
    if context.turn_scope != "case":
        return
    for call in reversed(context.tool_calls):
        if call.error is not None or call.result is UNSET or call.result is None:
            continue
        result = find_json(call.result) if isinstance(call.result, str) else codec.to_plain(call.result)
        if result is not UNSET:
            yield result


def find_values_in_reply(path: str, context: CheckContext) -> list[Any] | None:
    """The values in the first document that has any at `path`; None if there is no JSON document."""
    has_documents = False
    for document in iterate_json_documents(context):
        has_documents = True
        if values := find_values_at(path, document):
            return values
    return [] if has_documents else None

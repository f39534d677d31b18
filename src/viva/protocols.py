"""Every seam of Viva, with one sentence each. Read this first.

The engine knows these and nothing else: no format, no provider, no file. A component is a frozen struct whose fields are
what the user writes; `catalog` finds it by name.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct, field

from viva.errors import Role
from viva.model.case import Case, Feature, Fixtures, Key, UserMessage, WorkspaceSpec
from viva.model.connector import Connector
from viva.model.event import Event
from viva.model.message import Message, ModelCall, Reply
from viva.model.progress import CallProgress
from viva.model.record import Cell, TrialRecord
from viva.model.turn import FileChange, RecordedFile, Verdict
from viva.state.trial_state import CheckContext, TrialState

T = TypeVar("T")
Meter = Callable[[ModelCall], None]
"""Called with every model call, including calls of replies that are cut off later."""


class Request(Struct, frozen=True):
    """An HTTP request. With `never_resend` it is not sent again once it may have arrived, since the server may act on it."""

    url: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    method: str = "POST"
    timeout_s: float | None = None
    max_bytes: int = 64 * 1024 * 1024
    never_resend: bool = False


class Response(Struct, frozen=True):
    """A whole HTTP response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """Sends an HTTP request and returns the response, or raises Unreachable; a cancelled call closes its connection."""

    async def request(self, request: Request) -> Response: ...

    def stream(self, request: Request) -> AbstractAsyncContextManager["StreamingResponse"]:
        """Sends a request and returns the response as soon as its headers are there; the body arrives in chunks."""
        ...

    async def close(self) -> None: ...


class StreamingResponse(Protocol):
    """An HTTP response whose body is still arriving."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]: ...


class Workspace(Protocol):
    """The folder of an agent during one trial, with a private HOME and TMPDIR beside it. Its factory cleans it up."""

    @property
    def path(self) -> str:
        """The agent's working directory."""
        ...

    @property
    def home(self) -> str:
        """A private HOME, so that no sessions or settings of the host are read or written."""
        ...

    @property
    def tmp(self) -> str:
        """A private TMPDIR, removed with the workspace."""
        ...

    @property
    def link_targets(self) -> Sequence[str]:
        """The paths outside the folder that links of the case lead to."""
        ...

    @property
    def env(self) -> Mapping[str, str]:
        """What the case adds to the environment of a process."""
        ...

    def sandbox_command(self, argv: Sequence[str]) -> list[str]:
        """The command, wrapped in the sandbox if there is one."""
        ...

    def resolve_inside(self, path: str) -> str | None:
        """The real path of a file; None if it is neither in the folder nor below a link target."""
        ...

    async def take_snapshot(self) -> Any:
        """The state of all files now, for `changes_since` and `files_since`."""
        ...

    async def changes_since(self, since: Any) -> tuple[FileChange, ...]:
        """The files added, changed and removed since a snapshot, with text differences."""
        ...

    async def files_since(self, since: Any) -> tuple[RecordedFile, ...]:
        """The files added, changed and removed since a snapshot, with their whole content, for a cassette."""
        ...

    async def restore_files(self, images: Sequence[RecordedFile], changes: Sequence[FileChange] | None = None) -> None:
        """Writes the files of a recorded turn. `changes_since` then returns the recorded `changes`."""
        ...

    async def warnings(self) -> list[str]:
        """Warnings for the report, such as files of the host that were changed through a link."""
        ...

    def keep(self) -> None:
        """Keeps the folder after the trial, for inspection."""
        ...

    @property
    def is_kept(self) -> bool:
        """Does the folder stay after the trial?"""
        ...


WorkspaceFactory = Callable[[WorkspaceSpec, Key], AbstractAsyncContextManager[Workspace]]
"""Creates a workspace for a trial and cleans it up afterwards; raises a TrialFault if it cannot."""


class WorkspaceSource(Protocol):
    """Where the trials of a run get their workspaces from."""

    @property
    def empty_workspaces(self) -> WorkspaceFactory:
        """Creates an empty workspace for an agent that runs commands outside of a case's own workspace."""
        ...

    def open_workspace(self, spec: WorkspaceSpec, key: Key) -> AbstractAsyncContextManager[Workspace]: ...


class SessionContext(Struct, kw_only=True):
    """What an agent needs to open a session.

    The agent writes the state of its running call into `progress`; the engine reads it when the call fails or is cut off.
    `empty_workspaces` creates a workspace for an agent that runs commands and has none. `mcp_url` is the address of an MCP
    server with the tools of the fixtures, if the agent gets them that way. For helpers, `conversation`
    returns the messages of the trial so far; the first `prior_count` of them came before the first turn.
    """

    key: Key
    role: Role = "agent"
    history: tuple[Message, ...] = ()
    fixtures: Fixtures | None = None
    workspace: Workspace | None = None
    empty_workspaces: WorkspaceFactory | None = None
    options: Mapping[str, Any] = {}
    meter: Meter
    http: Transport
    progress: CallProgress = field(default_factory=CallProgress)
    connectors: Mapping[str, Connector] = {}
    conversation: Callable[[], list[Message]] | None = None
    prior_count: int = 0
    mcp_url: str = ""


class AgentSession(Protocol):
    """One conversation with an agent. It keeps the history, so each call sends only what is new."""

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        """The reply to one message."""
        ...


class Agent(Protocol):
    """Anything that replies: opens a session for each conversation."""

    @property
    def provides(self) -> frozenset[Feature]:
        """The features that the agent supports: tool_stubs, memory, workspace."""
        ...

    def open(self, context: SessionContext) -> AbstractAsyncContextManager[AgentSession]:
        """A session, open for as long as the conversation lasts."""
        ...


class NamedAgent(Protocol):
    """An agent with its name and the options that the config gives it."""

    @property
    def name(self) -> str: ...

    @property
    def agent(self) -> Agent: ...

    @property
    def options(self) -> Mapping[str, Any]: ...


class User(Protocol):
    """Speaks in a conversation: a generator of messages that sees the state of the trial.

    A fault of the agent is raised at the `yield` of the message; a user that does not catch it ends the conversation.
    """

    @property
    def planned_messages(self) -> Sequence[UserMessage]:
        """The messages that are known before the conversation starts."""
        ...

    @property
    def simulator(self) -> str | None:
        """The agent that plays the user, if one does."""
        ...

    def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]: ...


class Check(Protocol):
    """Tests a turn or a transcript; a `costly` one calls a model. Raises CheckError if it cannot be evaluated."""

    @property
    def costly(self) -> bool:
        """Does the check call a model?"""
        ...

    @property
    def label(self) -> str:
        """The name of this check in reports: `contains "submitted"`."""
        ...

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        """The verdict on a turn or a transcript."""
        ...


class HelperSession(Protocol):
    """A session with a simulator or judge. `parse` turns its reply into a value, or raises ValueError with the reason."""

    @property
    def may_repeat(self) -> bool:
        """May the helper send the same message twice? True for rules and scripts, which are not models."""
        ...

    @property
    def must_quote(self) -> bool:
        """Must the judge quote the evidence for its verdict?"""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata sent with every message: those of the config, the case and the assertion, merged."""
        ...

    async def ask(self, text: str, parse: Callable[[Reply], T], metadata: Mapping[str, Any] | None = None) -> T: ...


class Helpers(Protocol):
    """The only way to a simulator, judge, generator or reporter, so that a timeout is charged to the helper that hung."""

    def open(
        self,
        role: Role,
        agent: str,
        state: TrialState | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[HelperSession]: ...


class Hooks(Protocol):
    """The user's code around a trial."""

    async def before(self, state: TrialState) -> None:
        """Sets `state.before_result` and variables, or raises a TrialFault."""
        ...

    async def after(self, state: TrialState, record: TrialRecord) -> str | None:
        """Called after a trial whose `before` succeeded. Returns a warning if the hook itself fails."""
        ...


class RedactorProtocol(Protocol):
    """Removes secrets from what a run stores and shows."""

    def redact(self, value: T) -> T: ...

    def redact_text(self, text: str) -> str: ...


class CassetteInfo(Protocol):
    """What the engine needs to know from the cassette of a run."""

    @property
    def is_active(self) -> bool:
        """Does the run record or replay?"""
        ...

    def get_recorded_duration(self, key: Key) -> float | None:
        """How long a replayed trial took when it was recorded, in ms."""
        ...

    def may_retry(self, key: Key) -> bool:
        """May a trial that ended in an error be retried? A replay retries only what the recorded run retried."""
        ...

    def explain_live_call(self, key: Key) -> str | None:
        """Why a replayed trial called the real agent, if it did."""
        ...


class Clock(Protocol):
    """The time limit of a case; it can be paused while a person thinks."""

    @property
    def is_over(self) -> bool:
        """Is the time over? The timer cannot say so while code blocks the event loop."""
        ...

    def pause(self) -> AbstractAsyncContextManager[None]: ...


class PersonQuestion(Struct, frozen=True):
    """Asks a person for the next message: accept the `proposed` one, or let the `simulator` propose one."""

    state: TrialState
    proposed: UserMessage | None = None
    simulator: str | None = None


class PersonChoice(Struct, frozen=True):
    """A person's decision: accept the proposed message, say `text` instead, ask the simulator, save the conversation to the
    file `text`, or stop.
    """

    action: Literal["accept", "say", "simulate", "save", "stop"]
    text: str = ""


class PersonPrompt(Protocol):
    """Shows a person the agent's hint and the proposed message, and returns the person's choice."""

    async def ask(self, question: PersonQuestion) -> PersonChoice: ...

    def show_notice(self, text: str) -> None:
        """Shows a message that needs no answer."""
        ...


CreatePersonPrompt = Callable[[Callable[[str], str]], PersonPrompt]
"""Creates a PersonPrompt, given the function that removes secrets from what is shown."""


class Sink(Protocol):
    """Receives the events of a run. A `live` sink also gets each turn as it happens."""

    @property
    def live(self) -> bool:
        """Does the sink also get each turn as it happens?"""
        ...

    def receive(self, events: Sequence[Event]) -> None:
        """Handle events. They arrive in order, after they were journaled."""
        ...


class EventStore(Protocol):
    """Stores events before any sink gets them. If it cannot, it raises RunStopped."""

    def append(self, *events: Event) -> None: ...


class PlannedTrial(Struct, frozen=True):
    """A trial to run: trial number `trial` of `total` trials of a case on an agent. `index` is its place in the input."""

    case: Case
    index: int
    trial: int = 1
    total: int = 1
    agent: str = ""
    """The name of the agent under test."""

    @property
    def cell(self) -> Cell:
        """The suite, the case and the agent of the trial."""
        return self.case.suite, self.case.id, self.agent


class Executor(Protocol):
    """Runs one attempt of a trial, in this process or in a worker, and returns its record.

    Model calls are charged and recorded before it returns. If the status is one of `keep`, the workspace stays.
    """

    async def run_attempt(self, planned: PlannedTrial, attempt: int, keep: Collection[str]) -> TrialRecord: ...

    async def charge_cancelled(self) -> None:
        """Charge the model calls of attempts that were cancelled, once no more of them run."""
        ...


class Workers(Protocol):
    """Processes that run trials. Requests and results are bytes, so that they can be on other machines."""

    @property
    def count(self) -> int:
        """How many workers there are now."""
        ...

    @property
    def dashboard(self) -> str | None:
        """The address of a page that shows the workers, if there is one."""
        ...

    async def run(self, request: bytes) -> bytes:
        """The result of one request. If a worker ends, another one runs it again.

        Raises WorkerCrashed if the request itself ends its worker, and RunStopped if there are no workers left.
        """
        ...

    async def take_cancelled_results(self) -> Sequence[bytes]:
        """The results of cancelled requests, with the model calls that were made until then."""
        ...

    def take_warnings(self) -> Sequence[str]:
        """Warnings about workers since the last call."""
        ...

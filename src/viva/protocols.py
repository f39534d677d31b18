"""Every seam of Viva, each with one sentence. Read this first.

The engine knows these and nothing else: no format, no provider, no file. A component is a frozen struct whose fields
are what the user writes; `catalog` finds it by its name.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct, field

from viva.errors import Role
from viva.model.case import Case, Feature, Fixtures, Key, UserMessage, WorkspaceSpec
from viva.model.connector import Connector
from viva.model.event import Event
from viva.model.message import Message, ModelCall, Reply
from viva.model.progress import CallProgress
from viva.model.record import TrialRecord
from viva.model.turn import FileChange, FileImage, Verdict
from viva.state.trial_state import CheckContext, TrialState

T = TypeVar("T")
Meter = Callable[[ModelCall], None]


class Request(Struct, frozen=True):
    """An HTTP request that is ready to go. With `once`, who gets it may act on it: it is never sent again after it may have arrived."""

    url: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    method: str = "POST"
    timeout_s: float | None = None
    max_bytes: int = 64 * 1024 * 1024
    never_resend: bool = False


class Response(Struct, frozen=True):
    """An HTTP answer, whole. Headers are looked up by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """Sends one HTTP request: answers, or raises Unreachable; a cancelled call closes its connection."""

    async def request(self, request: Request) -> Response: ...

    def stream(self, request: Request) -> AbstractAsyncContextManager["StreamingResponse"]:
        """The same, with the body as it comes."""
        ...

    async def close(self) -> None: ...


class StreamingResponse(Protocol):
    """An HTTP answer whose body is still coming."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]: ...


class Workspace(Protocol):
    """The folder that an agent works in during one trial, with a private HOME and TMPDIR beside it. Whoever opened it cleans up."""

    @property
    def path(self) -> str:
        """The agent's working directory."""
        ...

    @property
    def home(self) -> str:
        """A HOME of its own, so that nobody's sessions and settings are read or written."""
        ...

    @property
    def tmp(self) -> str:
        """A TMPDIR of its own, removed with it."""
        ...

    @property
    def link_targets(self) -> Sequence[str]:
        """Where the case's own links lead to, outside of the folder."""
        ...

    @property
    def env(self) -> Mapping[str, str]:
        """What the case adds to the environment of a process."""
        ...

    def sandbox_command(self, argv: Sequence[str]) -> list[str]:
        """The command, inside of the sandbox if there is one."""
        ...

    def resolve_inside(self, path: str) -> str | None:
        """Where a path of a check really is; None if it leaves the folder and what the case's own links lead to."""
        ...

    async def take_snapshot(self) -> Any:
        """How all files stand now, to compare with later."""
        ...

    async def changes_since(self, since: Any) -> tuple[FileChange, ...]:
        """What was added, changed and removed since then, with text differences."""
        ...

    async def files_since(self, since: Any) -> tuple[FileImage, ...]:
        """The same, as whole files, for a cassette."""
        ...

    async def restore_files(self, images: Sequence[FileImage], changes: Sequence[FileChange] | None = None) -> None:
        """Makes the files so, as a replay needs it. What was `told` of it then, `changes` tells once more."""
        ...

    async def warnings(self) -> list[str]:
        """What somebody should know in the end: files of the host that were changed through a link, and the like."""
        ...

    def keep(self) -> None:
        """Leaves the folder where it is when the trial is over, for people to look at."""
        ...

    @property
    def is_kept(self) -> bool:
        """Will it be there when the trial is over?"""
        ...


WorkspaceFactory = Callable[[WorkspaceSpec, Key], AbstractAsyncContextManager[Workspace]]
"""Makes a workspace for a trial, and cleans it up afterwards; raises a TrialFault where that cannot be done."""


class SessionContext(Struct, kw_only=True):
    """What an agent needs to know to open a session. `meter` wants to hear of every model call, even of one cut off later.

    `progress` is where the agent writes what is known of a call that is running: it is read when the call fails or is cut off.

    `spare_workspaces` makes an empty workspace for an agent that runs commands and is given none. `conversation` is there
    for helpers: all that was said so far in the talk that they help with; the first `prior`
    messages of it came before its first turn.
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


class AgentSession(Protocol):
    """One conversation with an agent: it keeps the history, so each call sends only what is new."""

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        """The reply to one message."""
        ...


class Agent(Protocol):
    """Anything that answers: opens a session for each conversation, and says which fixtures it takes."""

    @property
    def provides(self) -> frozenset[Feature]:
        """Which fixtures it takes: tool_stubs, memory, workspace."""
        ...

    def open(self, context: SessionContext) -> AbstractAsyncContextManager[AgentSession]:
        """A session, for as long as the conversation lasts."""
        ...


class User(Protocol):
    """Who speaks: a generator of utterances, which sees the talk grow; the `lines` that it surely says are known before.

    A fault of the agent is raised where the utterance was yielded; unless it is caught there, it ends the talk.
    """

    @property
    def planned_messages(self) -> Sequence[UserMessage]: ...

    @property
    def simulator(self) -> str | None:
        """Which agent speaks for the user, if one does."""
        ...

    def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]: ...


class Check(Protocol):
    """What can be asked of a turn or a transcript; `costly` ones call a model. Raises CheckBroken when it cannot be evaluated."""

    @property
    def costly(self) -> bool: ...

    @property
    def label(self) -> str:
        """How a report names this check: `contains "submitted"`."""
        ...

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]: ...


class HelperSession(Protocol):
    """A simulator or judge that is being asked: `parse` makes what we need of its reply, or raises ValueError with what is wrong.

    One that `may_repeat` itself is played by rules or a script, not by a model. One that `must_quote` has to show what
    its verdict rests on.
    """

    @property
    def may_repeat(self) -> bool: ...

    @property
    def must_quote(self) -> bool: ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What it is told each time: the words of the config, the case and the assertion together."""
        ...

    async def ask(self, text: str, parse: Callable[[Reply], T], metadata: Mapping[str, Any] | None = None) -> T: ...


class Helpers(Protocol):
    """The only way to a simulator, judge, generator or reporter, so that a time-out is charged to the one who hung."""

    def open(
        self,
        role: Role,
        agent: str,
        state: TrialState | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[HelperSession]: ...


class Hooks(Protocol):
    """What the user's own code does around a trial. `before` sets `talk.set_up` and variables, or raises a TrialFault.

    `after` sees the result of a trial whose `before` went well, and returns what went wrong with itself, if anything did.
    """

    async def before(self, state: TrialState) -> None: ...

    async def after(self, state: TrialState, record: TrialRecord) -> str | None: ...


class Clock(Protocol):
    """The case's time limit; it can stand still while a person thinks."""

    def pause(self) -> AbstractAsyncContextManager[None]: ...


class PersonQuestion(Struct, frozen=True):
    """What shall the user say next? `proposed` is what would be said; where nothing is, `simulator` may be asked for it."""

    state: TrialState
    proposed: UserMessage | None = None
    simulator: str | None = None


class PersonChoice(Struct, frozen=True):
    """What a person wants: the proposed line said, `text` said instead, the simulator asked, the talk saved in the file
    `text`, or an end of it.
    """

    action: Literal["accept", "say", "simulate", "save", "stop"]
    text: str = ""


class PersonPrompt(Protocol):
    """How a person is asked: shows the agent's hint and the line that would be said, and hears what the person wants."""

    async def ask(self, question: PersonQuestion) -> PersonChoice: ...

    def show_notice(self, text: str) -> None:
        """Something that the person should know now."""
        ...


class Sink(Protocol):
    """Listens to a run. `live` ones also want each turn as it happens."""

    @property
    def live(self) -> bool: ...

    def receive(self, events: Sequence[Event]) -> None: ...


class EventStore(Protocol):
    """Keeps events before anybody hears of them. Where it cannot, the run ends: RunStopped."""

    def append(self, *events: Event) -> None: ...


class PlannedTrial(Struct, frozen=True):
    """A trial that is due: which case, which repeat of how many, and its place in the input."""

    case: Case
    index: int
    trial: int = 1
    total: int = 1


class Executor(Protocol):
    """Does the work of many trials somewhere, some at once; `stop` cancels those that are running."""

    async def run(
        self, trials: AsyncIterator[PlannedTrial], work: Callable[[PlannedTrial], Awaitable[None]]
    ) -> None: ...

    def stop(self) -> None: ...

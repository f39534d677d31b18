"""A case: who speaks for the user, what must hold, the limits. Every format ends up here; the engine sees nothing else.

Cases hold live components (a User, Checks). Their seams stand in `protocols`, above this room, so only the type
checker imports them here. A case is never encoded: what is kept of it is its record.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from viva.model.message import Message

if TYPE_CHECKING:
    from viva.protocols import Check, User
    from viva.state.trial_state import CheckContext

TextScope = Literal["reply", "output", "reply_and_tools", "conversation"]
TurnScope = Literal["turn", "case"]
InputSource = Literal["static", "initial", "simulated", "interactive"]
OnMissingInput = Literal["skip", "fail", "end"]
Feature = Literal["tool_stubs", "memory", "workspace"]


class Key(Struct, frozen=True, order=True):
    """Names one conversation. A resumed run asks by the first three."""

    suite: str
    """The suite."""
    case: str
    """The case."""
    trial: int = 1
    """Which repeat, from 1."""
    attempt: int = 1
    """Which attempt, from 1."""

    @property
    def session_id(self) -> str:
        """The same for all turns of an attempt, another for each attempt."""
        return f"{self.suite}/{self.case}#{self.trial}.{self.attempt}"


class Assertion(Struct, frozen=True):
    """A check with its weight and what it looks at. `written` is the check as its author wrote it, for reports.

    `on` is which text: the reply's; its output, which is the data before the text; the reply's with tool results below
    it; or the agent's text of all turns.
    `over` is how far back tool calls and limits look: this turn, or the whole case.
    Where a `gate` fails, the case scores nothing, whatever its other claims do.
    `resolve` is there where the check holds `{{variables}}`: it gives the claim with their values.
    """

    check: "Check"
    definition: Mapping[str, Any] = {}
    message: str = ""
    negate: bool = False
    on: TextScope = "reply"
    over: TurnScope = "turn"
    weight: float = 1.0
    gate: bool = False
    resolve: "Callable[[CheckContext], Assertion] | None" = None


class Checkpoint(Struct, frozen=True):
    """A claim that must hold at some turn. One that is not `lasting` has to hold again each time it is looked at."""

    id: str
    assertion: Assertion
    description: str = ""
    after: tuple[str, ...] = ()
    required: bool = True
    is_lasting: bool = True


class Goal(Struct, frozen=True):
    """What a conversation without a fixed end is for. No checkpoints: it ends when the user has nothing more to say.

    `checkpoints` stand in an order that respects `after` and has cheap ones first among those that are free;
    `patient` goals (a persona's criteria) ask costly checks only when all cheap ones hold or the talk is over.
    """

    checkpoints: tuple[Checkpoint, ...] = ()
    defers_costly: bool = False


class UserMessage(Struct, frozen=True):
    """What a user says, what must hold of the answer, and what to remember of it (`set`: variable -> JSONPath).

    With a `history` it opens a conversation of its own, in which that was said before; `to` is then another agent than
    the one under test.
    """

    message: Message
    source: InputSource = "static"
    assertions: tuple[Assertion, ...] = ()
    options: Mapping[str, Any] = {}
    variables: Mapping[str, str] = {}
    timeout_s: float | None = None
    comment: str | None = None
    history: tuple[Message, ...] | None = None
    agent: str | None = None


class Limits(Struct, frozen=True):
    """None means no limit. With `overruled`, `turn_timeout_s` comes from the command line and stands over what turns say.
    `turn_timeout_text` is how the case's file writes it, where messages should repeat that.

    The first `uncounted` turns (steps before a persona) do not count as `max_turns`.
    """

    timeout_s: float | None = 300.0
    turn_timeout_s: float | None = None
    max_turns: int | None = 20
    is_override: bool = False
    setup_turns: int = 0
    turn_timeout_text: str = ""

    @property
    def total_turns(self) -> int | None:
        """So many at most, with those that do not count."""
        return None if self.max_turns is None else self.max_turns + self.setup_turns

    def reply_timeout_s(self, message_timeout_s: float | None) -> float | None:
        """The time for one reply to a line with a limit of its `own`."""
        return self.turn_timeout_s if message_timeout_s is None or self.is_override else message_timeout_s

    def reply_timeout_text(self, message_timeout_s: float | None) -> str:
        """The same limit as the file writes it; empty where nothing but its length matters."""
        return self.turn_timeout_text if message_timeout_s is None or self.is_override else ""


class ToolStub(Struct, frozen=True):
    """A canned answer for a tool. Several for one tool are used in order, and the last repeats."""

    tool: str
    response: Any = None
    error: str | None = None


class Fixtures(Struct, frozen=True):
    """What an agent finds instead of its live tools and memory. With `stubbed`, no tool of it runs live."""

    tools: tuple[ToolStub, ...] = ()
    memory: tuple[Any, ...] = ()
    stub_all_tools: bool = False

    @property
    def needs(self) -> frozenset[Feature]:
        """What an agent has to take."""
        needed: dict[Feature, bool] = {"tool_stubs": self.stub_all_tools, "memory": bool(self.memory)}
        return frozenset(feature for feature, is_needed in needed.items() if is_needed)


WorkspaceKind = Literal["copy", "empty", "cwd"]
LinkMode = Literal["symlink", "copy"]
Sandbox = Literal["bwrap", "none"]


class WorkspaceSpec(Struct, frozen=True):
    """Which folder an agent works in, and what is put there first: a copy of the repository around `root`, nothing (`empty`,
    with `link_paths` of `root` linked or copied into it), or `root` itself, in place.

    `leave_out` are files that the agent must not see: those of the suite itself. `env` is what the case adds to the
    environment of an agent that is a process.
    """

    kind: WorkspaceKind = "copy"
    root: str = "."
    link_paths: tuple[str, ...] = ()
    link_mode: LinkMode = "symlink"
    exclude: tuple[str, ...] = ()
    env: Mapping[str, str] = {}


class Origin(Struct, frozen=True):
    """Where a case was written."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Interactive(Struct, frozen=True):
    """A case's own wish for a person."""

    enabled: bool = False
    timeout_s: float | None = 300.0


class Hook(Struct, frozen=True):
    """A function of the user's that is called around a case or a run, and how its author refers to it."""

    reference: str
    function: Callable[..., Any]


class Case(Struct, frozen=True, kw_only=True):
    """One test. `written` is its definition as its author wrote it, and `digest` names that definition:
    two runs compare a case only where it is the same. Without `one_session` each line opens a conversation of its own.
    With `keep_calls` its record keeps each model call, not only what they add up to.
    """

    id: str
    user: "User"
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    suite: str = ""
    origin: Origin | None = None
    goal: Goal = Goal()
    final_assertions: tuple[Assertion, ...] = ()
    history: tuple[Message, ...] = ()
    limits: Limits = Limits()
    on_missing_input: OnMissingInput | None = None
    interactive: Interactive = Interactive()
    fixtures: Fixtures | None = None
    workspace: WorkspaceSpec | None = None
    needs: frozenset[Feature] = frozenset()
    options: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    before: Hook | None = None
    after: Hook | None = None
    one_session: bool = True
    keep_calls: bool = False
    skip_reason: str | None = None
    runs: int | None = None
    definition: Mapping[str, Any] = {}
    digest: str = ""


class Baseline(Struct, frozen=True):
    """What a suite scored before: in which run (or by which file), and each case of it, where that is known."""

    name: str
    score: float
    cases: Mapping[str, float] = {}


class Threshold(Struct, frozen=True, omit_defaults=True):
    """What a suite must reach. Without one, every case must pass; without a `pass_score`, that too.

    A score below the `baseline` is shown; with `no_worse` it fails the run.
    """

    pass_score: float | None = None
    """The least mean score of all cases."""
    max_cost_usd: float | None = None
    """The most that all model calls may cost."""
    max_p95_ms: float | None = None
    """The most that the 95th percentile of the latencies may be."""
    baseline: Baseline | None = None
    """An earlier score of the same suite."""
    fail_on_regression: bool = False
    """Does a score below the baseline fail the run?"""


class IntendedAgent(Struct, frozen=True):
    """Which agent a suite was written for, where it says so."""

    agent_id: str | None = None
    model_classes: tuple[str, ...] = ()


class Suite(Struct, frozen=True, kw_only=True):
    """Cases that belong together. They are pulled, not held: a hundred thousand of them stream.

    `own_runs` are the `runs` of cases that set their own; `interactive` counts those that want a person. `needs` says
    for each feature which cases cannot do without it. `notes` are what a person should know before the run.
    """

    id: str
    cases: Callable[[], AsyncIterator[Case]]
    count: int
    case_runs: tuple[int, ...] = ()
    interactive_cases: int = 0
    version: str = ""
    digest: str = ""
    origin: Origin | None = None
    threshold: Threshold | None = None
    target: str | None = None
    intended_agent: IntendedAgent = IntendedAgent()
    needs: Mapping[Feature, tuple[str, ...]] = field(default_factory=dict["Feature", tuple[str, ...]])
    notes: tuple[str, ...] = ()
    verified: str | None = None
    """Which signature of its pack was verified, in words."""
    is_agent_optional: bool = False
    """Its cases say themselves whom they call: no agent has to be under test."""

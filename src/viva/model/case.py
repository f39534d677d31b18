"""A case: the user, the assertions, the limits. Every format is loaded into this; the engine knows nothing else.

A case holds live components (a User, Checks). Their types are in higher layers, so only the type checker imports them. A
case is never encoded: only its record is stored.
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
Sessions = Literal["one", "each_message"]
SuiteKind = Literal["cases", "playbook", "eval_suite", "scripts"]
ModelClass = Literal["reasoning", "writing", "coding", "research", "classification", "general"]


class Key(Struct, frozen=True, order=True):
    """Identifies one attempt at a trial. A resumed run compares all fields but the attempt."""

    suite: str
    """The suite."""
    case: str
    """The case."""
    trial: int = 1
    """Which repeat, from 1."""
    attempt: int = 1
    """Which attempt, from 1."""
    agent: str = ""
    """The agent under test; empty if none is."""

    @property
    def session_id(self) -> str:
        """The id of the session of an attempt: all turns have the same, each attempt has its own."""
        return f"{self.suite}/{self.case}#{self.trial}.{self.attempt}"


class Assertion(Struct, frozen=True):
    """A check with its weight and scope. `definition` is the assertion as its author wrote it, for reports.

    `on` selects the text: of the reply; its output (data before text); the reply with tool results below it; or the
    agent's text of all turns. `over` says how far back tool calls and limits look: this turn, or the whole case.
    If a `gate` fails, the case scores 0. `build_with_variables` is set if the check has `{{variables}}`: it returns the assertion
    with their values.
    """

    check: "Check"
    definition: Mapping[str, Any] = {}
    message: str = ""
    negate: bool = False
    on: TextScope = "reply"
    over: TurnScope = "turn"
    weight: float = 1.0
    gate: bool = False
    build_with_variables: "Callable[[CheckContext], Assertion] | None" = None


class Checkpoint(Struct, frozen=True):
    """An assertion that must hold at some turn. Unless it `stays_reached`, it must hold again at each later turn."""

    id: str
    assertion: Assertion
    description: str = ""
    after: tuple[str, ...] = ()
    required: bool = True
    stays_reached: bool = True


class Goal(Struct, frozen=True):
    """What a conversation must reach. Without checkpoints it ends when the user has no more messages.

    `checkpoints` are in an order that respects `after`, cheap ones first. With `defers_costly_checks` (a persona's criteria),
    costly checks run only when all cheap ones hold or the conversation is over.
    """

    checkpoints: tuple[Checkpoint, ...] = ()
    defers_costly_checks: bool = False


class UserMessage(Struct, frozen=True):
    """A message of the user with its assertions; `variables` are set from the reply (name -> JSONPath).

    With a `history` the message opens its own conversation after that history; `agent` then names the agent to call, if
    it is not the one under test.
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
    """The limits of a case; None means no limit. With `overrides_message_timeouts`, `turn_timeout_s` comes from the command line and replaces
    the timeouts of messages. `turn_timeout_text` is the timeout as the file writes it, for error messages.

    The first `setup_turns` (steps before a persona) do not count towards `max_turns`.
    """

    timeout_s: float | None = 300.0
    turn_timeout_s: float | None = None
    max_turns: int | None = 20
    overrides_message_timeouts: bool = False
    setup_turns: int = 0
    turn_timeout_text: str = ""

    @property
    def total_turns(self) -> int | None:
        """The maximum number of turns, setup turns included."""
        return None if self.max_turns is None else self.max_turns + self.setup_turns

    def reply_timeout_s(self, message_timeout_s: float | None) -> float | None:
        """The timeout of the reply to a message that has its own timeout, or None."""
        return (
            self.turn_timeout_s if message_timeout_s is None or self.overrides_message_timeouts else message_timeout_s
        )

    def reply_timeout_text(self, message_timeout_s: float | None) -> str:
        """The timeout of the reply to a message as the file writes it (`60s`); empty if only its length is known."""
        return self.turn_timeout_text if message_timeout_s is None or self.overrides_message_timeouts else ""


class Hints(Struct, frozen=True):
    """Suggestions in a report for the author of a skipped case: skipped because nothing was checked, or
    because the agent is awaiting input.
    """

    unchecked: str | None = None
    awaiting: str | None = None


class ToolStub(Struct, frozen=True):
    """A canned result of a tool. Several stubs for one tool are used in order, and the last repeats. A `response` that is a
    function is called with the arguments of the call.
    """

    tool: str
    response: Any = None
    error: str | None = None


class Fixtures(Struct, frozen=True):
    """What an agent gets instead of its live tools and memory. With `stub_all_tools`, no tool runs live."""

    tools: tuple[ToolStub, ...] = ()
    memory: tuple[Any, ...] = ()
    stub_all_tools: bool = field(default=False, name="stubbed")  # the name that forwarded fixtures have

    @property
    def needs(self) -> frozenset[Feature]:
        """The features that the agent must support."""
        needed: dict[Feature, bool] = {"tool_stubs": self.stub_all_tools, "memory": bool(self.memory)}
        return frozenset(feature for feature, is_needed in needed.items() if is_needed)


WorkspaceKind = Literal["copy", "empty", "cwd"]
LinkMode = Literal["symlink", "copy"]
Sandbox = Literal["bwrap", "none"]


class WorkspaceSpec(Struct, frozen=True):
    """The folder that an agent works in: a `copy` of the repository around `root`, an `empty` folder with `link_paths` of
    `root` linked or copied into it, or `root` itself (`cwd`).

    `exclude` are files that the agent must not see, such as the suite. `env` is what the case adds to the environment of
    an agent that is a process.
    """

    kind: WorkspaceKind = "copy"
    root: str = "."
    link_paths: tuple[str, ...] = ()
    link_mode: LinkMode = "symlink"
    exclude: tuple[str, ...] = ()
    env: Mapping[str, str] = {}


class Origin(Struct, frozen=True):
    """The file and line of a case or suite."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Interactive(Struct, frozen=True):
    """Does the case want a person, and how long does it wait for one?"""

    enabled: bool = False
    timeout_s: float | None = 300.0


class Hook(Struct, frozen=True):
    """A function of the user that runs around a case or a run; `reference` is how the user names it."""

    reference: str
    function: Callable[..., Any]


class Case(Struct, frozen=True, kw_only=True):
    """One test. `definition` is the case as its author wrote it, and `digest` identifies that definition: two runs compare a
    case only if the digests are equal.

    `sessions` is "one" if all messages go into one session, "each_message" if each message opens its own conversation.
    With `records_model_calls` the record holds every model call, not only their sum.
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
    hints: Hints = Hints()
    interactive: Interactive = Interactive()
    fixtures: Fixtures | None = None
    workspace: WorkspaceSpec | None = None
    needs: frozenset[Feature] = frozenset()
    options: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    before: Hook | None = None
    after: Hook | None = None
    sessions: Sessions = "one"
    records_model_calls: bool = False
    skip_reason: str | None = None
    runs: int | None = None
    definition: Mapping[str, Any] = {}
    digest: str = ""


class Baseline(Struct, frozen=True):
    """An earlier score of a suite: the run or file it comes from, and the score of each case that had a verdict, if known."""

    name: str
    score: float
    cases: Mapping[str, float] | None = None


class Threshold(Struct, frozen=True, omit_defaults=True):
    """What a suite must reach. Without a threshold or a `pass_score`, every case must pass.

    A score below the `baseline` is reported; with `fail_on_regression` it fails the run.
    """

    pass_score: float | None = None
    """The minimum mean score of all cases."""
    max_cost_usd: float | None = None
    """The maximum cost of all model calls."""
    max_p95_ms: float | None = None
    """The maximum 95th percentile of the latencies."""
    baseline: Baseline | None = None
    """An earlier score of the same suite."""
    fail_on_regression: bool = False
    """Does a score below the baseline fail the run?"""


class IntendedAgent(Struct, frozen=True):
    """The agent that a suite is written for, if it says so."""

    agent_id: str | None = None
    model_classes: tuple[str, ...] = ()


class Suite(Struct, frozen=True, kw_only=True):
    """Cases that belong together. `cases` streams them, so that a hundred thousand need no memory.

    `case_runs` are the `runs` of cases that set their own; `interactive_cases` counts those that want a person. `needs`
    lists for each feature the cases that need it. `notes` are shown before the run.
    """

    id: str
    cases: Callable[[], AsyncIterator[Case]]
    count: int
    kind: SuiteKind = "cases"
    """The format: cases of Viva's own, a playbook, an OpenWOP eval suite, or Python script tests."""
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
    """Do its cases name the agents that they call? Then no agent has to be under test."""

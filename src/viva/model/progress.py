"""What is known of a call that has not returned: the engine reads it when the call fails or is cut off."""

from msgspec import Struct, field

from viva.model.message import Reply


class Frame(Struct, frozen=True):
    """One line of a traceback."""

    file: str
    """The source file."""
    line: int
    """The line number."""
    function: str
    """The function."""
    source: str = ""
    """The line itself."""


class Traceback(Struct, frozen=True, omit_defaults=True):
    """An error in the user's own Python: the frames of the user's files, and what the code printed during the turn."""

    where: str
    """What was running: the agent, a tool, a script check, a hook."""
    error: str
    """The exception: its type and message."""
    frames: tuple[Frame, ...] = ()
    """Outermost first."""
    printed: str = ""
    """What the code wrote to stdout and stderr in this turn."""


class CallProgress(Struct):
    """The state of the call that is running in a session. The agent writes it, the engine reads it.

    `partial` is the reply so far, `provider_trouble` the last failure of a model provider that is being retried,
    `elapsed_ms` the duration where it is known better than by our clock (a replay, a time limit), `blocked_s` how long
    the agent's code blocked the event loop.
    """

    partial: Reply | None = None
    provider_trouble: str | None = None
    stderr_tail: str = ""
    elapsed_ms: float | None = None
    tracebacks: list[Traceback] = field(default_factory=list[Traceback])
    blocked_s: float = 0.0

    def reset(self) -> None:
        """Starts a new call."""
        self.partial = self.provider_trouble = self.elapsed_ms = None
        self.stderr_tail = ""
        self.blocked_s = 0.0
        if self.tracebacks:
            self.tracebacks = []

"""Every error that Viva raises on purpose.

    VivaError
    ├── BadInput          a file, flag or the config is wrong: exit 4, before anything runs
    ├── TrialFault        ends one trial; `fault` says what caused it                   the trial's outcome
    │   ├── AgentFailed       the agent under test raised, returned garbage or timed out    failed, agent
    │   ├── Unreachable       the agent cannot be reached, or its provider still fails      error, infra
    │   │   └── ConnectFailed     no byte was sent, so the request can be sent again
    │   ├── NotRecorded       a replay needs a reply that the cassette does not have        error, infra
    │   ├── HelperFailed      a simulator, judge or generator failed                        error, that helper
    │   ├── Undetermined      the cause is not known                                        error, undetermined
    │   └── TrialEnd          ends the trial at once; checks and helpers let it pass
    │       ├── Skipped           the trial cannot run here, which is not a failure          skipped
    │       └── CallCutOff        replay of a call that a time limit cut off                  as the time limit says
    ├── CheckError        a check cannot be evaluated: its verdict is an error
    ├── WorkerCrashed     a worker process ended twice while it ran one trial alone
    ├── RemoteFailed      a remote history cannot be reached, or refuses: exit 1
    └── RunStopped        the run cannot continue (journal not writable, budget spent); finished trials are kept

Errors carry fields; reporters make the text. Any other exception that escapes is a bug of Viva: traceback, exit 3.
"""

import re
import signal
import threading
from dataclasses import dataclass
from typing import Literal

Fault = Literal["agent", "simulator", "judge", "infra", "undetermined"]
Role = Literal["agent", "simulator", "judge", "generator", "reporter"]

_NUMBER = re.compile(r"\d+", re.ASCII)


def to_valid_text(text: str) -> str:
    r"""Return `text` as a plain string that can be encoded: a lone surrogate becomes `\ud800`."""
    try:
        text = str.__str__(text)
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def with_article(noun: str) -> str:
    """A noun with its article, for messages: `a dict`, `an int`."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def is_ctrl_c(raised: BaseException) -> bool:
    """Does the exception come from a real Ctrl-C? If not, user code itself has raised it.

    Signals reach only the main thread, and there the handlers of Viva, which are set while a run or a host works, raise nothing.
    """
    if not isinstance(raised, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    return not str(getattr(signal.getsignal(signal.SIGINT), "__module__", "")).startswith("viva.")


class VivaError(Exception):
    """The base of all errors that Viva raises on purpose."""


def natural_sort_key(text: str) -> str:
    """A sort key that puts `c2` before `c10`: each number is prefixed with its length."""
    return _NUMBER.sub(_prefix_with_length, text)


def _prefix_with_length(match: re.Match[str]) -> str:
    number = match[0].lstrip("0")
    return f"\0{chr(min(len(number), 0xD7FF))}{number}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file, a flag or the config, with its place."""

    file: str
    line: int
    path: str
    message: str

    def __lt__(self, other: "Problem") -> bool:
        return self._sort_key < other._sort_key

    @property
    def _sort_key(self) -> tuple[str, int, str, str]:
        return self.file, self.line, natural_sort_key(self.path), self.message

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return place + (f"{self.path}: " if self.path else "") + self.message


class BadInput(VivaError):  # noqa: N818 -- users read the name; "Error" adds nothing
    """All problems of the input, found before anything runs."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems

    @classmethod
    def of(cls, message: str, file: str = "", line: int = 0, path: str = "") -> "BadInput":
        """An error with one problem."""
        return cls(Problem(file, line, path, message))

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class TrialFault(VivaError):  # noqa: N818 -- see BadInput
    """Ends one trial. `message` becomes the report's `error`. A `deterministic` fault would happen again, so it is not retried."""

    fault: Fault = "undetermined"

    def __init__(self, message: str, *, deterministic: bool = False) -> None:
        message = to_valid_text(message)  # it may quote text of an agent
        super().__init__(message)
        self.message = message
        self.deterministic = deterministic


class AgentFailed(TrialFault):
    """The agent under test failed."""

    fault: Fault = "agent"


class Unreachable(TrialFault):
    """No answer came, or the provider behind the agent failed: not the agent's failure."""

    fault: Fault = "infra"


class ConnectFailed(Unreachable):
    """No connection was made, so the server cannot have acted on the request."""


class NotRecorded(TrialFault):
    """A replay needs a reply that its cassette does not have. A retry cannot help."""

    fault: Fault = "infra"

    def __init__(self, message: str) -> None:
        super().__init__(message, deterministic=True)


class HelperFailed(TrialFault):
    """A helper failed: not the agent's failure."""

    def __init__(self, role: Role, message: str, *, deterministic: bool = False) -> None:
        super().__init__(message, deterministic=deterministic)
        self.role = role
        self.fault: Fault = "simulator" if role == "simulator" else "judge" if role == "judge" else "infra"


class Undetermined(TrialFault):
    """The trial failed, and the cause is not known."""


class TrialEnd(TrialFault):
    """Ends the trial from any place: checks and helpers do not turn it into another error."""


class Skipped(TrialEnd):
    """The trial is skipped, for the reason in `message`."""


class CallCutOff(TrialEnd):
    """The replayed call was cut off by a time limit when it was recorded, after `elapsed_ms`."""

    def __init__(self, elapsed_ms: float) -> None:
        super().__init__(f"cut off after {elapsed_ms:.0f} ms")
        self.elapsed_ms = elapsed_ms


class CheckError(VivaError):
    """A check cannot be evaluated. `fault` says why; a `deterministic` error would happen again."""

    def __init__(self, message: str, *, fault: Fault = "undetermined", deterministic: bool = False) -> None:
        super().__init__(message)
        self.fault: Fault = fault
        self.deterministic = deterministic


class WorkerCrashed(VivaError):  # noqa: N818 -- see BadInput
    """The worker process ended twice while it ran this trial and no other."""


class RemoteFailed(VivaError):  # noqa: N818 -- see BadInput
    """A remote history cannot be read or written. What is on this machine stays as it is."""


class RunStopped(VivaError):  # noqa: N818 -- see BadInput
    """The run cannot continue."""

    def __init__(self, reason: str, *, is_budget: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_budget = is_budget

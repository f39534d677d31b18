"""Every error that Viva raises on purpose.

    VivaError
    ├── BadInput          the user's files, flags or config are wrong: exit 4, before anything runs
    ├── TrialFault        ends one trial; `fault` says whose it is
    │   ├── AgentFailed       the agent under test raised, returned rubbish, timed out      failed, agent
    │   ├── Unreachable       it could not be reached, or its provider failed after retries  error, infra
    │   │   └── NotSent           and no byte of the request had left: it can be sent again without harm
    │   ├── NotRecorded       a replay needs a reply that its cassette does not hold          error, infra
    │   ├── HelperFailed      a simulator, judge or generator broke                          error, that helper
    │   ├── Undecidable       the evidence fits two                                          error, undetermined
    │   └── TrialOver         whatever was going on in the trial, nobody makes a verdict of it
    │       ├── Skipped           it cannot be held here, and that is no failure                skipped
    │       └── CutOff            a replayed call that had been cut off when it was recorded    as the time limit says
    ├── CheckBroken       a check that cannot be evaluated: the verdict is an error, never a pass or a failure
    └── RunStopped        the run cannot go on (journal not writable, budget spent); what is done is kept

Errors carry fields; whoever shows them makes the words. Anything else that escapes is our own bug: traceback, exit 3.
"""

import re
from dataclasses import dataclass
from typing import Literal

Fault = Literal["agent", "simulator", "judge", "infra", "undetermined"]
Role = Literal["agent", "simulator", "judge", "generator", "reporter"]


_NUMBER = re.compile(r"(\d+)", re.ASCII)


def to_valid_text(text: str) -> str:
    r"""A text that can be written anywhere: a plain string, in which a lone surrogate appears as `\ud800`."""
    try:
        text = str.__str__(text)
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


class VivaError(Exception):
    """The root: catch this to catch all that Viva raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a file, a flag or the config, and where."""

    file: str
    line: int
    path: str
    message: str

    def __lt__(self, other: "Problem") -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[str, int, list[tuple[int, str]], str]:
        """By place; `[2]` stands before `[10]`."""
        parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(self.path)]
        return self.file, self.line, parts, self.message

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return place + (f"{self.path}: " if self.path else "") + self.message


class BadInput(VivaError):  # noqa: N818 -- the word users read; "Error" would add nothing
    """All problems found before anything ran."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems

    @classmethod
    def of(cls, message: str, file: str = "", line: int = 0, path: str = "") -> "BadInput":
        """One problem."""
        return cls(Problem(file, line, path, message))

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class TrialFault(VivaError):  # noqa: N818 -- see BadInput
    """Ends one trial. `said` is the text of the report's `error`. One that is `deterministic` would come again: the trial is
    not retried.
    """

    fault: Fault = "undetermined"

    def __init__(self, message: str, *, deterministic: bool = False) -> None:
        message = to_valid_text(message)  # it may quote anybody
        super().__init__(message)
        self.message = message
        self.deterministic = deterministic


class AgentFailed(TrialFault):
    """The agent under test broke: its failure."""

    fault: Fault = "agent"


class Unreachable(TrialFault):
    """Nobody answered, or the provider behind the agent failed: not the agent's failure."""

    fault: Fault = "infra"


class ConnectFailed(Unreachable):
    """No connection came about, so the other side cannot have acted on anything."""


class NotRecorded(TrialFault):
    """A replay needs a reply that its cassette does not hold. Nobody is to blame, and a second try finds no more."""

    fault: Fault = "infra"

    def __init__(self, message: str) -> None:
        super().__init__(message, deterministic=True)


class HelperFailed(TrialFault):
    """A helper broke. The agent is not to blame."""

    def __init__(self, role: Role, message: str, *, deterministic: bool = False) -> None:
        super().__init__(message, deterministic=deterministic)
        self.role = role
        self.fault: Fault = "simulator" if role == "simulator" else "judge" if role == "judge" else "infra"


class Undetermined(TrialFault):
    """What happened fits more than one culprit."""


class TrialEnd(TrialFault):
    """Ends the trial from wherever it is raised: no check takes it for a broken one, no helper is blamed for it."""


class Skipped(TrialEnd):
    """The trial is left out, for a reason."""


class CallCutOff(TrialEnd):
    """A time limit had cut this call off when it was recorded, after `elapsed_ms`."""

    def __init__(self, elapsed_ms: float) -> None:
        super().__init__(f"cut off after {elapsed_ms:.0f} ms")
        self.elapsed_ms = elapsed_ms


class CheckError(VivaError):
    """A check that cannot be evaluated, whose fault that is, and whether the same would happen again (`deterministic`)."""

    def __init__(self, message: str, *, fault: Fault = "undetermined", deterministic: bool = False) -> None:
        super().__init__(message)
        self.fault: Fault = fault
        self.deterministic = deterministic


class RunStopped(VivaError):  # noqa: N818 -- see BadInput
    """The run cannot go on."""

    def __init__(self, reason: str, *, is_budget: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_budget = is_budget

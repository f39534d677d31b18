"""Types of cases in Python code. The keys are those of a suite file; functions are allowed where a file has names.

A test compares the keys with the schema of native cases. Without `assert` and `for`, which are Python keywords: use
`assertions` and a loop.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from viva.check import AgentFunction, AssertionInput

Assertions = AssertionInput | Sequence[AssertionInput]
MessageDict = Mapping[str, Any]
InputValue = str | MessageDict | Sequence[MessageDict]


class TurnDict(TypedDict, total=False):
    """A turn of a case: the user's message and what must hold for the reply."""

    input: InputValue
    attachments: Sequence[Mapping[str, Any]]
    assertions: Assertions
    options: Mapping[str, Any]
    turn_timeout: str | float
    set: Mapping[str, str]


class CheckpointDict(TypedDict, total=False):
    """Something that must happen in a simulated conversation."""

    id: str
    description: str
    assertion: AssertionInput
    after: Sequence[str]
    required: bool


class CaseDict(TypedDict, total=False):
    """A case. `{"input": "Hello", "assertions": [check.contains("name?"), lambda turn: turn.awaiting]}`"""

    id: str
    name: str
    description: str
    tags: Sequence[str]
    mode: Literal["single", "static", "dynamic"]
    input: InputValue
    attachments: Sequence[Mapping[str, Any]]
    assertions: Assertions
    turns: Sequence[TurnDict]
    simulator: AgentFunction | Mapping[str, Any]
    checkpoints: Sequence[CheckpointDict]
    final_assertions: Assertions
    max_turns: int
    timeout: str | float
    turn_timeout: str | float
    on_missing_input: Literal["skip", "fail", "end"]
    interactive: Mapping[str, Any]
    options: Mapping[str, Any]
    metadata: Mapping[str, Any]
    before: str | Callable[..., Any]
    after: str | Callable[..., Any]
    skip: bool | str
    runs: int
    fixtures: Mapping[str, Any]
    workspace: Mapping[str, Any]

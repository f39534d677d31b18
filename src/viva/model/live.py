"""The conversations that run now, as a run in progress shows them. They are removed when the run ends."""

from msgspec import Struct

from viva.model.record import TurnRecord


class LiveTrial(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A trial that runs now. `waiting_for` says what it waits for: the agent, a simulator, a judge, a person, the test."""

    suite: str
    case: str
    agent: str = ""
    """The agent under test, if the run has several."""
    name: str = ""
    trial: int = 1
    attempt: int = 1
    started_at: str
    waiting_for: str
    planned_turns: int = 0
    """How many messages are planned; 0 if a simulator plays the user."""
    turn_count: int = 0
    is_turn_open: bool = False
    """Has the newest turn no reply yet?"""
    turns: list[TurnRecord] = []
    """The last turns."""


class LiveView(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The trials that run now, oldest first, and how many may."""

    at: str
    """When it was written, in UTC."""
    trials: list[LiveTrial]
    limit: int
    """How many conversations may run in parallel."""
    workers: int | None = None
    """How many worker processes there are; null if the run needs none."""
    cost_usd: float | None = None
    """The cost of all calls so far, those of running trials included; null if no price is known."""

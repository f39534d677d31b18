"""Two users in one conversation, and a simulated one that cannot end it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from viva.errors import AgentFailed, HelperFailed, Role
from viva.model.case import UserMessage
from viva.model.message import Message, Reply
from viva.state.trial_state import TrialState
from viva.testing.check_context import make_trial_state
from viva.users.script import Script, UserSequence
from viva.users.simulator import Simulator, SimulatorGuard



class Played:
    """A helper who answers what it is told to."""

    may_repeat = must_quote = False
    metadata: Mapping[str, Any] = {}

    def __init__(self, *answers: Mapping[str, Any]) -> None:
        self._answers = list(answers)
        self.opened: list[Mapping[str, Any] | None] = []

    @asynccontextmanager
    async def open(
        self, role: Role, agent: str, state: TrialState | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator["Played"]:
        self.opened.append(options)
        yield self

    async def ask(self, text: str, parse: Callable[[Reply], Any], metadata: Mapping[str, Any] | None = None) -> Any:
        try:
            return parse(Reply(data=self._answers.pop(0)))
        except ValueError as unusable:
            raise HelperFailed("simulator", str(unusable)) from unusable


def script(*texts: str) -> Script:
    return Script(tuple(UserMessage(Message("user", text)) for text in texts))


def spoken(user: Any, count: int, helpers: Any = None) -> list[str]:
    """The first lines that a user says, whatever the agent answers."""
    state = make_trial_state("ok")
    state.helpers = helpers or state.helpers

    async def heard() -> list[str]:
        lines = user.speak(state)
        found = [line.message.text async for line in _first(lines, count)]
        await lines.aclose()
        return found

    return asyncio.run(heard())


async def _first(lines: AsyncGenerator[UserMessage, None], count: int) -> AsyncGenerator[UserMessage, None]:
    for _ in range(count):
        line = await anext(lines, None)
        if line is None:
            return
        yield line


def test_the_second_goes_on_where_the_first_ends():
    """P2: all planned lines count as planned."""
    user = UserSequence(script("a", "b"), script("c"))
    assert spoken(user, 9) == ["a", "b", "c"]
    assert [line.message.text for line in user.planned_messages] == ["a", "b", "c"]
    assert user.simulator is None
    assert UserSequence(script("a"), Simulator("sim")).simulator == "sim"


def test_nobody_is_asked_before_it_is_their_turn():
    """P2: a simulated user costs nothing while the steps are said."""
    played = Played({"input": "mine"})
    user = UserSequence(script("a"), Simulator("sim"))
    assert spoken(user, 1, played) == ["a"]
    assert played.opened == []
    assert spoken(user, 2, played) == ["a", "mine"]


def test_a_fault_comes_back_from_where_the_line_was_said():
    """The loop raises it there, and neither user may live with it."""

    async def thrown() -> None:
        lines = UserSequence(script("a"), script("b")).speak(make_trial_state())
        await anext(lines)
        await lines.athrow(AgentFailed("boom"))

    with pytest.raises(AgentFailed, match="boom"):
        asyncio.run(thrown())


def test_braces_are_words_where_there_are_no_variables():
    """A playbook may speak of templates."""
    played = Played({"input": "mine"})
    first = (UserMessage(Message("user", "{{ first }}")),)
    user = Simulator("sim", {"metadata": {"persona": "{{ me }}"}}, first, has_variables=False)
    assert spoken(user, 2, played) == ["{{ first }}", "mine"]
    assert played.opened == [{"metadata": {"persona": "{{ me }}", "can_end": True}}]


def test_one_who_cannot_end_the_conversation_has_to_say_something():
    """P8: that the goal is achieved is no more than an opinion."""
    user = Simulator("sim", can_end=False)
    assert spoken(user, 2, Played({"input": "a", "goal_achieved": True}, {"input": "b"})) == ["a", "b"]
    with pytest.raises(HelperFailed, match="it is empty, but the conversation goes on"):
        spoken(user, 1, Played({"input": "", "goal_achieved": True}))
    assert SimulatorGuard(make_trial_state("x"), {}).parse(Reply(data={"goal_achieved": True})).goal_achieved

"""Two users in sequence, and a simulator that cannot end the conversation."""

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
from viva.users.simulator import Simulator, SimulatorReplyValidator


class CannedHelper:
    """A helper with canned answers."""

    may_repeat = must_quote = False
    metadata: Mapping[str, Any] = {}

    def __init__(self, *answers: Mapping[str, Any]) -> None:
        self._answers = list(answers)
        self.opened: list[Mapping[str, Any] | None] = []

    @asynccontextmanager
    async def open(
        self, role: Role, agent: str, state: TrialState | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator["CannedHelper"]:
        self.opened.append(options)
        yield self

    async def ask(self, text: str, parse: Callable[[Reply], Any], metadata: Mapping[str, Any] | None = None) -> Any:
        try:
            return parse(Reply(data=self._answers.pop(0)))
        except ValueError as unusable:
            raise HelperFailed("simulator", str(unusable)) from unusable


def script(*texts: str) -> Script:
    return Script(tuple(UserMessage(Message("user", text)) for text in texts))


def first_messages(user: Any, count: int, helpers: Any = None) -> list[str]:
    """The first messages of a user, whatever the agent replies."""
    state = make_trial_state("ok")
    state.helpers = helpers or state.helpers

    async def collect() -> list[str]:
        lines = user.speak(state)
        found = [line.message.text async for line in _first(lines, count)]
        await lines.aclose()
        return found

    return asyncio.run(collect())


async def _first(lines: AsyncGenerator[UserMessage, None], count: int) -> AsyncGenerator[UserMessage, None]:
    for _ in range(count):
        line = await anext(lines, None)
        if line is None:
            return
        yield line


def test_the_second_user_continues_after_the_first():
    """P2: all planned lines count as planned."""
    user = UserSequence(script("a", "b"), script("c"))
    assert first_messages(user, 9) == ["a", "b", "c"]
    assert [line.message.text for line in user.planned_messages] == ["a", "b", "c"]
    assert user.simulator is None
    assert UserSequence(script("a"), Simulator("sim")).simulator == "sim"


def test_the_second_user_is_not_opened_before_its_turn():
    """P2: a simulator costs nothing while the steps run."""
    played = CannedHelper({"input": "mine"})
    user = UserSequence(script("a"), Simulator("sim"))
    assert first_messages(user, 1, played) == ["a"]
    assert played.opened == []
    assert first_messages(user, 2, played) == ["a", "mine"]


def test_a_fault_passes_through_the_sequence():
    """The loop raises it at the `yield`, and neither user catches it."""

    async def thrown() -> None:
        lines = UserSequence(script("a"), script("b")).speak(make_trial_state())
        await anext(lines)
        await lines.athrow(AgentFailed("boom"))

    with pytest.raises(AgentFailed, match="boom"):
        asyncio.run(thrown())


def test_braces_are_literal_without_variables():
    """A playbook may contain template syntax."""
    played = CannedHelper({"input": "mine"})
    first = (UserMessage(Message("user", "{{ first }}")),)
    user = Simulator("sim", {"metadata": {"persona": "{{ me }}"}}, first, has_variables=False)
    assert first_messages(user, 2, played) == ["{{ first }}", "mine"]
    assert played.opened == [{"metadata": {"persona": "{{ me }}", "can_end": True}}]


def test_a_simulator_that_cannot_end_must_send_a_message():
    """P8: its `goal_achieved` is ignored."""
    user = Simulator("sim", can_end=False)
    assert first_messages(user, 2, CannedHelper({"input": "a", "goal_achieved": True}, {"input": "b"})) == ["a", "b"]
    with pytest.raises(HelperFailed, match="it is empty, but the conversation continues"):
        first_messages(user, 1, CannedHelper({"input": "", "goal_achieved": True}))
    assert SimulatorReplyValidator(make_trial_state("x"), {}).parse(Reply(data={"goal_achieved": True})).goal_achieved

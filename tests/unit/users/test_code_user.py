"""A user that is Python code, in the turn loop."""

import asyncio

import pytest

from viva.engine.conversation import run_conversation
from viva.errors import AgentFailed, Undetermined
from viva.model.case import Case, UserMessage
from viva.model.message import Message, Reply
from viva.testing.check_context import make_trial_state
from viva.users.code_user import CodeUser


def message(text):
    return UserMessage(Message("user", text))


async def answer(message):
    """Replies in capitals; fails on "break" and hangs on "wait"."""
    if message.message.text == "break":
        raise AgentFailed("boom")
    if message.message.text == "wait":
        await asyncio.Event().wait()
    return Reply(message.message.text.upper())


def hold(play, timeout_s=None):
    state = make_trial_state()
    state.case = Case(id="program", user=CodeUser(play), sessions="each_message")

    async def run():
        async with asyncio.timeout(timeout_s):
            return await run_conversation(state, state.case.user, answer, lambda _turn: None)

    return state, asyncio.run(run())


def test_it_gets_the_turn_of_each_message():
    received = []

    async def play(state, send):
        received.append((await send(message("one"))).reply.content)
        received.append((await send(message("two"))).number)

    state, outcome = hold(play)
    assert received == ["ONE", 2]
    assert outcome is None
    assert [turn.reply and turn.reply.content for turn in state.turns] == ["ONE", "TWO"]


def test_it_may_catch_a_fault_of_the_agent():
    async def play(state, send):
        with pytest.raises(AgentFailed, match="boom"):
            await send(message("break"))
        await send(message("still here"))

    state, outcome = hold(play)
    assert outcome is None
    assert [turn.error for turn in state.turns] == ["agent error: boom", None]


def test_an_uncaught_fault_ends_the_conversation():
    async def play(state, send):
        await send(message("break"))

    with pytest.raises(AgentFailed, match="boom"):
        hold(play)


def test_its_own_error_ends_the_conversation():
    async def play(state, send):
        await send(message("one"))
        raise Undetermined("its own mistake")

    with pytest.raises(Undetermined, match="its own mistake"):
        hold(play)


def test_without_a_message_the_conversation_ends_at_once():
    async def play(state, send):
        return

    state, outcome = hold(play)
    assert (outcome, state.turns) == (None, [])


@pytest.mark.parametrize("waiting_for", ["the agent", "itself"])
def test_a_timeout_cancels_the_code(waiting_for):
    ended = []

    async def play(state, send):
        try:
            await (send(message("wait")) if waiting_for == "the agent" else asyncio.Event().wait())
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError):
        hold(play, timeout_s=0.02)
    assert ended == [True]

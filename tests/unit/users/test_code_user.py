"""A user that is code, in the loop that all users share."""

import asyncio

import pytest

from viva.engine.conversation import run_conversation
from viva.errors import AgentFailed, Undetermined
from viva.model.case import Case, UserMessage
from viva.model.message import Message, Reply
from viva.testing.check_context import make_trial_state
from viva.users.code_user import CodeUser


def line(text):
    return UserMessage(Message("user", text))


async def answer(said):
    """Repeats in capitals; breaks when asked to, and hangs when told to wait."""
    if said.message.text == "break":
        raise AgentFailed("boom")
    if said.message.text == "wait":
        await asyncio.Event().wait()
    return Reply(said.message.text.upper())


def hold(play, timeout_s=None):
    state = make_trial_state()
    state.case = Case(id="program", user=CodeUser(play), sessions="each_message")

    async def held():
        async with asyncio.timeout(timeout_s):
            return await run_conversation(state, state.case.user, answer, lambda _turn: None)

    return state, asyncio.run(held())


def test_it_hears_the_answer_where_it_spoke():
    heard = []

    async def play(state, say):
        heard.append((await say(line("one"))).reply.content)
        heard.append((await say(line("two"))).number)

    state, outcome = hold(play)
    assert heard == ["ONE", 2]
    assert outcome is None
    assert [turn.reply and turn.reply.content for turn in state.turns] == ["ONE", "TWO"]


def test_it_may_live_with_a_fault_of_the_agent():
    async def play(state, say):
        with pytest.raises(AgentFailed, match="boom"):
            await say(line("break"))
        await say(line("still here"))

    state, outcome = hold(play)
    assert outcome is None
    assert [turn.error for turn in state.turns] == ["agent error: boom", None]


def test_a_fault_that_it_does_not_catch_ends_the_conversation():
    async def play(state, say):
        await say(line("break"))

    with pytest.raises(AgentFailed, match="boom"):
        hold(play)


def test_what_it_raises_itself_ends_the_conversation():
    async def play(state, say):
        await say(line("one"))
        raise Undetermined("its own mistake")

    with pytest.raises(Undetermined, match="its own mistake"):
        hold(play)


def test_one_that_says_nothing_ends_at_once():
    async def play(state, say):
        return

    state, outcome = hold(play)
    assert (outcome, state.turns) == (None, [])


@pytest.mark.parametrize("waiting_for", ["the agent", "itself"])
def test_when_the_conversation_is_cut_off_so_is_the_program(waiting_for):
    ended = []

    async def play(state, say):
        try:
            await (say(line("wait")) if waiting_for == "the agent" else asyncio.Event().wait())
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError):
        hold(play, timeout_s=0.02)
    assert ended == [True]

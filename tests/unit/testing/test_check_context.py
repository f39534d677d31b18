"""The conversation that never took place, for tests of checks and users."""

import asyncio

import pytest

from viva.errors import HelperFailed
from viva.model.message import Reply
from viva.testing.check_context import make_check_context, make_trial_state


def test_evidence_is_of_the_last_reply():
    evidence = make_check_context("one", Reply("two"), inputs=["hi"])
    assert evidence.text == "two"
    assert [turn.number for turn in evidence.state.turns] == [1, 2]
    assert [turn.user_message.message.text for turn in evidence.state.turns] == ["hi", "hello"]


def test_without_a_reply_the_agent_said_nothing():
    assert make_check_context().text == ""


def test_no_helper_can_be_reached():
    with pytest.raises(HelperFailed, match=r"no helper viva\.validator"):
        make_trial_state().helpers.open("judge", "viva.validator")


def test_the_user_is_silent_and_the_clock_stands_still():
    async def listen():
        state = make_trial_state()
        async with state.clock.pause():
            return [line async for line in state.case.user.speak(state)]

    assert asyncio.run(listen()) == []

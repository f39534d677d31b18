"""The view of a running conversation is bounded."""

import pytest

from viva.model.message import Message, Reply
from viva.model.turn import Turn, UserMessage
from viva.session.live_view import _select_newest_turns


@pytest.mark.parametrize(("chars", "shown"), [(10, 50), (50_000, 4), (300_000, 0)])
def test_only_the_newest_turns_of_a_long_conversation_are_shown(chars: int, shown: int):
    turns = [Turn(number, UserMessage(Message("user", "")), Reply("x" * chars)) for number in range(1, 101)]
    assert [turn.number for turn in _select_newest_turns(turns)] == [*range(101 - shown, 101)]

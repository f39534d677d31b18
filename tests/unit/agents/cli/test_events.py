"""The reply that the events of a turn add up to."""

import time

from viva.agents.cli.events import CliTurn, TextPrinted, ToolEnded, ToolStarted


def test_messages_stay_apart_and_the_first_text_is_timed():
    turn = CliTurn(started=1.0)
    turn.add_event(TextPrinted("", is_new_message=True))
    assert turn.build_reply().first_token_ms is None
    turn.add_event(TextPrinted("Let me ", is_new_message=True))
    first = turn.build_reply().first_token_ms
    turn.add_event(TextPrinted("see."))
    turn.add_event(ToolStarted("clock", {}, "c1"))
    turn.add_event(TextPrinted("It is noon.", is_new_message=True))
    reply = turn.build_reply()
    assert reply.parts == ("Let me see.", "It is noon.")
    assert reply.content.strip() == "Let me see.\nIt is noon."
    assert first is not None
    assert reply.first_token_ms == first


def test_one_message_has_no_parts():
    turn = CliTurn()
    turn.add_event(TextPrinted("Hi"))
    assert (turn.build_reply().content, turn.build_reply().parts, turn.build_reply().first_token_ms) == ("Hi", (), None)


def test_a_tool_is_timed_by_its_events():
    """A result that arrives together with its call says nothing about the tool's time."""
    turn = CliTurn(started=time.perf_counter())
    turn.add_event(ToolStarted("clock", {}, "c1"))
    turn.add_event(ToolStarted("at-once", {}, "c2"))
    turn.add_event(ToolEnded("c2", output="now"))
    later = time.perf_counter() + 0.002
    while time.perf_counter() < later:
        pass
    turn.add_event(ToolEnded("c1", output="noon"))
    steps = turn.build_reply().steps
    assert [step.name for step in steps if step.duration_ms >= 2] == ["clock"]
    assert steps[-1].start_ms >= 0

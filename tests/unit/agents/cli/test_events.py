"""The reply that the events of a turn add up to."""

from viva.agents.cli.events import CliTurn, TextPrinted, ToolStarted


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

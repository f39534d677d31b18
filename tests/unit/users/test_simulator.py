"""Parses the answers of simulators and refuses unusable ones, without a model."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from viva.model.message import Message, Reply, ToolCall
from viva.testing.check_context import make_trial_state
from viva.users.simulator import (
    SimulatorReply,
    SimulatorReplyValidator,
    find_contradicting_value,
    parse_simulator_reply,
)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (Reply("Hello there"), SimulatorReply("Hello there")),
        (Reply('{"input": "Hi", "goal_achieved": false, "reasoning": "r"}'), SimulatorReply("Hi", reasoning="r")),
        (Reply('So:\n```json\n{"message": "Hi"}\n```'), SimulatorReply("Hi")),
        (Reply(data={"input": "Hi", "message": "Hi"}), SimulatorReply("Hi")),
        (
            Reply(data={"goal_achieved": True, "reasoning": "done"}),
            SimulatorReply("", goal_achieved=True, reasoning="done"),
        ),
        (Reply("Take [1] or [2, 3], please"), SimulatorReply("Take [1] or [2, 3], please")),
        (Reply('["a", "b"] are my sizes'), SimulatorReply('["a", "b"] are my sizes')),
        (Reply('Please set {"size": 4}'), SimulatorReply('Please set {"size": 4}')),
        (Reply(data=["x"]), SimulatorReply("")),
    ],
)
def test_an_answer_is_read_tolerantly(reply: Reply, answer: SimulatorReply):  # N29
    assert parse_simulator_reply(reply) == answer


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>\nI want a refund.\n</think>\n\nRefund me.", "Refund me."),
        ('Perhaps {"input": "Hi"}?</think>{"input": "Refund me."}', "Refund me."),
    ],
)
def test_what_a_model_thought_before_its_answer_is_not_said(text: str, said: str):  # N29
    assert SimulatorReplyValidator(make_trial_state("Which?"), {}).parse(Reply(text)).text == said


def test_thoughts_without_an_answer_are_empty():  # N29
    with pytest.raises(ValueError, match="it is empty"):
        SimulatorReplyValidator(make_trial_state("Which?"), {}).parse(Reply("<think>Hm.</think>"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"input": "a", "message": "b"}, "gives both"),
        ({"input": 5}, "not a text"),
        ({"input": "a", "goal_achieved": "no"}, "neither true nor false"),
        ({"goal": "a"}, "it has no `input`; it holds 'goal'"),
    ],
)
def test_an_answer_of_another_shape_is_refused_with_the_reason(data: Mapping[str, Any], message: str):  # N3, N29
    with pytest.raises(ValueError, match=message):
        parse_simulator_reply(Reply(data=data))


FACTS = {"order id": "W1", "amount": "$3,500.00", "city": "Rome"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("   ", "it is empty"),
        ('{"input": "your next message", "goal_achieved": false}', "it copies the example"),
        ("Assistant: of course", "it speaks for the assistant"),
        ("  agent : of course", "it speaks for the assistant"),
        ("**Assistant:** of course", "it speaks for the assistant"),
        ("[AI Assistant]: of course", "it speaks for the assistant"),
        ('"Which order"', "it repeats the assistant's last reply"),
        ("WHICH   order?", "it repeats the assistant's last reply"),
        ("My order id is W2", "order id is 'W2', but its facts say 'W1'"),
        ("order-id: W2.", "'W2'"),
        ("the amount was 35", "'35'"),
        ('{"input": "it is this", "facts": {"city": "Oslo"}}', "city is 'Oslo'"),
    ],
)
def test_what_a_user_would_not_say_is_refused(text: str, message: str):  # N29
    with pytest.raises(ValueError, match=message.replace("$", r"\$")):
        SimulatorReplyValidator(make_trial_state("Which order?"), FACTS).parse(Reply(text))


@pytest.mark.parametrize(
    "text",
    [
        "My order id is W1",
        "My order id is W1, not W2",
        "the amount is 3500",
        "The city is lovely",
        "the city is not important",
        "I said which order?",
        "My agent: a friend of mine",
    ],
)
def test_what_a_user_may_say_is_not(text: str):
    validator = SimulatorReplyValidator(make_trial_state("Which order?"), {"order id": "W1", "amount": "$3,500.00"})
    assert validator.parse(Reply(text)).text == text
    assert validator.parse(Reply('{"input": "", "goal_achieved": true}')).goal_achieved


def test_the_same_a_third_time_is_a_fault_unless_the_agent_repeats_itself():  # N29
    same = ["Refund me", "refund  me"]
    with pytest.raises(ValueError, match="the third time in a row"):
        SimulatorReplyValidator(make_trial_state("Which?", "What?", inputs=same), {}).parse(Reply("Refund me"))
    SimulatorReplyValidator(make_trial_state("Which?", "which?", inputs=same), {}).parse(Reply("Refund me"))
    SimulatorReplyValidator(make_trial_state("Which?", "What?", inputs=["Hello", "Refund me"]), {}).parse(
        Reply("Refund me")
    )
    SimulatorReplyValidator(make_trial_state("Which?", "What?", inputs=same), {}, may_repeat=True).parse(
        Reply("Refund me")
    )
    with pytest.raises(ValueError, match="the third time in a row"):
        SimulatorReplyValidator(make_trial_state("Which?", "What?", inputs=["Refund me!", "Refund me."]), {}).parse(
            Reply("Refund me")
        )


def test_an_agent_that_says_the_same_but_does_something_else_does_not_repeat_itself():  # N29
    replies = [Reply("One moment.", tool_calls=(ToolCall("look", {"page": n}),)) for n in (1, 2)]
    with pytest.raises(ValueError, match="the third time in a row"):
        SimulatorReplyValidator(make_trial_state(*replies, inputs=["Go on", "Go on"]), {}).parse(Reply("Go on"))


def test_what_the_agent_had_said_before_the_first_turn_counts_too():  # N29
    state = make_trial_state()
    state.case = structs.replace(state.case, history=(Message("assistant", "How can I help?"), Message("user", "Hm.")))
    with pytest.raises(ValueError, match="it repeats the assistant's last reply"):
        SimulatorReplyValidator(state, {}).parse(Reply("How can I help?"))
    SimulatorReplyValidator(state, {}).parse(Reply("Hm."))


@pytest.mark.parametrize(
    ("text", "slot", "value", "other"),
    [
        ("id is W2", "id", "W1", "W2"),
        ("id = (W2)", "id", "W1", "W2"),
        ("My order id is W-10.", "order_id", "W-1001", "W-10"),
        ("The amount is 3500", "amount", "350", "3500"),
        ("the amount was $5,000", "amount", "$500", "$5,000"),
        ("The date is 2024-05-02", "date", "2024-05-01", "2024-05-02"),
        ("My city is London.", "city", "Paris", "London"),
        ("id is unknown", "id", "W1", None),
        ("my idea is W2", "id", "W1", None),
        ("The amount is 3500", "amount", "3,500 USD", None),
        ("The amount was 42.5", "amount", "$42.50", None),
        ("My phone is 5551234", "phone", "555-1234", None),
        ("My phone is (555) 1234.", "phone", "555-1234", None),
        ("My phone is 555 1235", "phone", "555-1234", "555"),
        ("My card is 4111 1111, not 4222.", "card", "41111111", None),
        ("The amount is 5.0", "amount", "50", "5.0"),
        ("My order is 3 days late.", "order", "W-123", None),
        ("My order is 3 days late.", "order", "4711", None),
        ("The date is 1 May 2024", "date", "2024-05-01", None),
        ("The time is 15:00", "time", "3 pm", None),
        ("My name is John.", "name", "John Smith", None),
        ("The city is lovely", "city", "Paris", None),
        ("The reason is dinner with a client", "reason", "client dinner", None),
    ],
)
def test_only_what_is_surely_another_value_of_the_very_slot_counts(text: str, slot: str, value: str, other: str | None):
    assert find_contradicting_value(text, slot, value) == other  # N29


@pytest.mark.parametrize(
    "reply",
    [
        Reply('{"input": "I want to ret'),
        Reply('{"response": "hello"}'),
        Reply("I want to", finish_reason="length"),
        Reply(data=None),
    ],
)
def test_half_an_answer_is_requested_again(reply: Reply):  # N29
    with pytest.raises(ValueError, match=r"it (is|has|was)"):
        SimulatorReplyValidator(make_trial_state("Which?"), {}).parse(reply)


def test_no_word_on_the_goal_means_that_it_is_not_achieved():
    assert parse_simulator_reply(Reply(data={"input": "x", "goal_achieved": None})) == SimulatorReply("x")

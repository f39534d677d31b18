"""The turn loop with fakes that never suspend: it needs no event loop, one `send(None)` runs it to its end."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

import pytest

from viva.engine.conversation import run_conversation
from viva.engine.outcome import Outcome
from viva.errors import AgentFailed, CheckError
from viva.model.case import Assertion, Case, Checkpoint, Goal, Key, Limits, UserMessage
from viva.model.message import DeclaredState, Message, Reply
from viva.model.turn import PASSED, Turn, Verdict
from viva.protocols import User
from viva.state.trial_state import CheckContext, TrialState
from viva.testing.check_context import FrozenClock, NoHelpers
from viva.users.script import Script, UserSequence


class Says:
    """A check that the reply contains a text; `!` raises an error. It stores the turns that it is asked about."""

    def __init__(self, text: str, *, costly: bool = False) -> None:
        self.text = text
        self.costly = costly
        self.asked: list[int] = []
        self.label = f"says {text}"

    def check(self, context: CheckContext) -> Verdict:
        self.asked.append(context.turn.number)
        if self.text == "!":
            raise CheckError("cannot be evaluated")
        return PASSED if self.text in context.text else Verdict("failed", "it does not")


def message(text: str, *assertions: str, **fields: Any) -> UserMessage:
    return UserMessage(Message("user", text), assertions=tuple(Assertion(Says(each)) for each in assertions), **fields)


NO_GOAL = Goal()


def state_of(*messages: UserMessage, goal: Goal = NO_GOAL, max_turns: int = 20) -> TrialState:
    case = Case(id="c", user=Script(messages), goal=goal, limits=Limits(max_turns=max_turns))
    return TrialState(case, Key("s", "c"), NoHelpers(), FrozenClock())


def drive(work: Coroutine[Any, Any, Outcome | None]) -> Outcome | None:
    """Runs a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it suspended")


def run(
    state: TrialState,
    *replies: Reply | Exception,
    on_turn: Callable[[Turn], None] = lambda _turn: None,
    user: User | None = None,
) -> Outcome | None:
    remaining = iter(replies)

    async def send(_message: UserMessage) -> Reply:
        reply = next(remaining)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return drive(run_conversation(state, user or state.case.user, send, on_turn))


def statuses(state: TrialState) -> Sequence[list[str]]:
    return [[result.verdict.status for result in turn.results] for turn in state.turns]


def test_a_script_sends_every_message():
    """The awaiting state of a reply changes nothing for a script (N10)."""
    state = state_of(message("a", "ok"), message("b"), message("c", "ok"))
    assert run(state, Reply("ok", declared_state="done"), Reply("?", declared_state="awaiting"), Reply("ok")) is None
    assert [turn.user_message.message.text for turn in state.turns] == ["a", "b", "c"]
    assert statuses(state) == [["passed"], [], ["passed"]]


def test_the_first_failed_turn_ends_the_conversation_after_all_its_assertions():
    state = state_of(message("a", "x", "ok", "y"), message("b", "ok"))
    assert run(state, Reply("ok"), Reply("ok")) == Outcome("failed", "agent")  # N10, N17
    assert statuses(state) == [["failed", "passed", "failed"]]


@pytest.mark.parametrize(
    ("assertions", "outcome"),
    [
        (("!", "ok"), Outcome("error", "undetermined", "cannot be evaluated")),
        (("!", "x"), Outcome("failed", "agent")),
        (("x", "!"), Outcome("failed", "agent")),
    ],
)
def test_failed_beats_error(assertions: tuple[str, ...], outcome: Outcome):
    assert run(state_of(message("a", *assertions), message("b")), Reply("ok")) == outcome  # N10, N17


def test_an_error_of_the_agent_is_stored_in_its_turn():
    state = state_of(message("a", "ok"), message("b", "ok"), message("c"))
    with pytest.raises(AgentFailed):
        run(state, Reply("ok"), AgentFailed("out of order"))
    assert [turn.error for turn in state.turns] == [None, "agent error: out of order"]
    assert state.turns[1].reply is None


def test_the_listener_is_called_at_the_start_and_end_of_each_turn():
    calls: list[tuple[int, bool]] = []
    state = state_of(message("a"), message("b"))
    with pytest.raises(AgentFailed):
        run(
            state,
            Reply("x"),
            AgentFailed("no"),
            on_turn=lambda turn: calls.append((turn.number, turn.reply is not None)),
        )
    assert calls == [(1, False), (1, True), (2, False), (2, False)]


def test_set_stores_variables_from_replies():
    """From data or JSON in the text; several values are a list; a path without a value stays unset."""
    lines = (
        message("a", variables={"one": "$.n", "many": "$.l[*]", "none": "$.absent"}),
        message("b", variables={"two": "m"}),
        message("c"),
    )
    state = state_of(*lines)
    run(state, Reply(data={"n": 1, "l": [1, 2]}), Reply('```json\n{"m": "x"}\n```'), Reply("no JSON"))
    assert state.variables == {"one": 1, "many": [1, 2], "two": "x"}  # N21
    assert list(state.unset_variables) == ["none"]
    assert len(state.warnings) == 1


def goal(*names: str, **fields: Any) -> Goal:
    return Goal(tuple(Checkpoint(name, Assertion(Says(name), on="reply_and_tools"), **fields) for name in names))


def test_checkpoints_are_evaluated_after_the_planned_messages():
    """While planned messages are left, the goal cannot end the conversation."""
    state = state_of(message("a"), message("b"), goal=goal("ok"))
    assert run(state, Reply("ok"), Reply("ok")) is None
    assert len(state.turns) == 2
    assert state.checkpoints["ok"].turn == 2


def test_missing_checkpoints_fail_the_trial_when_the_user_ends():
    state = state_of(message("a"), goal=goal("x", "ok", "y"))
    assert run(state, Reply("ok")) == Outcome("failed", "agent", "missing checkpoints: x, y")  # N16
    assert state.checkpoints["ok"].turn == 1


def test_a_declared_end_and_max_turns_end_the_conversation():
    done = state_of(message("a"), goal=goal("x"))
    assert run(done, Reply("no", declared_state="done")) == Outcome("failed", "agent", "missing checkpoints: x")  # N15
    used = state_of(message("a"), goal=goal("x"), max_turns=1)
    assert run(used, Reply("no")) == Outcome("failed", "agent", "max turns (1) exceeded")  # N16


def test_the_conversation_ends_at_the_turn_that_meets_the_goal():  # N13
    state = state_of(goal=goal("ok"))
    user = Unplanned([message("a"), message("b"), message("c")])
    assert run(state, Reply("no"), Reply("ok"), Reply("no"), user=user) is None
    assert (len(state.turns), state.checkpoints["ok"].turn) == (2, 2)


@pytest.mark.parametrize(("defers", "asked"), [(True, [2]), (False, [1, 2])])
@pytest.mark.parametrize(
    ("last_reply", "max_turns"),
    [(Reply("no", declared_state="done"), 20), (Reply("no"), 2), (Reply("no"), 20)],
    ids=["the agent is done", "max turns", "the user ends"],
)
def test_costly_checks_wait_for_the_cheap_ones_or_the_end(
    last_reply: Reply, max_turns: int, defers: bool, asked: list[int]
):
    """P8: at the end each has a verdict. Those that do not wait are asked once after each reply."""
    judge = Says("polite", costly=True)
    checkpoints = Checkpoint("cheap", Assertion(Says("booked"))), Checkpoint("costly", Assertion(judge))
    state = state_of(goal=Goal(checkpoints, defers_costly_checks=defers), max_turns=max_turns)
    outcome = run(state, Reply("no"), last_reply, user=Unplanned([message("a"), message("b")]))
    assert outcome is not None
    assert (outcome.status, judge.asked) == ("failed", asked)
    assert state.checkpoints["costly"].verdict is not None


@pytest.mark.parametrize(("stays", "turns"), [(True, 2), (False, 4)])
def test_a_checkpoint_that_does_not_stay_reached_must_hold_when_the_goal_is_met(stays: bool, turns: int):
    """P8: files are read anew each time, also if they were right before; what was said stays said."""
    first = Checkpoint("file", Assertion(Says("file")), stays_reached=stays)
    state = state_of(goal=Goal((first, Checkpoint("said", Assertion(Says("said"))))))
    replies = [Reply(text) for text in ("file", "said", "no", "file", "no")]
    assert run(state, *replies, user=Unplanned([message(text) for text in "abcde"])) is None
    assert len(state.turns) == turns
    assert (state.checkpoints["file"].turn, state.checkpoints["said"].turn) == (1 if stays else 4, 2)


@pytest.mark.parametrize("max_turns", [2, 20])
def test_a_judge_that_waited_is_asked_once_about_a_reply(max_turns: int):
    """P8: the end of the conversation gives it no second chance."""
    judge = Says("polite", costly=True)
    checkpoints = Checkpoint("cheap", Assertion(Says("booked"))), Checkpoint("costly", Assertion(judge))
    state = state_of(goal=Goal(checkpoints, defers_costly_checks=True), max_turns=max_turns)
    outcome = run(state, Reply("booked"), Reply("booked"), user=Unplanned([message("a"), message("b")]))
    assert outcome is not None
    assert (outcome.status, judge.asked) == ("failed", [1, 2])


@pytest.mark.parametrize("declared", [None, "done"])
def test_steps_before_a_persona_do_not_count_as_its_turns(declared: DeclaredState | None):
    """P2: checkpoints are evaluated after the last of them, `max_turns` starts there, and the persona goes on even if
    the agent says that it is done with the steps.
    """
    goal = Goal((Checkpoint("a", Assertion(Says("here"))),))
    lines = tuple(message(text) for text in "abcd")
    case = Case(id="c", user=Script(lines[:2]), goal=goal, limits=Limits(max_turns=1, setup_turns=2))
    state = TrialState(case, Key("s", "c"), NoHelpers(), FrozenClock())
    user = UserSequence(Script(lines[:2]), Unplanned(lines[2:]))

    async def send(_message: UserMessage) -> Reply:
        return Reply("no", declared_state=declared if len(state.turns) <= 2 else None)

    ended = drive(run_conversation(state, user, send, lambda _turn: None))
    assert ended == Outcome("failed", "agent", "max turns (1) exceeded")
    assert [turn.user_message.message.text for turn in state.turns] == ["a", "b", "c"]
    assert case.limits.total_turns == 3


class Unplanned:
    """Sends messages that are not planned."""

    planned_messages: Sequence[UserMessage] = ()
    simulator: str | None = "simulator"

    def __init__(self, messages: Sequence[UserMessage]) -> None:
        self._messages = messages

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        for message in self._messages:
            yield message

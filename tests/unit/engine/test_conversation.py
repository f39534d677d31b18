"""The turn loop with fakes that never wait: no event loop is needed, one push drives it to its end."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

import pytest

from viva.engine.conversation import run_conversation
from viva.engine.outcome import Outcome
from viva.errors import AgentFailed, CheckError
from viva.model.case import Assertion, Case, Checkpoint, Goal, Key, Limits, UserMessage
from viva.model.message import Message, Reply
from viva.model.turn import PASSED, Turn, Verdict
from viva.state.trial_state import CheckContext, TrialState
from viva.testing.check_context import FrozenClock, NoHelpers
from viva.users.script import Script, UserSequence



class Says:
    """A check on the reply's text; `!` is one that breaks."""

    costly = False

    def __init__(self, text: str) -> None:
        self.text = text
        self.label = f"says {text}"

    def check(self, context: CheckContext) -> Verdict:
        if self.text == "!":
            raise CheckError("cannot be evaluated")
        return PASSED if self.text in context.text else Verdict("failed", "it does not")


def line(text: str, *assertions: str, **fields: Any) -> UserMessage:
    return UserMessage(Message("user", text), assertions=tuple(Assertion(Says(each)) for each in assertions), **fields)


NO_GOAL = Goal()


def state_of(*lines: UserMessage, goal: Goal = NO_GOAL, max_turns: int = 20) -> TrialState:
    case = Case(id="c", user=Script(lines), goal=goal, limits=Limits(max_turns=max_turns))
    return TrialState(case, Key("s", "c"), NoHelpers(), FrozenClock())


def driven(work: Coroutine[Any, Any, Outcome | None]) -> Outcome | None:
    """Runs a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waited for something")


def held(
    state: TrialState, *replies: Reply | Exception, watch: Callable[[Turn], None] = lambda _turn: None
) -> Outcome | None:
    due = iter(replies)

    async def send(said: UserMessage) -> Reply:
        reply = next(due)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return driven(run_conversation(state, state.case.user, send, watch))


def statuses(state: TrialState) -> Sequence[list[str]]:
    return [[judged.verdict.status for judged in turn.results] for turn in state.turns]


def test_every_line_is_said_whatever_the_agent_answers():
    """The awaiting state of a reply changes nothing for a script (N10)."""
    state = state_of(line("a", "ok"), line("b"), line("c", "ok"))
    assert held(state, Reply("ok", declared_state="done"), Reply("?", declared_state="awaiting"), Reply("ok")) is None
    assert [turn.user_message.message.text for turn in state.turns] == ["a", "b", "c"]
    assert statuses(state) == [["passed"], [], ["passed"]]


def test_the_first_failing_turn_ends_it_after_all_its_assertions():
    state = state_of(line("a", "x", "ok", "y"), line("b", "ok"))
    assert held(state, Reply("ok"), Reply("ok")) == Outcome("failed", "agent")  # N10, N17
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
    assert held(state_of(line("a", *assertions), line("b")), Reply("ok")) == outcome  # N10, N17


def test_what_the_agent_breaks_with_is_kept_on_its_turn():
    state = state_of(line("a", "ok"), line("b", "ok"), line("c"))
    with pytest.raises(AgentFailed):
        held(state, Reply("ok"), AgentFailed("out of order"))
    assert [turn.error for turn in state.turns] == [None, "agent error: out of order"]
    assert state.turns[1].reply is None


def test_a_turn_is_told_when_it_begins_and_when_it_ends():
    told: list[tuple[int, bool]] = []
    state = state_of(line("a"), line("b"))
    with pytest.raises(AgentFailed):
        held(
            state, Reply("x"), AgentFailed("no"), watch=lambda turn: told.append((turn.number, turn.reply is not None))
        )
    assert told == [(1, False), (1, True), (2, False), (2, False)]


def test_what_is_set_can_be_said_later():
    """From data, from JSON in the text; several values are a list; what is not found stays unset."""
    lines = (
        line("a", variables={"one": "$.n", "many": "$.l[*]", "none": "$.absent"}),
        line("b", variables={"two": "m"}),
        line("c"),
    )
    state = state_of(*lines)
    held(state, Reply(data={"n": 1, "l": [1, 2]}), Reply('```json\n{"m": "x"}\n```'), Reply("no JSON"))
    assert state.variables == {"one": 1, "many": [1, 2], "two": "x"}  # N21
    assert list(state.unset_variables) == ["none"]
    assert len(state.warnings) == 1


def goal(*names: str, **fields: Any) -> Goal:
    return Goal(tuple(Checkpoint(name, Assertion(Says(name), on="reply_and_tools"), **fields) for name in names))


def test_a_goal_is_looked_for_once_the_planned_lines_are_said():
    """While planned lines are to come the goal cannot end it."""
    state = state_of(line("a"), line("b"), goal=goal("ok"))
    assert held(state, Reply("ok"), Reply("ok")) is None
    assert len(state.turns) == 2
    assert state.checkpoints["ok"].turn == 2


def test_checkpoints_that_are_missing_when_the_user_is_done_are_a_failure():
    state = state_of(line("a"), goal=goal("x", "ok", "y"))
    assert held(state, Reply("ok")) == Outcome("failed", "agent", "missing checkpoints: x, y")  # N16
    assert state.checkpoints["ok"].turn == 1


def test_a_declaration_ends_it_and_max_turns_do():
    done = state_of(line("a"), goal=goal("x"))
    assert held(done, Reply("no", declared_state="done")) == Outcome("failed", "agent", "missing checkpoints: x")  # N15
    used = state_of(line("a"), goal=goal("x"), max_turns=1)
    assert held(used, Reply("no")) == Outcome("failed", "agent", "max turns (1) exceeded")  # N16


def test_steps_before_a_persona_do_not_count_as_its_turns():
    """P2: the goal is looked for after the last of them, and `max_turns` begin there."""
    goal = Goal((Checkpoint("a", Assertion(Says("here"))),))
    lines = tuple(line(text) for text in "abcd")
    case = Case(id="c", user=Script(lines[:2]), goal=goal, limits=Limits(max_turns=1, setup_turns=2))
    state = TrialState(case, Key("s", "c"), NoHelpers(), FrozenClock())
    user = UserSequence(Script(lines[:2]), Unplanned(lines[2:]))

    async def send(_said: UserMessage) -> Reply:
        return Reply("no")

    ended = driven(run_conversation(state, user, send, lambda _turn: None))
    assert ended == Outcome("failed", "agent", "max turns (1) exceeded")
    assert [turn.user_message.message.text for turn in state.turns] == ["a", "b", "c"]
    assert case.limits.total_turns == 3


class Unplanned:
    """Says lines that nobody knows of before."""

    planned_messages: Sequence[UserMessage] = ()
    simulator: str | None = "somebody"

    def __init__(self, said: Sequence[UserMessage]) -> None:
        self._said = said

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        for each in self._said:
            yield each

"""A person over a script, over a simulator, and alone."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import structs

from viva.engine.conversation import run_conversation
from viva.engine.outcome import Outcome, outcome_of_checks, outcome_of_missing_input
from viva.engine.trial import Deadline
from viva.errors import Role
from viva.model.case import Assertion, Case, Checkpoint, Goal, Interactive, Key, OnMissingInput, UserMessage
from viva.model.message import File, Message, Reply, Text
from viva.model.turn import PASSED, Verdict
from viva.protocols import PersonChoice, PersonQuestion, User
from viva.state.trial_state import CheckContext, TrialState
from viva.testing.check_context import NoHelpers
from viva.users.person import STOPPED_MESSAGE, Person
from viva.users.script import Script
from viva.users.simulator import Simulator

ACCEPT, STOP, SIMULATE = PersonChoice("accept"), PersonChoice("stop"), PersonChoice("simulate")


class Holds:
    """A check that always holds."""

    costly = False
    label = "holds"

    def check(self, context: CheckContext) -> Verdict:
        return PASSED


class Never:
    """A check that never holds."""

    costly = False
    label = "never"

    def check(self, context: CheckContext) -> Verdict:
        return Verdict("failed", "not yet")


ASSERTION = Assertion(Holds(), {"type": "contains", "value": "x"})


class Clock:
    """Knows whether it stands still."""

    paused = False

    @asynccontextmanager
    async def pause(self) -> AsyncGenerator[None]:
        self.paused = True
        try:
            yield
        finally:
            self.paused = False


class Answers:
    """A person whose choices are known before; who has none left is gone for lunch."""

    def __init__(self, *choices: PersonChoice) -> None:
        self._choices = iter(choices)
        self.proposed: list[str | None] = []
        self.simulators: list[str | None] = []
        self.seen: list[tuple[bool, str]] = []
        self.told: list[str] = []

    async def ask(self, question: PersonQuestion) -> PersonChoice:
        state = question.state
        self.proposed.append(question.proposed.message.text if question.proposed else None)
        self.simulators.append(question.simulator)
        assert isinstance(state.clock, Clock)
        self.seen.append((state.clock.paused, state.waiting_for))
        choice = next(self._choices, None)
        if choice is None:
            assert state.case.interactive.timeout_s is not None, "asked once too often"
            await asyncio.Event().wait()
        assert choice is not None
        return choice

    def show_notice(self, text: str) -> None:
        self.told.append(text)


class Helper:
    """A simulator with canned answers that remembers what it was told, and on which clock."""

    may_repeat = True
    must_quote = False
    metadata: Mapping[str, Any] = {}

    def __init__(self, *answers: str | Mapping[str, Any]) -> None:
        self._answers = iter(answers)
        self.heard: list[str] = []
        self.paused: list[bool] = []
        self.closed = False
        self._state: TrialState | None = None

    @asynccontextmanager
    async def open(
        self, role: Role, agent: str, state: TrialState | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator["Helper"]:
        self._state = state
        try:
            yield self
        finally:
            self.closed = True

    async def ask(self, text: str, parse: Callable[[Reply], Any], metadata: Mapping[str, Any] | None = None) -> Any:
        assert self._state is not None
        assert isinstance(self._state.clock, Clock)
        self.heard.append(text)
        self.paused.append(self._state.clock.paused)
        answer = next(self._answers)
        return parse(Reply(answer) if isinstance(answer, str) else Reply(data=answer))


class Saved:
    """Remembers what was to be saved where."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def save(self, file: str, state: TrialState, said: Sequence[UserMessage]) -> str:
        self.calls.append((file, [line.message.text for line in said]))
        return f"saved {len(said)}"


def line(text: str, **more: Any) -> UserMessage:
    return UserMessage(Message("user", text), **more)


def asking(text: str) -> Reply:
    return Reply(text, declared_state="awaiting")


async def hold(
    user: User,
    *replies: Reply,
    helper: Helper | None = None,
    goal: Goal | None = None,
    on_missing_input: OnMissingInput | None = None,
    timeout_s: float | None = None,
) -> tuple[TrialState, Outcome]:
    """A conversation with canned replies, and what becomes of it."""
    case = Case(
        id="case",
        user=user,
        goal=goal or Goal(),
        on_missing_input=on_missing_input,
        interactive=Interactive(timeout_s=timeout_s),
    )
    state = TrialState(case, Key("suite", "case"), helper or NoHelpers(), Clock())
    state.variables["order"] = "W1"
    given = iter(replies)

    async def send(_: UserMessage) -> Reply:
        return next(given)

    outcome = await run_conversation(state, user, send, lambda _: None)
    assert helper is None or helper.closed == bool(helper.heard)  # nobody is left waiting
    return state, outcome or outcome_of_missing_input(state) or outcome_of_checks(state)


def held(user: User, *replies: Reply, **more: Any) -> tuple[TrialState, Outcome]:
    return asyncio.run(hold(user, *replies, **more))


def said(state: TrialState) -> list[tuple[str, str]]:
    return [(turn.user_message.message.text, turn.user_message.source) for turn in state.turns]


def over_script(asking: Answers, *lines: UserMessage, saved: Saved | None = None) -> Person:
    return Person(Script(lines, has_variables=True), asking, (saved or Saved()).save)


def over_simulator(asking: Answers, *lines: UserMessage) -> Person:
    return Person(Simulator("sim", {"metadata": {"goal": "a refund"}}, lines), asking, Saved().save)


def test_an_accepted_line_is_said_as_it_is() -> None:
    """Enter sends the script's own line, which keeps its source and its claims."""
    answers = Answers(ACCEPT)
    state, outcome = held(over_script(answers, line("hello", assertions=(ASSERTION,))), Reply("hi"))
    assert said(state) == [("hello", "static")]
    assert answers.proposed == ["hello"]
    assert answers.simulators == [None]
    assert len(state.turns[0].results) == 1
    assert outcome.status == "passed"


def test_words_of_a_person_take_the_place_of_a_line() -> None:
    """What belongs to the line stays (claims, options, what it sets, attachments), and the next line is the next one."""
    receipt = File("file://receipt.png", url="data:,x")
    written = line("hello", assertions=(ASSERTION,), options={"mode": "x"}, variables={"id": "$.id"}, timeout_s=3.0)
    written = structs.replace(written, message=Message("user", (Text("hello"), receipt)))
    answers = Answers(PersonChoice("say", "good morning"), ACCEPT)
    state, _ = held(over_script(answers, written, line("bye")), Reply("hi"), Reply("bye"))
    assert said(state) == [("good morning", "interactive"), ("bye", "static")]
    first = state.turns[0].user_message
    assert first.message.content == (Text("good morning"), receipt)
    assert (first.assertions, first.options, first.variables, first.timeout_s) == (
        written.assertions,
        written.options,
        written.variables,
        written.timeout_s,
    )
    assert answers.proposed == ["hello", "bye"]


def test_a_person_is_asked_when_the_lines_run_out_and_the_agent_waits() -> None:
    """The talk goes on as long as the agent waits, and ends by itself when it does not."""
    answers = Answers(ACCEPT, PersonChoice("say", "travel"))
    state, _ = held(over_script(answers, line("hello")), asking("Which type?"), Reply("Done.", declared_state="done"))
    assert said(state) == [("hello", "static"), ("travel", "interactive")]
    assert answers.proposed == ["hello", None]


def test_nobody_is_asked_after_a_closing_offer() -> None:
    """An agent that only asks whether there is anything else has finished its task (N22)."""
    answers = Answers(ACCEPT)
    state, _ = held(over_script(answers, line("hello")), Reply("Done. Is there anything else I can help you with?"))
    assert state.last_turn is not None
    assert state.last_turn.awaiting is not None
    assert state.last_turn.awaiting.reason == "closing_offer"
    assert answers.proposed == ["hello"]


def test_a_person_is_asked_before_a_simulator_is() -> None:
    """The case's own first line is proposed; after that no line is made, or paid for, that nobody asked for."""
    answers, helper = Answers(ACCEPT, PersonChoice("say", "travel"), STOP), Helper("never said")
    user = over_simulator(answers, line("hello", source="initial"))
    state, _ = held(user, asking("Which type?"), asking("How much?"), helper=helper)
    assert said(state) == [("hello", "initial"), ("travel", "interactive")]
    assert answers.proposed == ["hello", None, None]
    assert answers.simulators == [None, "sim", "sim"]
    assert helper.heard == []


def test_a_simulator_proposes_once_it_is_asked() -> None:
    """What it says can be accepted or replaced like any line; it cannot be asked twice for the same turn."""
    answers = Answers(SIMULATE, ACCEPT, SIMULATE, PersonChoice("say", "no, meals"), STOP)
    helper = Helper("travel", "lodging")
    state, _ = held(over_simulator(answers), asking("Which type?"), asking("How much?"), helper=helper)
    assert said(state) == [("travel", "simulated"), ("no, meals", "interactive")]
    assert answers.proposed == [None, "travel", None, "lodging", None]
    assert answers.simulators == ["sim", None, "sim", None, "sim"]
    assert helper.closed


def test_a_simulator_hears_what_was_said_in_its_place() -> None:
    """Asked late, it is told who it is and all that was said; asked again, what a person said since."""
    answers = Answers(
        PersonChoice("say", "hello"),
        PersonChoice("say", "travel"),
        SIMULATE,
        ACCEPT,
        PersonChoice("say", "$20"),
        SIMULATE,
    )
    helper = Helper("it was lunch", "yes")
    replies = [asking(text) for text in ("Which type?", "What for?", "How much?", "Sure?")]
    held(over_simulator(answers), *replies, helper=helper, timeout_s=0.01)
    first, second = helper.heard
    assert "Goal: a refund" in first
    assert "You have said: hello" in first
    assert "The assistant answered: What for?" in first
    assert "Goal" not in second
    assert "hello" not in second
    assert "You have said: $20" in second


def test_a_simulator_that_sees_its_goal_reached_ends_the_conversation() -> None:
    """Its word is no line to be accepted, even if the agent still waits (N15)."""
    answers, helper = (
        Answers(PersonChoice("say", "hello"), SIMULATE),
        Helper({"goal_achieved": True, "reasoning": "refunded"}),
    )
    state, _ = held(over_simulator(answers), asking("Anything to add?"), helper=helper)
    assert state.goal_reason == "refunded"
    assert state.missing_input is None
    assert said(state) == [("hello", "interactive")]


def test_stopping_before_all_was_said_is_neither_a_pass_nor_a_failure() -> None:
    """The checks so far held, but the script was not finished: skipped, unless `on_missing_input` says otherwise (N18)."""

    def stopped(decides: OnMissingInput | None) -> Outcome:
        user = over_script(Answers(ACCEPT, STOP), line("a", assertions=(ASSERTION,)), line("b"))
        return held(user, Reply("x"), on_missing_input=decides)[1]

    assert stopped(None) == stopped("skip") == Outcome("skipped", None, STOPPED_MESSAGE)
    assert stopped("fail") == Outcome("failed", "undetermined", STOPPED_MESSAGE)
    assert stopped("end").status == "passed"


def test_stopping_is_no_failure_of_the_agent_where_checkpoints_are_missing() -> None:
    """Nobody knows whether the agent would have reached them, unless the case says that it ends there (N17)."""
    goal = Goal((Checkpoint("done", Assertion(Never())),))

    def stopped(decides: OnMissingInput | None) -> Outcome:
        user = over_simulator(Answers(ACCEPT, STOP), line("hello"))
        return held(user, asking("Which type?"), helper=Helper(), goal=goal, on_missing_input=decides)[1]

    assert stopped(None) == Outcome("skipped", None, STOPPED_MESSAGE)
    assert stopped("end") == Outcome.failed("missing checkpoints: done")


def test_stopping_after_all_was_said_changes_nothing() -> None:
    """The script is finished and the agent waits: the rules for turns used up decide (N11)."""
    state, outcome = held(over_script(Answers(ACCEPT, STOP), line("a", assertions=(ASSERTION,))), asking("And?"))
    assert state.missing_input is None
    assert outcome.status == "passed"


def test_a_person_who_does_not_answer_in_time_gives_no_input() -> None:
    """`interactive.timeout` bounds one question; then `on_missing_input` decides, skip if it is not set (N18)."""

    def unanswered(decides: OnMissingInput | None) -> Outcome:
        user = over_script(Answers(ACCEPT), line("a", assertions=(ASSERTION,)), line("b"))
        return held(user, Reply("x"), on_missing_input=decides, timeout_s=0.01)[1]

    assert unanswered(None) == Outcome("skipped", None, "no answer from the person within 10ms")
    assert unanswered("fail").status == "failed"
    assert unanswered("end").status == "passed"


def test_the_case_has_no_less_time_because_a_person_thinks() -> None:
    """Its clock stands still while we wait for the person, and runs while we wait for the simulator (N18)."""
    answers, helper = Answers(PersonChoice("say", "hello"), SIMULATE, ACCEPT, STOP), Helper("travel")
    state, _ = held(over_simulator(answers), asking("Which?"), asking("How much?"), helper=helper)
    assert answers.seen == [(True, "person")] * 4
    assert helper.paused == [False]
    assert state.waiting_for == "agent"


def test_a_paused_deadline_is_due_later() -> None:
    """The time that is left when the pause begins is left when it ends."""

    async def paused() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60) as limit:
            due = limit.when()
            async with Deadline(limit).pause():
                assert limit.when() is None
                began = loop.time()
                while loop.time() == began:
                    await asyncio.sleep(0)
            after = limit.when()
            assert due is not None
            assert after is not None
            assert due < after < due + 60

    asyncio.run(paused())


def test_a_conversation_is_saved_with_its_lines_as_they_were_written() -> None:
    """An accepted line keeps its {{variable}}; the person is told what came of it and asked again."""
    saved, answers = (
        Saved(),
        Answers(PersonChoice("save", "a"), ACCEPT, PersonChoice("say", "soon"), PersonChoice("save", "b"), STOP),
    )
    user = over_script(answers, line("Where is {{order}}?"), line("When?"), line("Bye"), saved=saved)
    state, _ = held(user, Reply("On its way."), Reply("Friday."))
    assert [text for text, _ in said(state)] == ["Where is W1?", "soon"]
    assert saved.calls == [("a", []), ("b", ["Where is {{order}}?", "soon"])]
    assert answers.told == ["saved 0", "saved 2"]
    assert answers.proposed == ["Where is W1?", "Where is W1?", "When?", "Bye", "Bye"]


def test_a_person_alone_talks_until_they_stop() -> None:
    """Nobody proposes anything, and the agent need not wait; there is nothing to accept and nobody to ask."""
    answers = Answers(ACCEPT, SIMULATE, PersonChoice("say", "hello"), PersonChoice("say", "bye"), STOP)
    user = Person(None, answers, Saved().save)
    state, outcome = held(user, Reply("Hi."), Reply("Bye.", declared_state="done"))
    assert said(state) == [("hello", "interactive"), ("bye", "interactive")]
    assert answers.proposed == [None] * 5
    assert answers.simulators == [None] * 5
    assert state.missing_input is None
    assert outcome.status == "skipped"  # nothing was checked
    assert list(user.planned_messages) == []
    assert user.simulator is None


def test_a_person_stands_for_the_one_below() -> None:
    """The engine sees the lines that are planned and the simulator's name as without a person."""
    user = over_simulator(Answers(), line("hello"))
    assert [each.message.text for each in user.planned_messages] == ["hello"]
    assert user.simulator == "sim"

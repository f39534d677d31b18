"""A person with a script, with a simulator, and alone."""

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
    """Knows whether it is paused."""

    paused = False
    is_over = False

    @asynccontextmanager
    async def pause(self) -> AsyncGenerator[None]:
        self.paused = True
        try:
            yield
        finally:
            self.paused = False


class Answers:
    """A person with canned choices; after the last one they do not answer."""

    def __init__(self, *choices: PersonChoice) -> None:
        self._choices = iter(choices)
        self.proposed: list[str | None] = []
        self.simulators: list[str | None] = []
        self.seen: list[tuple[bool, str]] = []
        self.notices: list[str] = []

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
        self.notices.append(text)


class Helper:
    """A simulator with canned answers that stores its prompts, and whether the clock was paused."""

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
    """Stores what was saved where."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def save(self, file: str, state: TrialState, sent: Sequence[UserMessage]) -> str:
        self.calls.append((file, [message.message.text for message in sent]))
        return f"saved {len(sent)}"


def message(text: str, **more: Any) -> UserMessage:
    return UserMessage(Message("user", text), **more)


def asking(text: str) -> Reply:
    return Reply(text, declared_state="awaiting")


async def run_case(
    user: User,
    *replies: Reply,
    helper: Helper | None = None,
    goal: Goal | None = None,
    on_missing_input: OnMissingInput | None = None,
    timeout_s: float | None = None,
) -> tuple[TrialState, Outcome]:
    """Runs a conversation with canned replies; returns its state and outcome."""
    case = Case(
        id="case",
        user=user,
        goal=goal or Goal(),
        on_missing_input=on_missing_input,
        interactive=Interactive(timeout_s=timeout_s),
    )
    state = TrialState(case, Key("suite", "case"), helper or NoHelpers(), Clock())
    state.variables["order"] = "W1"
    remaining = iter(replies)

    async def send(_: UserMessage) -> Reply:
        return next(remaining)

    outcome = await run_conversation(state, user, send, lambda _: None)
    assert helper is None or helper.closed == bool(helper.heard)  # the session is closed
    return state, outcome or outcome_of_missing_input(state) or outcome_of_checks(state)


def run(user: User, *replies: Reply, **more: Any) -> tuple[TrialState, Outcome]:
    return asyncio.run(run_case(user, *replies, **more))


def sent(state: TrialState) -> list[tuple[str, str]]:
    return [(turn.user_message.message.text, turn.user_message.source) for turn in state.turns]


def with_script(asking: Answers, *lines: UserMessage, saved: Saved | None = None) -> Person:
    return Person(Script(lines, has_variables=True), asking, (saved or Saved()).save)


def with_simulator(asking: Answers, *lines: UserMessage) -> Person:
    return Person(Simulator("sim", {"metadata": {"goal": "a refund"}}, lines), asking, Saved().save)


def test_an_accepted_message_is_sent_unchanged() -> None:
    """Enter sends the script's message, with its source and assertions."""
    answers = Answers(ACCEPT)
    state, outcome = run(with_script(answers, message("hello", assertions=(ASSERTION,))), Reply("hi"))
    assert sent(state) == [("hello", "static")]
    assert answers.proposed == ["hello"]
    assert answers.simulators == [None]
    assert len(state.turns[0].results) == 1
    assert outcome.status == "passed"


def test_a_person_replaces_the_text_of_a_message() -> None:
    """Its assertions, options, variables and attachments stay; the next message is the next of the script."""
    receipt = File("file://receipt.png", url="data:,x")
    original = message("hello", assertions=(ASSERTION,), options={"mode": "x"}, variables={"id": "$.id"}, timeout_s=3.0)
    original = structs.replace(original, message=Message("user", (Text("hello"), receipt)))
    answers = Answers(PersonChoice("say", "good morning"), ACCEPT)
    state, _ = run(with_script(answers, original, message("bye")), Reply("hi"), Reply("bye"))
    assert sent(state) == [("good morning", "interactive"), ("bye", "static")]
    first = state.turns[0].user_message
    assert first.message.content == (Text("good morning"), receipt)
    assert (first.assertions, first.options, first.variables, first.timeout_s) == (
        original.assertions,
        original.options,
        original.variables,
        original.timeout_s,
    )
    assert answers.proposed == ["hello", "bye"]


def test_a_person_is_asked_when_no_message_is_left_and_the_agent_awaits_input() -> None:
    """The conversation continues while the agent awaits input, and ends when it does not."""
    answers = Answers(ACCEPT, PersonChoice("say", "travel"))
    state, _ = run(with_script(answers, message("hello")), asking("Which type?"), Reply("Done.", declared_state="done"))
    assert sent(state) == [("hello", "static"), ("travel", "interactive")]
    assert answers.proposed == ["hello", None]


def test_a_person_is_not_asked_after_a_closing_offer() -> None:
    """An agent that only asks whether there is anything else has finished its task (N22)."""
    answers = Answers(ACCEPT)
    state, _ = run(with_script(answers, message("hello")), Reply("Done. Is there anything else I can help you with?"))
    assert state.last_turn is not None
    assert state.last_turn.awaiting is not None
    assert state.last_turn.awaiting.reason == "closing_offer"
    assert answers.proposed == ["hello"]


def test_a_person_is_asked_before_the_simulator() -> None:
    """The case's first message is proposed; after that no message is generated, or paid for, unasked."""
    answers, helper = Answers(ACCEPT, PersonChoice("say", "travel"), STOP), Helper("never said")
    user = with_simulator(answers, message("hello", source="initial"))
    state, _ = run(user, asking("Which type?"), asking("How much?"), helper=helper)
    assert sent(state) == [("hello", "initial"), ("travel", "interactive")]
    assert answers.proposed == ["hello", None, None]
    assert answers.simulators == [None, "sim", "sim"]
    assert helper.heard == []


def test_a_simulator_proposes_a_message_when_it_is_asked() -> None:
    """Its message can be accepted or replaced; it is asked once per turn."""
    answers = Answers(SIMULATE, ACCEPT, SIMULATE, PersonChoice("say", "no, meals"), STOP)
    helper = Helper("travel", "lodging")
    state, _ = run(with_simulator(answers), asking("Which type?"), asking("How much?"), helper=helper)
    assert sent(state) == [("travel", "simulated"), ("no, meals", "interactive")]
    assert answers.proposed == [None, "travel", None, "lodging", None]
    assert answers.simulators == ["sim", None, "sim", None, "sim"]
    assert helper.closed


def test_a_simulator_sees_what_the_person_said() -> None:
    """The first time it gets the persona and all turns; later only what the person said since."""
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
    run(with_simulator(answers), *replies, helper=helper, timeout_s=0.01)
    first, second = helper.heard
    assert "Goal: a refund" in first
    assert "You have said: hello" in first
    assert "The assistant answered: What for?" in first
    assert "Goal" not in second
    assert "hello" not in second
    assert "You have said: $20" in second


def test_a_simulator_ends_the_conversation_when_its_goal_is_achieved() -> None:
    """Its verdict is no message to accept, even if the agent still awaits input (N15)."""
    answers, helper = (
        Answers(PersonChoice("say", "hello"), SIMULATE),
        Helper({"goal_achieved": True, "reasoning": "refunded"}),
    )
    state, _ = run(with_simulator(answers), asking("Anything to add?"), helper=helper)
    assert state.goal_reason == "refunded"
    assert state.missing_input is None
    assert sent(state) == [("hello", "interactive")]


def test_stopping_with_messages_left_is_neither_a_pass_nor_a_failure() -> None:
    """The checks so far held, but the script was not finished: skipped, unless `on_missing_input` says otherwise (N18)."""

    def stopped(action: OnMissingInput | None) -> Outcome:
        user = with_script(Answers(ACCEPT, STOP), message("a", assertions=(ASSERTION,)), message("b"))
        return run(user, Reply("x"), on_missing_input=action)[1]

    assert stopped(None) == stopped("skip") == Outcome("skipped", None, STOPPED_MESSAGE)
    assert stopped("fail") == Outcome("failed", "undetermined", STOPPED_MESSAGE)
    assert stopped("end").status == "passed"


def test_stopping_is_not_a_failure_of_the_agent_where_checkpoints_are_missing() -> None:
    """The agent might have reached them, unless the case says that it ends there (N17)."""
    goal = Goal((Checkpoint("done", Assertion(Never())),))

    def stopped(action: OnMissingInput | None) -> Outcome:
        user = with_simulator(Answers(ACCEPT, STOP), message("hello"))
        return run(user, asking("Which type?"), helper=Helper(), goal=goal, on_missing_input=action)[1]

    assert stopped(None) == Outcome("skipped", None, STOPPED_MESSAGE)
    assert stopped("end") == Outcome.failed("missing checkpoints: done")


def test_stopping_after_the_last_message_changes_nothing() -> None:
    """The script is finished and the agent waits: the rules for turns used up decide (N11)."""
    state, outcome = run(with_script(Answers(ACCEPT, STOP), message("a", assertions=(ASSERTION,))), asking("And?"))
    assert state.missing_input is None
    assert outcome.status == "passed"


def test_a_person_who_does_not_answer_in_time_is_missing_input() -> None:
    """`interactive.timeout` bounds one question; then `on_missing_input` decides, skip if it is not set (N18)."""

    def unanswered(action: OnMissingInput | None) -> Outcome:
        user = with_script(Answers(ACCEPT), message("a", assertions=(ASSERTION,)), message("b"))
        return run(user, Reply("x"), on_missing_input=action, timeout_s=0.01)[1]

    assert unanswered(None) == Outcome("skipped", None, "no answer from the person within 10ms")
    assert unanswered("fail").status == "failed"
    assert unanswered("end").status == "passed"


def test_the_time_limit_is_paused_while_a_person_thinks() -> None:
    """It is paused while the trial waits for the person, not for the simulator (N18)."""
    answers, helper = Answers(PersonChoice("say", "hello"), SIMULATE, ACCEPT, STOP), Helper("travel")
    state, _ = run(with_simulator(answers), asking("Which?"), asking("How much?"), helper=helper)
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


def test_a_conversation_is_saved_with_its_messages_as_written() -> None:
    """An accepted message keeps its {{variable}}; the person gets a notice and is asked again."""
    saved, answers = (
        Saved(),
        Answers(PersonChoice("save", "a"), ACCEPT, PersonChoice("say", "soon"), PersonChoice("save", "b"), STOP),
    )
    user = with_script(answers, message("Where is {{order}}?"), message("When?"), message("Bye"), saved=saved)
    state, _ = run(user, Reply("On its way."), Reply("Friday."))
    assert [text for text, _ in sent(state)] == ["Where is W1?", "soon"]
    assert saved.calls == [("a", []), ("b", ["Where is {{order}}?", "soon"])]
    assert answers.notices == ["saved 0", "saved 2"]
    assert answers.proposed == ["Where is W1?", "Where is W1?", "When?", "Bye", "Bye"]


def test_a_person_alone_speaks_until_they_stop() -> None:
    """Nothing is proposed, and the agent need not await input; there is nothing to accept and no simulator."""
    answers = Answers(ACCEPT, SIMULATE, PersonChoice("say", "hello"), PersonChoice("say", "bye"), STOP)
    user = Person(None, answers, Saved().save)
    state, outcome = run(user, Reply("Hi."), Reply("Bye.", declared_state="done"))
    assert sent(state) == [("hello", "interactive"), ("bye", "interactive")]
    assert answers.proposed == [None] * 5
    assert answers.simulators == [None] * 5
    assert state.missing_input is None
    assert outcome.status == "skipped"  # nothing was checked
    assert list(user.planned_messages) == []
    assert user.simulator is None


def test_a_person_has_the_planned_messages_and_simulator_of_the_inner_user() -> None:
    """The engine sees them as without a person."""
    user = with_simulator(Answers(), message("hello"))
    assert [each.message.text for each in user.planned_messages] == ["hello"]
    assert user.simulator == "sim"

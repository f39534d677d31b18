"""Helpers: their metadata, the second request, the fault, and what a timeout is charged to."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from msgspec import structs

from viva.engine.helpers import HelperPool
from viva.engine.outcome import outcome_of_fault
from viva.errors import AgentFailed, HelperFailed, Role, RunStopped, TrialFault, Unreachable
from viva.llm.transport import HttpTransport
from viva.model.case import Feature
from viva.model.message import Message, ModelCall, Reply
from viva.model.turn import Traceback
from viva.protocols import Agent, SessionContext
from viva.session.agents import ConfiguredAgent
from viva.testing.check_context import make_trial_state

Say = Callable[[Message, Mapping[str, Any]], Any]


class Helper:
    """An agent that replies with the result of a function, and stores how it was opened."""

    provides: frozenset[Feature] = frozenset()

    def __init__(self, say: Say, *, may_repeat: bool = False, must_quote: bool = False) -> None:
        self._say = say
        self.may_repeat = may_repeat
        self.must_quote = must_quote
        self.contexts: list[SessionContext] = []
        self.sent: list[tuple[str, Mapping[str, Any]]] = []

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["Helper"]:
        self.contexts.append(context)
        yield self

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        self.sent.append((message.text, options))
        content = self._say(message, options)
        return Reply(await content if asyncio.iscoroutine(content) else content)


def helper_pool_of(helper: Agent, meter: Callable[[ModelCall], None] | None = None) -> HelperPool:
    return HelperPool(
        lambda name, role: ConfiguredAgent(name=name, agent=helper, kind="object"), HttpTransport(), {}, meter
    )


def not_empty(reply: Reply) -> str:
    if not reply.content:
        raise ValueError("it is empty")
    return reply.content


def test_a_helper_gets_the_metadata_of_the_specification():  # N28
    helper = Helper(lambda message, options: "ok", must_quote=True)
    state = make_trial_state("Hi", metadata={"scenario": "x", "criteria": "the case's"})
    state.case = structs.replace(state.case, history=(Message("user", "before"),))

    async def scenario() -> str:
        given = {"metadata": {"criteria": "c"}, "connector": "big"}
        async with helper_pool_of(helper).open("judge", "v", state, given) as session:
            assert (session.may_repeat, session.must_quote) == (False, True)
            return await session.ask("?", not_empty, {"turn_number": 2})

    assert asyncio.run(scenario()) == "ok"
    assert helper.sent == [
        (
            "?",
            {
                "skip": {"history": True},
                "referer": "agent-test",
                "connector": "big",
                "metadata": {
                    "scenario": "x", "criteria": "c", "test_mode": "validator", "test_id": "case", "turn_number": 2,
                        "turn_count": 2, "max_turns": 20, "last_response": "Hi", "tool_results": {}, "session_id": "",
                },
            },
        )
    ]  # fmt: skip
    (context,) = helper.contexts
    assert context.conversation is not None
    assert [message.text for message in context.conversation()] == ["before", "hello", "Hi"]
    assert (context.role, context.prior_count) == ("judge", 1)


def test_an_unusable_reply_is_requested_once_more_with_the_reason():  # N29
    answers = iter(["", "now"])
    helper = Helper(lambda message, options: next(answers))

    async def scenario() -> str:
        async with helper_pool_of(helper).open("simulator", "s") as session:
            return await session.ask("Say something", not_empty)

    assert asyncio.run(scenario()) == "now"
    (_, first), (text, second) = helper.sent
    assert text.startswith("Say something\n\nYour last answer cannot be used: it is empty.")
    assert ("problem" in first["metadata"], second["metadata"]["problem"]) == (False, "it is empty")


@pytest.mark.parametrize(
    ("raised", "message"), [(AgentFailed("boom"), "boom"), (Unreachable("gone"), "gone"), (None, "it is empty")]
)
def test_an_error_of_a_helper_is_its_fault(raised: TrialFault | None, message: str):  # N17
    def say(message: Message, options: Mapping[str, Any]) -> str:
        if raised is not None:
            raise raised
        return ""

    async def scenario() -> None:
        async with helper_pool_of(Helper(say)).open("simulator", "s", make_trial_state("Hi")) as session:
            await session.ask("?", not_empty)

    with pytest.raises(HelperFailed) as failed:
        asyncio.run(scenario())
    assert (failed.value.message, failed.value.fault) == (message, "simulator")
    assert outcome_of_fault(failed.value).message == f"simulator error: {message}"  # N16


@pytest.mark.parametrize("role", ["simulator", "judge"])
def test_a_helper_that_breaks_when_it_is_closed_is_to_blame(role: Role):  # N17
    class BreaksAtTheEnd(Helper):
        @asynccontextmanager
        async def open(self, context: SessionContext) -> AsyncGenerator[Helper]:
            yield self
            seen.append(state.waiting_for)
            assert not context.progress.warnings, "kept after the call already"
            raise AgentFailed("cannot close")

    def say(message: Message, options: Mapping[str, Any]) -> str:
        return "ok"

    seen: list[str] = []
    state = make_trial_state("Hi")

    async def scenario(fault: TrialFault | None) -> None:
        async with helper_pool_of(BreaksAtTheEnd(say)).open(role, "h", state) as session:
            await session.ask("?", not_empty)
            if fault is not None:
                raise fault

    with pytest.raises(HelperFailed) as failed:
        asyncio.run(scenario(None))
    assert (failed.value.message, failed.value.fault, seen) == ("cannot close", role, [role])
    with pytest.raises(AgentFailed, match="of the agent under test"):
        asyncio.run(scenario(AgentFailed("of the agent under test")))


def test_run_stopped_passes_through():
    def say(message: Message, options: Mapping[str, Any]) -> str:
        raise RunStopped("the budget is spent", is_budget=True)

    async def scenario() -> None:
        async with helper_pool_of(Helper(say)).open("judge", "v", make_trial_state("Hi")) as session:
            await session.ask("?", not_empty)

    with pytest.raises(RunStopped):
        asyncio.run(scenario())


def test_the_trial_waits_for_the_helpers_until_the_last_has_replied():  # N17
    """A timeout is charged to the helper that hung, although others have replied."""
    state = make_trial_state("Hi")
    seen: list[str] = []

    async def scenario() -> None:
        gates = [asyncio.Event() for _ in range(3)]

        async def say(number: int) -> str:
            await gates[number].wait()
            return "ok"

        helper = Helper(lambda message, options: say(int(message.text)))

        async def ask(number: int) -> None:
            async with helper_pool_of(helper).open("judge", "v", state) as session:
                await session.ask(str(number), not_empty)

        asking = [asyncio.create_task(ask(number)) for number in range(3)]
        for gate, task in zip(gates, asking, strict=True):
            await asyncio.sleep(0)
            seen.append(state.waiting_for)
            gate.set()
            await task
        seen.append(state.waiting_for)

    asyncio.run(scenario())
    assert seen == ["judge", "judge", "judge", "agent"]


def test_a_helper_that_was_cut_off_is_still_waited_for():  # N17
    state = make_trial_state("Hi")

    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    async def scenario() -> None:
        async with helper_pool_of(Helper(lambda message, options: never())).open("simulator", "s", state) as session:
            async with asyncio.timeout(0.01):
                await session.ask("?", not_empty)

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())
    assert (state.waiting_for, state.active_helpers) == ("simulator", 0)
    assert [call.error for call in state.helper_calls] == ["cut off"]


@pytest.mark.parametrize("role", ["simulator", "judge"])
def test_the_trial_waits_for_a_helper_that_is_being_opened(role: Role):  # N17, N38
    class OpensSlowly(Helper):
        @asynccontextmanager
        async def open(self, context: SessionContext) -> AsyncGenerator[Helper]:
            context.progress.tracebacks.append(Traceback("agent", "ValueError: no config"))
            seen.append(state.waiting_for)
            if not self.contexts:
                self.contexts.append(context)
                await asyncio.Event().wait()
            yield self

    seen: list[str] = []
    state = make_trial_state("Hi")
    pool = helper_pool_of(OpensSlowly(lambda message, options: "ok"))

    async def scenario() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01), pool.open(role, "h", state):
                pass
        seen.append(state.waiting_for)
        async with pool.open(role, "h", state):
            seen.append(state.waiting_for)

    asyncio.run(scenario())
    assert seen == [role, role, role, "agent"]
    assert [traceback.where for traceback in state.tracebacks] == [role, role]


def test_a_provider_failure_is_not_blamed_for_a_later_call():  # N17
    state = make_trial_state("Hi")
    seen: list[str | None] = []

    def say(message: Message, options: Mapping[str, Any]) -> str:
        helper.contexts[-1].progress.provider_trouble = message.text or None
        raise AgentFailed("down")

    helper = Helper(say)

    async def scenario() -> None:
        for text in ("HTTP 503", ""):
            async with helper_pool_of(helper).open("judge", "v", state) as session:
                with suppress(HelperFailed):
                    await session.ask(text, not_empty)
                seen.append(state.helper_provider_failure)

    asyncio.run(scenario())
    assert seen == ["HTTP 503", None]


@pytest.mark.parametrize(
    ("role", "room", "texts"),
    [
        ("judge", 1000, ("be polite", ["Polite?"], "yes")),
        ("judge", 9, ("be polite", ["Polite?"], "…")),  # the question and the metadata have used it up
        ("simulator", 1000, ("", [], "")),
    ],
)
def test_the_question_and_the_answer_of_a_judge_are_recorded_while_there_is_room(role: Role, room: int, texts: Any):
    state = make_trial_state("Hi")
    state.recordable_characters = room

    async def scenario() -> None:
        options = {"metadata": {"criteria": "be polite"}}
        async with helper_pool_of(Helper(lambda message, options: "yes")).open(role, "h", state, options) as session:
            await session.ask("Polite?", not_empty)

    asyncio.run(scenario())
    (call,) = state.helper_calls
    assert (call.criteria, [message.text for message in call.sent], call.answer.split(" ")[0]) == texts


def test_calls_of_helpers_count_for_the_trial_and_for_the_run():
    spent: list[ModelCall] = []
    call = ModelCall("m", "p", 1, 2)
    state = make_trial_state("Hi")
    helper = Helper(lambda message, options: "ok")

    async def scenario() -> None:
        async with helper_pool_of(helper, spent.append).open("judge", "v", state):
            helper.contexts[0].meter(call)

    asyncio.run(scenario())
    assert state.calls == spent == [call]


@pytest.mark.parametrize("role", ["simulator", "judge"])
@pytest.mark.parametrize("fails", [False, True])
def test_warnings_and_tracebacks_of_a_helper_are_kept_with_its_role(role: Role, fails: bool):  # N38
    state = make_trial_state("Hi")

    def say(message: Message, options: Mapping[str, Any]) -> str:
        progress = helper.contexts[0].progress
        progress.warnings.append(f"unknown key of {message.text[0]}")
        progress.tracebacks.append(Traceback("?", error="KeyError: 'x'"))
        if fails:
            raise AgentFailed("down")
        return "" if message.text == "a" else "ok"

    helper = Helper(say)

    async def scenario() -> None:
        async with helper_pool_of(helper).open(role, "h", state) as session:
            for text in "ab":
                with suppress(HelperFailed):
                    await session.ask(text, not_empty)

    asyncio.run(scenario())
    asked = ["a", "b"] if fails else ["a", "a", "b"]  # an empty reply is requested once more
    assert state.warnings == [f"{role}: unknown key of {text}" for text in asked]
    assert [each.where for each in state.tracebacks] == [role] * len(asked)

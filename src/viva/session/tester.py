"""`t`: notes what holds in a script test.

def test_policy(t, ctx):
    reply = ctx.call("assistants.expense", "How do I submit an expense?")
    t.assert_.contains(reply.content, "receipt")
    t.assert_.agent(reply, "workers.test.validator", {"metadata": {"criteria": "Explains the deadline"}})
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NoReturn

from msgspec import structs

from viva.check import build_assertion
from viva.engine.conversation import evaluate_assertion
from viva.model.case import Assertion, UserMessage
from viva.model.message import Message, Reply
from viva.model.turn import AssertionResult, Turn, Verdict
from viva.session.soft_assertions import PrecomputedCheck, SoftAssertions
from viva.state.trial_state import CheckContext, TrialState, reply_text

WaitForResult = Callable[[Coroutine[Any, Any, AssertionResult]], AssertionResult]
"""Blocks this thread until the loop has done something."""


class FailTest(BaseException):
    """A test has failed and shall not go on. Not an Exception: a test that catches those does not catch its own end."""


class SkipTest(BaseException):
    """A test shall not be held here."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class T:
    """Notes what holds in a script test. Its assertions are soft: they note, go on, and fail the test at its end.

    t.assert_.equal(reply.data["total"], 3500)     notes, and says whether it holds
    t.error("wrong currency")                      fails the test, which goes on
    t.fatal("cannot go on")                        fails the test, which ends here
    t.skip("only in winter")                       ends the test without a verdict
    t.log("took", reply.latency_ms, "ms")          is shown with the result
    """

    __test__ = False  # pytest shall not take it for a class of tests

    def __init__(self, state: TrialState, wait: WaitForResult) -> None:
        self._state = state
        self._wait = wait
        self.assert_ = SoftAssertions(partial(add_result, state), self._evaluate)

    @property
    def name(self) -> str:
        """The name of the test."""
        return self._state.case.id

    @property
    def failed(self) -> bool:
        """Has anything failed so far?"""
        return any(each.verdict.status == "failed" for each in collect_results(self._state))

    def log(self, *values: object) -> None:
        """Shown with the result, whatever it is."""
        self._state.notes.append(" ".join(map(str, values)))

    def error(self, *values: object) -> None:
        """Fails the test, which goes on."""
        add_failure(self._state, "error", " ".join(map(str, values)))

    def fatal(self, *values: object) -> NoReturn:
        """Fails the test, which ends here."""
        said = " ".join(map(str, values))
        add_failure(self._state, "fatal", said)
        raise FailTest(said)

    def skip(self, reason: str = "skipped by the test") -> NoReturn:
        """Ends the test without a verdict; what had failed before stands."""
        raise SkipTest(reason)

    def _evaluate(self, response: Any, definition: Mapping[str, Any]) -> Verdict:
        """The verdict of an assertion on a response, in the conversation that led to it."""
        assertion = build_assertion(definition, ".")
        turn = self._turn_of(response)
        self._state.waiting_for = "judge"
        result = self._wait(evaluate_assertion(assertion, CheckContext(self._around(turn), turn)))
        self._state.waiting_for = "script"
        add_result(self._state, result)
        for suggestion in result.verdict.suggestions:
            self.log("suggestion:", suggestion)
        return result.verdict

    def _around(self, turn: Turn) -> TrialState:
        """The conversation that a validator sees. Where nobody has said anything, it begins with the response."""
        history, turns = turn.user_message.history or (), [turn]
        if not self._state.turns and turn.reply is not None:
            history, turns = (Message("assistant", turn.reply.content, data=turn.reply.data),), []
        return structs.replace(self._state, case=structs.replace(self._state.case, history=history), turns=turns)

    def _turn_of(self, response: Any) -> Turn:
        """The turn that brought a response forth; for one that no agent gave, a turn of its own."""
        reply = response if isinstance(response, Reply) else _as_reply(response)
        for turn in reversed(self._state.turns):
            if turn.reply is not None and reply_text(turn.reply) == reply_text(reply):
                return turn
        last = self._state.last_turn
        return Turn(len(self._state.turns) + 1, last.user_message if last else UserMessage(Message("user")), reply)


def add_result(state: TrialState, each: AssertionResult) -> None:
    """With the turn that it is about: the last one, if there is one."""
    (state.turns[-1].results if state.turns else state.final_results).append(each)


def add_failure(state: TrialState, kind: str, said: str) -> None:
    """A failure that the test states itself."""
    add_result(state, AssertionResult(Assertion(PrecomputedCheck(kind), {"type": kind}), Verdict("failed", said)))


def collect_results(state: TrialState) -> list[AssertionResult]:
    """All that was judged in a talk, in order."""
    return [*state.final_results, *(each for turn in state.turns for each in turn.results)]


def _as_reply(response: Any) -> Reply:
    return Reply(response) if isinstance(response, str) else Reply(data=response)

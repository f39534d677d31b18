"""`t`: records results in a script test.

def test_policy(t, ctx):
    reply = ctx.call("assistants.expense", "How do I submit an expense?")
    t.assert_.contains(reply.content, "receipt")
    t.assert_.agent(reply, "workers.test.validator", {"metadata": {"criteria": "Explains the deadline"}})
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn

from msgspec import structs

from viva.check import build_assertion
from viva.engine.conversation import evaluate_assertion
from viva.errors import to_valid_text
from viva.model.case import Assertion, UserMessage
from viva.model.message import Message, Reply
from viva.model.turn import AssertionResult, Turn, Verdict
from viva.session.loop import EndTest
from viva.session.messages import AgentReply, build_agent_reply
from viva.session.scripts.soft_assertions import PrecomputedCheck, SoftAssertions
from viva.state.trial_state import CheckContext, TrialState, get_reply_text

WaitForResult = Callable[[Coroutine[Any, Any, AssertionResult]], AssertionResult]
"""Runs a coroutine on the loop of the run and blocks this thread until it ends."""


class FailTest(EndTest):
    """Ends a failed test."""


class SkipTest(EndTest):
    """Ends a test without a verdict."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TestReplies:
    """The replies that a test got, each with its turn: two turns may have the same text, and checks are about one of them."""

    __test__ = False  # not a test class for pytest

    def __init__(self) -> None:
        self._turns: list[tuple[AgentReply, Turn]] = []

    def add(self, turn: Turn) -> AgentReply:
        """The reply of a turn, for the test."""
        assert turn.reply is not None
        reply = build_agent_reply(turn.reply, turn.awaiting, turn.latency_ms)
        self._turns.append((reply, turn))
        return reply

    def find_turn(self, response: Any) -> Turn | None:
        return next((turn for reply, turn in self._turns if reply is response), None)


class T:
    """Records the results of a script test. Its assertions are soft: the test continues and fails at its end.

    t.assert_.equal(reply.data["total"], 3500)     records a result and returns whether it passed
    t.error("wrong currency")                      fails the test and continues
    t.fatal("cannot go on")                        fails the test and ends it
    t.skip("only in winter")                       ends the test without a verdict
    t.log("took", reply.latency_ms, "ms")          is shown with the result
    """

    __test__ = False  # not a test class for pytest

    def __init__(self, state: TrialState, wait: WaitForResult, replies: TestReplies | None = None) -> None:
        self._state = state
        self._wait = wait
        self._replies = replies or TestReplies()
        self.assert_ = SoftAssertions(partial(add_result, state), self._evaluate)

    @property
    def name(self) -> str:
        """The name of the test."""
        return self._state.case.id

    @property
    def failed(self) -> bool:
        """Has anything failed so far?"""
        return any(result.verdict.status == "failed" for result in collect_results(self._state))

    def log(self, *values: object) -> None:
        """Add a line to the log that is shown with the result."""
        self._state.notes.append(_join_values(values))

    def error(self, *values: object) -> None:
        """Fail the test and continue."""
        add_failure(self._state, "error", _join_values(values))

    def fatal(self, *values: object) -> NoReturn:
        """Fail the test and end it."""
        message = _join_values(values)
        add_failure(self._state, "fatal", message)
        raise FailTest(message)

    def skip(self, reason: str = "skipped by the test") -> NoReturn:
        """End the test without a verdict. Earlier failures stay."""
        raise SkipTest(reason)

    def _evaluate(self, response: Any, definition: Mapping[str, Any]) -> Verdict:
        """Evaluate an assertion on a response, in the conversation of the response, and record the result."""
        assertion = build_assertion(definition, ".")
        turn = self._find_turn_of_response(response)
        self._state.waiting_for = "judge"
        result = self._wait(evaluate_assertion(assertion, CheckContext(self._create_validator_state(turn), turn)))
        self._state.waiting_for = "script"
        add_result(self._state, result)
        for suggestion in result.verdict.suggestions:
            self.log("suggestion:", suggestion)
        return result.verdict

    def _create_validator_state(self, turn: Turn) -> TrialState:
        """The state with the conversation that a validator sees. In a test without turns, the response is its only message."""
        history, turns = turn.user_message.history or (), [turn]
        if not self._state.turns and turn.reply is not None:
            history, turns = (Message("assistant", turn.reply.content, data=turn.reply.data),), []
        return structs.replace(self._state, case=structs.replace(self._state.case, history=history), turns=turns)

    def _find_turn_of_response(self, response: Any) -> Turn:
        """The turn whose reply is this response, or has its text; a new turn if no agent gave it."""
        if (own := self._replies.find_turn(response)) is not None:
            return own
        if isinstance(response, Reply):
            reply = response
        else:
            reply = Reply(response) if isinstance(response, str) else Reply(data=response)
        for turn in reversed(self._state.turns):
            if turn.reply is not None and get_reply_text(turn.reply) == get_reply_text(reply):
                return turn
        last = self._state.last_turn
        return Turn(len(self._state.turns) + 1, last.user_message if last else UserMessage(Message("user")), reply)


def add_result(state: TrialState, result: AssertionResult) -> None:
    """Add a result to the last turn or, before the first turn, to the final results."""
    (state.turns[-1].results if state.turns else state.final_results).append(result)


def _join_values(values: Iterable[object]) -> str:
    return to_valid_text(" ".join(map(str, values)))


def add_failure(state: TrialState, kind: str, reason: str) -> None:
    """Add a failure that the test itself reports."""
    add_result(state, AssertionResult(Assertion(PrecomputedCheck(kind), {"type": kind}), Verdict("failed", reason)))


def collect_results(state: TrialState) -> list[AssertionResult]:
    """All results of a trial, in order."""
    return [*state.final_results, *(result for turn in state.turns for result in turn.results)]

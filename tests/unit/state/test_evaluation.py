"""One assertion: negation, errors, and what must not be caught."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import pytest
from msgspec import UNSET, Struct

from viva.errors import CheckError, HelperFailed, RunStopped
from viva.model.case import Assertion
from viva.model.message import ModelCall
from viva.model.turn import PASSED, AssertionResult, Verdict
from viva.state.evaluation import format_assertion_label, start_evaluation
from viva.state.trial_state import CheckContext
from viva.testing.check_context import make_check_context


class Answer(Struct, frozen=True):
    """A check that returns or raises a given verdict, at once or later."""

    verdict: Verdict | Exception
    costly: bool = False
    label: str = "answer"

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


class Later(Answer, frozen=True):
    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        return self._wait(super().check, context)

    async def _wait(
        self, check: Callable[[CheckContext], Verdict | Awaitable[Verdict]], context: CheckContext
    ) -> Verdict:
        await asyncio.sleep(0)
        found = check(context)
        assert isinstance(found, Verdict)
        return found


async def verdict_of(assertion: Assertion) -> Verdict:
    found = start_evaluation(assertion, make_check_context("x"))
    return (await found if inspect.isawaitable(found) else found).verdict


FAILED = Verdict("failed", "it is not", expected=1, actual=2)


@pytest.mark.parametrize("kind", [Answer, Later])
@pytest.mark.parametrize(
    ("verdict", "negate", "status", "reason"),
    [
        (PASSED, False, "passed", ""),
        (PASSED, True, "failed", "must not hold, but does: answer"),
        (Verdict("passed", "so it is"), True, "failed", "must not hold, but does: answer (so it is)"),
        (FAILED, False, "failed", "it is not"),
        (FAILED, True, "passed", "it is not"),
        (Verdict("error", "cannot tell"), False, "error", "cannot tell"),
        (Verdict("error", "cannot tell"), True, "error", "cannot tell"),
        (CheckError("no price"), False, "error", "no price"),
        (CheckError("no price"), True, "error", "no price"),
        (HelperFailed("judge", "judge hung"), True, "error", "judge hung"),
        (ZeroDivisionError("division by zero"), False, "error", "ZeroDivisionError: division by zero"),
        (KeyError(), True, "error", "KeyError"),
        (TimeoutError(), False, "error", "TimeoutError"),
    ],
)
def test_negate_inverts_verdicts_but_no_error(kind, verdict, negate, status, reason):  # N24
    found = asyncio.run(verdict_of(Assertion(kind(verdict), negate=negate)))
    assert (found.status, found.reason) == (status, reason)


def test_a_synchronous_check_gives_its_result_at_once():
    assertion = Assertion(Answer(PASSED))
    found = start_evaluation(assertion, make_check_context("x"))
    assert isinstance(found, AssertionResult)
    assert found.assertion is assertion
    assert found.verdict is PASSED


@pytest.mark.parametrize("kind", [Answer, Later])
def test_run_stopped_passes_through(kind):
    with pytest.raises(RunStopped):
        asyncio.run(verdict_of(Assertion(kind(RunStopped("budget spent")))))


@pytest.mark.parametrize(
    ("status", "score", "negated"),
    [("failed", 0.1, 0.9), ("passed", 0.9, 0.1), ("passed", 1.0, 0.0), ("passed", None, None), ("passed", 7.5, None)],
)
def test_a_negated_verdict_has_the_opposite_score(status, score, negated):  # N24
    found = asyncio.run(verdict_of(Assertion(Answer(Verdict(status, score=score)), negate=True)))
    assert (found.status, found.score) == ("failed" if status == "passed" else "passed", negated)
    error = Verdict("error", score=score)
    assert asyncio.run(verdict_of(Assertion(Answer(error), negate=True))) == error


def test_a_negated_failure_keeps_its_calls_but_not_expected_and_actual():
    costly = Verdict("failed", "no", expected=1, actual=2, calls=(ModelCall("m"),))
    found = asyncio.run(verdict_of(Assertion(Answer(costly), negate=True)))
    assert (found.expected, found.actual, found.calls) == (UNSET, UNSET, (ModelCall("m"),))


def test_the_label_of_a_negated_assertion_says_not():
    assert format_assertion_label(Assertion(Answer(PASSED))) == "answer"
    assert format_assertion_label(Assertion(Answer(PASSED), negate=True)) == "not answer"

"""Evaluates one assertion: runs its check, applies `negate`, and turns what the check raises into a verdict.

An error stays an error: neither `negate` nor a combination turns a check that cannot be evaluated into a pass.
"""

import asyncio
from collections.abc import Awaitable

from msgspec import UNSET, structs

from viva.errors import BadInput, CheckError, RunStopped, TrialEnd, TrialFault, VivaError, is_ctrl_c, to_valid_text
from viva.model import codec
from viva.model.case import Assertion
from viva.model.tracebacks import build_tracebacks, format_error, was_raised_in_users_code
from viva.model.turn import PASSED, AssertionResult, Verdict
from viva.state.trial_state import CheckContext, TrialState

_ENDS_MORE_THAN_THE_CHECK = (RunStopped, TrialEnd, GeneratorExit, asyncio.CancelledError)
"""Exceptions that end the trial or the run, not only this check."""


async def evaluate_assertion(assertion: Assertion, context: CheckContext) -> AssertionResult:
    """Evaluates an assertion, whether or not its check is asynchronous."""
    result = start_evaluation(assertion, context)
    return result if isinstance(result, AssertionResult) else await result


def start_evaluation(assertion: Assertion, context: CheckContext) -> AssertionResult | Awaitable[AssertionResult]:
    """Evaluates an assertion: returns its result or, only if the check is asynchronous, an awaitable of the result."""
    try:
        if assertion.build_with_variables is not None:
            assertion = structs.replace(
                assertion.build_with_variables(context),
                definition=assertion.definition,
                on=assertion.on,
                over=assertion.over,
            )
        verdict = assertion.check.check(context)
        if isinstance(verdict, Verdict):
            verdict = _with_plain_values(verdict)
    except _ENDS_MORE_THAN_THE_CHECK:
        raise
    except BaseException as error:  # a check may be a plugin's code: it must not end the trial
        if is_ctrl_c(error):
            raise
        return _create_error_result(assertion, error, context.state)
    if isinstance(verdict, Verdict):
        return _create_result(assertion, verdict, context.state)
    return _finish_evaluation(assertion, verdict, context)


async def _finish_evaluation(
    assertion: Assertion, pending: Awaitable[Verdict], context: CheckContext
) -> AssertionResult:
    state = context.state
    before, state.waiting_for = state.waiting_for, "judge"
    began, first_call = state.ms_since_start(), len(state.helper_calls)
    try:
        verdict = _with_plain_values(await pending)
    except _ENDS_MORE_THAN_THE_CHECK:
        raise
    except BaseException as error:  # as above
        if is_ctrl_c(error):
            raise
        result = _create_error_result(assertion, error, state)
    else:
        result = _create_result(assertion, verdict, state)
    state.waiting_for = before
    return structs.replace(
        result,
        helper_calls=tuple(range(first_call + 1, len(state.helper_calls) + 1)),
        duration_ms=round(state.ms_since_start() - began, 3),
    )


def _create_result(assertion: Assertion, verdict: Verdict, state: TrialState) -> AssertionResult:
    if assertion.negate:
        verdict = negate_verdict(verdict, assertion.check.label)
    return AssertionResult(assertion, verdict, is_live_check(assertion, state))


def _create_error_result(assertion: Assertion, error: BaseException, state: TrialState) -> AssertionResult:
    """The result of a check that raised; the traceback is kept if the user's own code raised it."""
    raised = error.__cause__ if isinstance(error, CheckError) else error
    if raised is not None and not isinstance(raised, VivaError) and was_raised_in_users_code(raised):
        state.tracebacks += build_tracebacks(raised, f"check {assertion.check.label}")
    return AssertionResult(assertion, create_error_verdict(error), is_live_check(assertion, state))


def _with_plain_values(verdict: Verdict) -> Verdict:
    """The verdict with values that a record can hold. The check of a plugin may return objects of any class."""
    if verdict is PASSED:
        return verdict
    try:
        return codec.decode_own(codec.encode(verdict), type=Verdict)
    except Exception as error:
        raise CheckError(f"its verdict cannot be stored: {format_error(error)}", fault="judge") from None


def is_live_check(assertion: Assertion, state: TrialState) -> bool:
    """Does the check read something that the cassette does not hold? Then a replay may give another verdict."""
    return state.uses_cassette and may_look_outside(assertion.check)


def may_look_outside(check: object) -> bool:
    """May a check read more than the conversation and the workspace? A check declares it; for plugins the default is yes."""
    looks_outside: bool | None = getattr(check, "looks_outside", None)
    return not type(check).__module__.startswith("viva.") if looks_outside is None else looks_outside


def format_assertion_label(assertion: Assertion) -> str:
    """The name of an assertion in reports: the label of its check, after `not` if it is negated."""
    return f"not {assertion.check.label}" if assertion.negate else assertion.check.label


def negate_verdict(verdict: Verdict, label: str) -> Verdict:
    """The opposite verdict, with the opposite score; an error stays an error. A score that is not from 0 to 1 has no opposite."""
    if verdict.status == "error":
        return verdict
    score = round(1 - verdict.score, 9) if verdict.score is not None and 0 <= verdict.score <= 1 else None
    if verdict.status == "failed":
        return structs.replace(verdict, status="passed", score=score, expected=UNSET, actual=UNSET)
    reason = f"must not hold, but does: {label}"
    if verdict.reason:
        reason = f"{reason} ({verdict.reason})"
    return structs.replace(verdict, status="failed", score=score, reason=reason)


def create_error_verdict(error: BaseException) -> Verdict:
    """The verdict of a check that raised. Errors of Viva have a complete message; others get their type's name."""
    if isinstance(error, TrialFault | CheckError) and str(error):
        reason = to_valid_text(str(error))
        return Verdict("error", reason, fault=error.fault, deterministic=error.deterministic)
    if isinstance(error, BadInput):  # the check names an agent or file that does not exist
        return Verdict("error", to_valid_text(str(error)), deterministic=True)
    return Verdict("error", format_error(error), fault="judge")  # the user's own check failed

"""Judges one claim: runs its check, applies `negate`, and makes a verdict of whatever goes wrong on the way.

An error stays an error: neither `negate` nor a combination turns a check that cannot be evaluated into a pass.
"""

from collections.abc import Awaitable

from msgspec import UNSET, structs

from viva.errors import BadInput, CheckError, RunStopped, TrialEnd, TrialFault, VivaError, to_valid_text
from viva.model import codec
from viva.model.case import Assertion
from viva.model.tracebacks import describe_error, error_text, is_users_error
from viva.model.turn import PASSED, AssertionResult, Verdict
from viva.state.trial_state import CheckContext, TrialState


def evaluate(assertion: Assertion, context: CheckContext) -> AssertionResult | Awaitable[AssertionResult]:
    """The claim and its verdict; something to await only where the check itself has to wait."""
    try:
        if assertion.resolve is not None:
            assertion = structs.replace(
                assertion.resolve(context), definition=assertion.definition, on=assertion.on, over=assertion.over
            )
        found = assertion.check.check(context)
        if isinstance(found, Verdict):
            found = _plain(found)
    except (RunStopped, TrialEnd):
        raise
    except Exception as broken:  # a check may be anyone's code: it must not end the trial
        return _judge_broken(assertion, broken, context.state)
    if isinstance(found, Verdict):
        verdict = negate_verdict(found, assertion.check.label) if assertion.negate else found
        return AssertionResult(assertion, verdict, is_live(assertion, context.state))
    return _judge_later(assertion, found, context)


async def _judge_later(assertion: Assertion, waiting: Awaitable[Verdict], context: CheckContext) -> AssertionResult:
    state = context.state
    before, state.waiting_for = state.waiting_for, "judge"
    try:
        verdict = _plain(await waiting)
    except (RunStopped, TrialEnd):
        raise
    except Exception as broken:  # as above
        state.waiting_for = before
        return _judge_broken(assertion, broken, state)
    state.waiting_for = before
    return AssertionResult(
        assertion,
        negate_verdict(verdict, assertion.check.label) if assertion.negate else verdict,
        is_live(assertion, state),
    )


def _judge_broken(assertion: Assertion, broken: Exception, state: TrialState) -> AssertionResult:
    """The verdict of a check that raised; where that was code of the user's own, its traceback is kept."""
    raised = broken.__cause__ if isinstance(broken, CheckError) else broken
    if raised is not None and not isinstance(raised, VivaError) and is_users_error(raised):
        state.tracebacks += describe_error(raised, f"check {assertion.check.label}")
    return AssertionResult(assertion, error_verdict(broken), is_live(assertion, state))


def _plain(verdict: Verdict) -> Verdict:
    """The verdict in values that a record can hold. A check may be anyone's code, with objects of any class."""
    if verdict is PASSED:
        return verdict
    try:
        return codec.decode_kept(codec.encode(verdict), type=Verdict)
    except Exception as wrong:
        raise CheckError(f"its verdict cannot be kept: {error_text(wrong)}", fault="judge") from None


def is_live(assertion: Assertion, state: TrialState) -> bool:
    """Does this check ask the world, where all others ask a cassette? Then a replay may find something else."""
    return state.uses_cassette and may_look_outside(assertion.check)


def may_look_outside(check: object) -> bool:
    """May a check look at more than the conversation and the workspace? It says so itself; of a plugin's nobody knows."""
    said: bool | None = getattr(check, "looks_outside", None)
    return not type(check).__module__.startswith("viva.") if said is None else said


def assertion_label(assertion: Assertion) -> str:
    """How a report names a claim: its check, with `not` before a negated one."""
    return f"not {assertion.check.label}" if assertion.negate else assertion.check.label


def negate_verdict(verdict: Verdict, label: str) -> Verdict:
    """The opposite verdict; an error has none."""
    if verdict.status == "error":
        return verdict
    if verdict.status == "failed":
        return structs.replace(verdict, status="passed", expected=UNSET, actual=UNSET)
    reason = f"must not hold, but does: {label}"
    return structs.replace(
        verdict, status="failed", reason=f"{reason} ({verdict.reason})" if verdict.reason else reason
    )


def error_verdict(broken: Exception) -> Verdict:
    """What a check that could not be evaluated comes to. Errors of our own speak for themselves; others are named."""
    if isinstance(broken, TrialFault | CheckError) and str(broken):
        said = to_valid_text(str(broken))
        return Verdict("error", said, fault=broken.fault, deterministic=broken.deterministic)
    if isinstance(broken, BadInput):  # an agent or a file that the check names is not there
        return Verdict("error", to_valid_text(str(broken)), deterministic=True)
    return Verdict("error", error_text(broken), fault="judge")  # a check of the user's own broke

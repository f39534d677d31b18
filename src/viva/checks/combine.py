"""Checks made of claims: all of them, any of them, not this one. Every claim is judged, never only the first.

An error is neither a pass nor a failure: it decides only where no other claim does.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, cast

from msgspec import UNSET

from viva.checks.formatting import format_label
from viva.model.case import Assertion
from viva.model.component import BuildContext, Component
from viva.model.turn import AssertionResult, Verdict, VerdictStatus
from viva.state.evaluation import assertion_label, evaluate, may_look_outside, negate_verdict
from viva.state.trial_state import CheckContext


class _Several(Component, frozen=True, kw_only=True):
    """What is made of several claims."""

    assertions: tuple[Assertion, ...]

    @classmethod
    def build(cls, fields: Mapping[str, Any], building: BuildContext) -> Self:
        return cls(assertions=_assertions(fields, building))

    @property
    def costly(self) -> bool:
        return any(assertion.check.costly for assertion in self.assertions)

    @property
    def looks_outside(self) -> bool:
        return any(may_look_outside(assertion.check) for assertion in self.assertions)


class All(_Several, frozen=True, kw_only=True):
    """Every claim holds. One that fails decides; else one in error does. The score is the share that holds, by weight."""

    @property
    def label(self) -> str:
        return format_label("all of:", "; ".join(map(assertion_label, self.assertions)))

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        return _judge_each(self.assertions, context, _all_hold)


class AnyOf(_Several, frozen=True, kw_only=True):
    """At least one claim holds. If none does, one in error decides before those that fail."""

    @property
    def label(self) -> str:
        return format_label("any of:", "; ".join(map(assertion_label, self.assertions)))

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        return _judge_each(self.assertions, context, _any_holds)


class Not(Component, frozen=True, kw_only=True):
    """The claim does not hold. An error stays an error."""

    assertion: Assertion

    @classmethod
    def build(cls, fields: Mapping[str, Any], building: BuildContext) -> Self:
        _refuse_other_fields(fields, "assertion")
        return cls(assertion=_assertion(fields["assertion"], "assertion", building))

    @property
    def costly(self) -> bool:
        return self.assertion.check.costly

    @property
    def looks_outside(self) -> bool:
        return may_look_outside(self.assertion.check)

    @property
    def label(self) -> str:
        return format_label("not", assertion_label(self.assertion))

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        label = assertion_label(self.assertion)
        return _judge_each((self.assertion,), context, lambda judged: negate_verdict(judged[0].verdict, label))


def _judge_each(
    assertions: tuple[Assertion, ...], context: CheckContext, conclude: Callable[[list[AssertionResult]], Verdict]
) -> Verdict | Awaitable[Verdict]:
    """Judges the claims in order; from the first that has to wait on, the rest is awaited too."""
    judged: list[AssertionResult] = []
    for place, assertion in enumerate(assertions, 1):
        found = evaluate(assertion, context)
        if not isinstance(found, AssertionResult):
            return _judge_rest(judged, found, assertions[place:], context, conclude)
        judged.append(found)
    return conclude(judged)


async def _judge_rest(
    judged: list[AssertionResult],
    waiting: Awaitable[AssertionResult],
    rest: tuple[Assertion, ...],
    context: CheckContext,
    conclude: Callable[[list[AssertionResult]], Verdict],
) -> Verdict:
    judged.append(await waiting)
    for assertion in rest:
        found = evaluate(assertion, context)
        judged.append(found if isinstance(found, AssertionResult) else await found)
    return conclude(judged)


def _all_hold(judged: list[AssertionResult]) -> Verdict:
    statuses = {each.verdict.status for each in judged}
    status = "failed" if "failed" in statuses else "error" if "error" in statuses else "passed"
    total = sum(each.assertion.weight for each in judged)
    held = sum(each.assertion.weight for each in judged if each.verdict.passed)
    return _combined(status, judged, held / total if total > 0 and "error" not in statuses else None)


def _any_holds(judged: list[AssertionResult]) -> Verdict:
    statuses = {each.verdict.status for each in judged}
    status = "passed" if "passed" in statuses else "error" if "error" in statuses else "failed"
    return _combined(status, judged, None)


def _combined(status: VerdictStatus, judged: list[AssertionResult], score: float | None) -> Verdict:
    """One verdict of many: the reasons of those that did not hold, and all that the judges among them said and used."""
    unmet = [each for each in judged if not each.verdict.passed] if status != "passed" else []
    only = unmet[0].verdict if len(unmet) == 1 else None
    return Verdict(
        status,
        reason="; ".join(f"{assertion_label(each.assertion)}: {each.verdict.reason}" for each in unmet),
        score=score,
        expected=only.expected if only else UNSET,
        actual=only.actual if only else UNSET,
        evidence=tuple(quote for each in judged for quote in each.verdict.evidence),
        suggestions=tuple(text for each in judged for text in each.verdict.suggestions),
        calls=tuple(call for each in judged for call in each.verdict.calls),
    )


def _assertions(fields: Mapping[str, Any], building: BuildContext) -> tuple[Assertion, ...]:
    _refuse_other_fields(fields, "assertions")
    written = fields["assertions"]
    if isinstance(written, Mapping):
        return (_assertion(written, "assertions", building),)
    if not isinstance(written, list) or not written:
        raise ValueError("assertions is a list of at least one assertion")
    items = cast("list[Any]", written)
    return tuple(_assertion(each, f"assertions[{place}]", building) for place, each in enumerate(items))


def _assertion(written: Any, place: str, building: BuildContext) -> Assertion:
    if not isinstance(written, Mapping):
        raise ValueError(f"{place} is an assertion, like {{type: contains, value: hello}}")
    try:
        return building.build_assertion(cast("Mapping[str, Any]", written))
    except ValueError as wrong:
        raise ValueError(f"{place}: {wrong}") from wrong


def _refuse_other_fields(fields: Mapping[str, Any], wanted: str) -> None:
    if other := [name for name in fields if name != wanted]:
        raise ValueError(f"unknown field {other[0]!r}; the only one here is {wanted!r}")
    if wanted not in fields:
        raise ValueError(f"{wanted} is missing")

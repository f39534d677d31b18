"""Checks made of other assertions: all of them, any of them, not this one. Every assertion is evaluated, not only the first.

An error is neither a pass nor a failure: it decides only where no other assertion does.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Self, cast

from msgspec import UNSET

from viva.checks.base_check import BaseCheck
from viva.checks.formatting import format_label
from viva.model.case import Assertion
from viva.model.component import BuildContext
from viva.model.turn import AssertionResult, Verdict, VerdictStatus
from viva.state.evaluation import format_assertion_label, may_look_outside, negate_verdict, start_evaluation
from viva.state.trial_state import CheckContext


class _Combination(BaseCheck, frozen=True, kw_only=True):
    """A check made of other assertions. The loader of the file builds those, because it knows their lines."""

    is_combination: ClassVar[bool] = True

    @property
    def costly(self) -> bool:
        return any(each.check.costly for each in self._parts)

    @property
    def looks_outside(self) -> bool:
        return any(may_look_outside(each.check) for each in self._parts)

    @property
    def _parts(self) -> tuple[Assertion, ...]:
        raise NotImplementedError


class _MultipleCombination(_Combination, frozen=True, kw_only=True):
    python_types: ClassVar[Mapping[str, str]] = {"assertions": "AssertionInput"}
    assertions: tuple[Assertion, ...]
    """The assertions: a list, or a single one."""

    @classmethod
    def build(cls, fields: Mapping[str, Any], context: BuildContext) -> Self:
        _refuse_other_fields(fields, "assertions")
        definition = fields["assertions"]
        if isinstance(definition, Mapping):
            return cls(assertions=(_build_inner_assertion(definition, "assertions", context),))
        if not isinstance(definition, list) or not definition:
            raise ValueError("assertions is a list of at least one assertion")
        parts = enumerate(cast("list[Any]", definition))
        return cls(
            assertions=tuple(_build_inner_assertion(part, f"assertions[{index}]", context) for index, part in parts)
        )

    @property
    def _parts(self) -> tuple[Assertion, ...]:
        return self.assertions

    def _label(self, words: str) -> str:
        return format_label(words, "; ".join(map(format_assertion_label, self.assertions)))


class All(_MultipleCombination, frozen=True, kw_only=True):
    """All of these assertions pass."""

    python_name: ClassVar[str] = "all_of"

    @property
    def label(self) -> str:
        return self._label("all of:")

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        return _evaluate_each(self.assertions, context, _require_all)


class AnyOf(_MultipleCombination, frozen=True, kw_only=True):
    """At least one of these assertions passes."""

    python_name: ClassVar[str] = "any_of"

    @property
    def label(self) -> str:
        return self._label("any of:")

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        return _evaluate_each(self.assertions, context, _require_any)


class Not(_Combination, frozen=True, kw_only=True):
    """The assertion does not pass. An error stays an error."""

    python_name: ClassVar[str] = "not_"
    python_types: ClassVar[Mapping[str, str]] = {"assertion": "AssertionInput"}
    assertion: Assertion
    """The assertion."""

    @classmethod
    def build(cls, fields: Mapping[str, Any], context: BuildContext) -> Self:
        _refuse_other_fields(fields, "assertion")
        return cls(assertion=_build_inner_assertion(fields["assertion"], "assertion", context))

    @property
    def _parts(self) -> tuple[Assertion, ...]:
        return (self.assertion,)

    @property
    def label(self) -> str:
        return format_label("not", format_assertion_label(self.assertion))

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        label = format_assertion_label(self.assertion)
        return _evaluate_each((self.assertion,), context, lambda results: negate_verdict(results[0].verdict, label))


def _evaluate_each(
    assertions: tuple[Assertion, ...], context: CheckContext, conclude: Callable[[list[AssertionResult]], Verdict]
) -> Verdict | Awaitable[Verdict]:
    """Evaluates the assertions in order. Returns an awaitable only if one of them has to wait."""
    results: list[AssertionResult] = []
    for index, assertion in enumerate(assertions, 1):
        result = start_evaluation(assertion, context)
        if not isinstance(result, AssertionResult):
            return _evaluate_rest(results, result, assertions[index:], context, conclude)
        results.append(result)
    return conclude(results)


async def _evaluate_rest(
    results: list[AssertionResult],
    waiting: Awaitable[AssertionResult],
    rest: tuple[Assertion, ...],
    context: CheckContext,
    conclude: Callable[[list[AssertionResult]], Verdict],
) -> Verdict:
    results.append(await waiting)
    for assertion in rest:
        result = start_evaluation(assertion, context)
        results.append(result if isinstance(result, AssertionResult) else await result)
    return conclude(results)


def _require_all(results: list[AssertionResult]) -> Verdict:
    """The score is the share that passes, by weight."""
    statuses = {result.verdict.status for result in results}
    status = "failed" if "failed" in statuses else "error" if "error" in statuses else "passed"
    total = sum(result.assertion.weight for result in results)
    passed = sum(result.assertion.weight for result in results if result.verdict.passed)
    return _build_combined_verdict(status, results, passed / total if total > 0 and "error" not in statuses else None)


def _require_any(results: list[AssertionResult]) -> Verdict:
    statuses = {result.verdict.status for result in results}
    status = "passed" if "passed" in statuses else "error" if "error" in statuses else "failed"
    return _build_combined_verdict(status, results, None)


def _build_combined_verdict(status: VerdictStatus, results: list[AssertionResult], score: float | None) -> Verdict:
    """One verdict for many: the reasons of those that did not pass, the fault of the first error, and the evidence, calls and findings of all."""
    unmet = [result for result in results if not result.verdict.passed] if status != "passed" else []
    only = unmet[0].verdict if len(unmet) == 1 else None
    errors = [result.verdict for result in results if result.verdict.status == "error"] if status == "error" else []
    return Verdict(
        status,
        reason="; ".join(f"{format_assertion_label(result.assertion)}: {result.verdict.reason}" for result in unmet),
        score=score,
        expected=only.expected if only else UNSET,
        actual=only.actual if only else UNSET,
        evidence=tuple(quote for result in results for quote in result.verdict.evidence),
        suggestions=tuple(text for result in results for text in result.verdict.suggestions),
        calls=tuple(call for result in results for call in result.verdict.calls),
        fault=errors[0].fault if errors else "undetermined",
        deterministic=errors[0].deterministic if errors else False,
        findings=tuple(finding for result in results for finding in result.verdict.findings),
    )


def _build_inner_assertion(definition: Any, place: str, context: BuildContext) -> Assertion:
    if not isinstance(definition, Mapping):
        raise ValueError(f"{place} is an assertion, like {{type: contains, value: hello}}")
    try:
        return context.build_assertion(cast("Mapping[str, Any]", definition))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _refuse_other_fields(fields: Mapping[str, Any], field: str) -> None:
    if other := [name for name in fields if name != field]:
        raise ValueError(f"unknown field {other[0]!r}; the only one here is {field!r}")
    if field not in fields:
        raise ValueError(f"{field} is missing")

"""all, any, not."""

import asyncio
import inspect
from collections.abc import Awaitable

import pytest
from msgspec import UNSET, field

from viva.errors import CheckError
from viva.model.component import Component
from viva.model.message import ModelCall
from viva.model.turn import Quote, Verdict
from viva.state.trial_state import CheckContext
from viva.testing.check_context import make_check_context

P = {"type": "contains", "value": "a"}
F = {"type": "contains", "value": "z"}
E = {"type": "max_tokens", "value": 1}  # the agent reports no usage


class Slow(Component, frozen=True, kw_only=True):
    """A costly check that waits, reports a model call, and counts its calls."""

    passes: bool | None
    asked: list[int] = field(default_factory=list[int])
    costly: bool = True
    label: str = "slow"

    def check(self, context: CheckContext) -> Awaitable[Verdict]:
        return self._think()

    async def _think(self) -> Verdict:
        await asyncio.sleep(0)
        self.asked.append(1)
        if self.passes is None:
            raise CheckError("judge down", fault="judge")
        return Verdict(
            "passed" if self.passes else "failed",
            "thought so",
            calls=(ModelCall("judge"),),
            evidence=(Quote(1, "a"),),
            suggestions=("be nice",),
        )


@pytest.fixture(autouse=True)
def _know_slow(bench):
    bench.own["slow"] = Slow


SP = {"type": "slow", "passes": True}
SF = {"type": "slow", "passes": False}
SE = {"type": "slow", "passes": None}


@pytest.mark.parametrize(
    ("assertions", "all_", "any_"),
    [
        ([P], "passed", "passed"),
        ([P, P], "passed", "passed"),
        ([P, F], "failed", "passed"),
        ([F, F], "failed", "failed"),
        ([P, E], "error", "passed"),
        ([E, P], "error", "passed"),
        ([F, E], "failed", "error"),
        ([E, F], "failed", "error"),
        ([E, E], "error", "error"),
        ([P, F, E], "failed", "passed"),
        ([P, SP], "passed", "passed"),
        ([SP, F], "failed", "passed"),
        ([SF, P, SE], "failed", "passed"),
        ([SE, P], "error", "passed"),
        ([F, SE], "failed", "error"),
    ],
)
def test_failures_decide_all_and_passes_decide_any(bench, assertions, all_, any_):  # N24, N25
    context = make_check_context("a")
    for kind, status in (("all", all_), ("any", any_)):
        verdict = asyncio.run(bench.evaluate_async({"type": kind, "assertions": assertions}, context))
        assert verdict.status == status, kind


@pytest.mark.parametrize(
    ("assertion", "status"),
    [
        (P, "failed"),
        (F, "passed"),
        (E, "error"),
        (SP, "failed"),
        (SF, "passed"),
        (SE, "error"),
        ({**P, "negate": True}, "passed"),
    ],
)
def test_not(bench, assertion, status):  # N24: an error stays an error
    verdict = asyncio.run(bench.evaluate_async({"type": "not", "assertion": assertion}, make_check_context("a")))
    assert verdict.status == status


def test_nested_assertions_have_their_own_negation(bench):
    assertions = [{**P, "negate": True}, {**F, "negate": True}]
    assert bench.evaluate({"type": "all", "assertions": assertions}, make_check_context("a")).status == "failed"
    assert bench.evaluate({"type": "any", "assertions": assertions}, make_check_context("a")).passed


def test_a_negated_combination_in_error_stays_in_error(bench):  # N24
    for kind in ("all", "any"):
        assert (
            bench.evaluate({"type": kind, "assertions": [E], "negate": True}, make_check_context("a")).status == "error"
        )


@pytest.mark.parametrize("kind", ["all", "any"])
def test_an_error_keeps_its_fault_and_whether_it_would_happen_again(bench, kind):  # N17
    for part, error in ((SE, ("judge", False)), (E, ("undetermined", True))):
        definition = {"type": kind, "assertions": [P if kind == "all" else F, part]}
        verdict = asyncio.run(bench.evaluate_async(definition, make_check_context("a")))
        assert (verdict.status, verdict.fault, verdict.deterministic) == ("error", *error)


def test_one_assertion_needs_no_list(bench):  # N3
    assert bench.evaluate({"type": "any", "assertions": P}, make_check_context("a")).passed


def test_combinations_nest(bench):
    definition = {"type": "all", "assertions": [{"type": "any", "assertions": [F, P]}, {"type": "not", "assertion": F}]}
    assert bench.evaluate(definition, make_check_context("a")).passed


@pytest.mark.parametrize("kind", ["all", "any"])
def test_every_assertion_is_evaluated(bench, kind):  # N10
    check = bench.assertion({"type": kind, "assertions": [SF, SP, SF, SP]}).check
    asyncio.run(check.check(make_check_context("a")))
    assert [len(assertion.check.asked) for assertion in check.assertions] == [1, 1, 1, 1]


def test_local_checks_need_no_event_loop(bench):
    check = bench.assertion({"type": "all", "assertions": [P, P]}).check
    assert not inspect.isawaitable(check.check(make_check_context("a")))
    assert not check.costly


@pytest.mark.parametrize(
    "definition",
    [{"type": "all", "assertions": [P, SP]}, {"type": "any", "assertions": [SP]}, {"type": "not", "assertion": SP}],
)
def test_a_combination_is_costly_if_a_part_is(bench, definition):
    assert bench.assertion(definition).check.costly


def test_the_score_of_all_is_the_share_that_passes_by_weight(bench):
    definition = {"type": "all", "assertions": [{**P, "weight": 3}, F]}
    assert bench.evaluate(definition, make_check_context("a")).score == 0.75
    assert bench.evaluate({"type": "all", "assertions": [P, E]}, make_check_context("a")).score is None
    assert bench.evaluate({"type": "all", "assertions": [{**P, "weight": 0}]}, make_check_context("a")).score is None
    assert bench.evaluate({"type": "any", "assertions": [P, F]}, make_check_context("a")).score is None


def test_the_reason_names_what_did_not_pass(bench):
    verdict = bench.evaluate({"type": "all", "assertions": [P, F, {**P, "negate": True}]}, make_check_context("a"))
    assert verdict.reason == (
        'contains "z": "z" is not in "a"; not contains "a": must not hold, but does: contains "a"'
    )


@pytest.mark.parametrize("kind", ["all", "any"])
def test_expected_and_actual_are_those_of_the_only_part_that_did_not_pass(bench, kind):
    for parts, expected, actual in (([F], "z", "a"), ([F, F], UNSET, UNSET)):
        verdict = bench.evaluate({"type": kind, "assertions": parts}, make_check_context("a"))
        assert (verdict.expected, verdict.actual) == (expected, actual)


def test_evidence_suggestions_and_calls_are_kept(bench):
    verdict = asyncio.run(bench.evaluate_async({"type": "any", "assertions": [SP, SF]}, make_check_context("a")))
    assert len(verdict.calls) == len(verdict.evidence) == len(verdict.suggestions) == 2


@pytest.mark.parametrize("kind", ["all", "any"])
def test_findings_are_kept(bench, kind):  # W5
    parts = [{"type": "safety", "fail_at": "high"}, {"type": "safety"}, P]
    verdict = bench.evaluate(
        {"type": kind, "assertions": parts}, make_check_context("That was jane.miller@gmail.com, on Monday.")
    )
    assert {finding.kind for finding in verdict.findings} == {"pii-leak"}


def test_labels(bench):
    assert bench.label("all", assertions=[P, {**F, "negate": True}]) == 'all of: contains "a"; not contains "z"'
    assert bench.label("any", assertions=[P]) == 'any of: contains "a"'
    assert bench.label("not", assertion=P) == 'not contains "a"'

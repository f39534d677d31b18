"""Two runs side by side: each kind of change, and how often chance alone looks like one."""

from random import Random

import pytest

from viva.history.comparison import Change, Comparison, FailOn, compare
from viva.history.index import ResultRow
from viva.model.record import Status

P, F, E, S = "passed", "failed", "error", "skipped"


def rows(case: str, *statuses: str, digest: str = "d", **fields) -> list[ResultRow]:
    return [
        ResultRow(suite="s", case=case, trial=number, status=status, digest=digest, **fields)  # pyright: ignore[reportArgumentType]
        for number, status in enumerate(statuses, 1)
    ]


def compared(before: list[ResultRow], after: list[ResultRow]) -> Comparison:
    return compare(("base", before), ("head", after))


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ([F], [P], "fixed"),
        ([P], [F], "broken"),
        ([F], [F], "still failing"),
        ([P], [P], "still passing"),
        ([P, P, P], [P, F, P], "flaky"),
        ([P, F], [F, F], "flaky"),
        ([P] * 5, [P] + [F] * 4, "broken"),
        ([F] * 4 + [P], [P] * 5, "fixed"),
        ([P] * 3 + [F] * 2, [P] * 2 + [F] * 3, "flaky"),
        ([P], [E], "not judged"),
        ([S], [P], "not judged"),
        ([P, E], [F, F], "broken"),
        ([], [P], "new"),
        ([P], [], "gone"),
    ],
)
def test_each_kind_of_change(before: list[str], after: list[str], change: Change):
    (found,) = compared(rows("c", *before), rows("c", *after)).cases
    assert found.change == change


def test_a_case_whose_definition_changed_is_never_compared():
    """It is set apart, and counts in no metric and for no regression."""
    found = compared(rows("a", P, digest="old") + rows("b", P), rows("a", F, digest="new") + rows("b", P))
    assert [(case.case, case.change) for case in found.cases] == [("a", "changed"), ("b", "still passing")]
    assert [metric.pairs for metric in found.metrics] == [1] * len(found.metrics)
    assert not any(found.is_regression(rule, 0.05) for rule in ("broken", "significant", "any"))


def test_the_same_id_in_another_suite_is_another_case():
    other = [ResultRow(suite="t", case="c", trial=1, status="failed", digest="d")]
    assert {case.change for case in compared(rows("c", P), other).cases} == {"new", "gone"}


def many(count: int, status: Status, **fields) -> list[ResultRow]:
    return [row for number in range(count) for row in rows(f"c{number}", status, **fields)]


@pytest.mark.parametrize(
    ("broken", "by"),
    [
        (0, {"broken": False, "significant": False, "any": False}),
        (1, {"broken": True, "significant": False, "any": True}),
        (12, {"broken": True, "significant": True, "any": True}),
    ],
)
def test_a_regression_is_what_was_asked_for(broken: int, by: dict[FailOn, bool]):
    head = many(broken, "failed") + [row for row in many(20, "passed") if int(row.case[1:]) >= broken]
    found = compared(many(20, "passed"), head)
    assert {rule: found.is_regression(rule, 0.05) for rule in by} == by


def test_costlier_and_slower_is_worse_and_a_better_score_is_not():
    base = many(12, "passed", cost_usd=1.0, duration_ms=100.0, score=0.5)
    head = many(12, "passed", cost_usd=1.5, duration_ms=200.0, score=0.9)
    metrics = {metric.name: metric for metric in compared(base, head).metrics}
    assert {name: metric.worse for name, metric in metrics.items()} == {
        "pass rate": False,
        "score": False,
        "cost USD": True,
        "time ms": True,
    }
    cost = metrics["cost USD"]
    assert (cost.base, cost.head, cost.delta, cost.pairs) == (1.0, 1.5, 0.5, 12)
    assert (cost.low, cost.high) == (0.5, 0.5)
    assert cost.p == pytest.approx(4 * 2 / 2**12, rel=0.5)  # Holm: the smallest of four counts four times


def test_a_cost_that_is_not_known_on_one_side_is_not_compared():
    found = compared(many(3, "passed", cost_usd=1.0), many(3, "passed"))
    assert "cost USD" not in {metric.name for metric in found.metrics}


def alarms(simulations: int, seed: int, alpha: float = 0.05) -> float:
    """How often two runs of the very same agent look like a regression or a progress."""
    random, found = Random(seed), 0
    for _ in range(simulations):
        chances = [random.choice((0.3, 0.7, 0.9, 1.0)) for _ in range(25)]

        def run(chances=chances) -> list[ResultRow]:
            held: list[ResultRow] = []
            for number, chance in enumerate(chances):
                status = P if random.random() < chance else F
                cost_usd, duration_ms = random.lognormvariate(0, 1), random.lognormvariate(5, 1)
                held += rows(f"c{number}", status, score=random.random(), cost_usd=cost_usd, duration_ms=duration_ms)
            return held

        found += any(metric.p <= alpha for metric in compared(run(), run()).metrics)
    return found / simulations


def test_null_data_raise_few_false_alarms():
    """40 pairs of runs: at most 5 % should; eight (20 %) would be a chance of one in a thousand."""
    assert alarms(40, seed=1) < 0.2


@pytest.mark.soak
def test_null_data_raise_false_alarms_at_most_at_alpha():
    """Over 600 pairs of runs and all four metrics together, by Holm; three standard errors are allowed."""
    assert alarms(600, seed=2) <= 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5

"""The matrix of cases and agents."""

import pytest

from viva.model.record import Status
from viva.stats.matrix import Matrix, MatrixBuilder, MatrixTrial


def build(*agents: dict[str, str], alpha: float = 0.05, cost: float | None = 0.5, **known: bool) -> Matrix:
    """Each agent is a mapping from case to the statuses of its trials, by their first letters."""
    words: dict[str, Status] = {"p": "passed", "f": "failed", "e": "error", "s": "skipped"}
    builder = MatrixBuilder([f"a{number}" for number in range(len(agents))], **known)
    for number, cases in enumerate(agents):
        for case, letters in cases.items():
            for place, letter in enumerate(letters):
                builder.add(f"a{number}", MatrixTrial("s", case, words[letter], 10.0 * (place + 1), cost, "d"))
    return builder.build(alpha)


def test_rates_costs_and_times_are_those_of_each_agent():
    found = build({"x": "ppfe", "y": "s"}, {"x": "pppp"})
    first, second = found.columns
    assert (first.rate, first.trials, first.errors, first.skipped, first.passed_trials) == (2 / 3, 5, 1, 1, 2)
    assert (first.cost_usd, first.cost_per_trial_usd, first.p95_ms, first.mean_ms) == (2.0, 0.5, 40.0, 25.0)
    assert (second.rate, second.cases) == (1.0, 1)
    x, y = found.rows
    assert [(cell.passed, cell.decided, cell.errors) for cell in x.cells if cell] == [(2, 3, 1), (4, 4, 0)]
    assert x.cells[0] is not None
    assert x.cells[0].low == pytest.approx(0.2077, abs=1e-3)  # Wilson
    assert y.cells[1] is None
    assert (x.is_different, x.is_shared) == (True, True)
    assert (y.is_different, y.is_shared) == (
        False,
        False,
    )


def test_a_case_without_a_verdict_differs_only_where_the_reason_does():
    found = build({"x": "e", "y": "s", "z": "e"}, {"x": "e", "y": "s", "z": "s"})
    assert [row.is_different for row in found.rows] == [False, False, True]


def test_each_agent_is_compared_with_the_first_and_shares_alpha():
    cases = [f"c{number}" for number in range(8)]
    found = build(*(dict.fromkeys(cases, letter) for letter in ("f", "p", "f")))
    better, same = (column.difference for column in found.columns[1:])
    assert better is not None
    assert same is not None
    assert (better.delta, better.p, better.verdict) == (1.0, 2 * 2 / 2**8, "better")  # McNemar, doubled
    assert better.confidence == 0.975
    assert better.low is not None
    assert better.low > 0
    assert (same.delta, same.p, same.verdict) == (0.0, 1.0, "no difference shown")
    # With one agent to compare, the same data need no correction.
    (alone,) = [column.difference for column in build(*(dict.fromkeys(cases, x) for x in "fp")).columns[1:]]
    assert alone is not None
    assert alone.p == 2 / 2**8


@pytest.mark.parametrize(("trials", "has_interval"), [("p", True), ("pp", False)])
def test_equal_agents_have_an_interval_only_with_single_trials(trials: str, has_interval: bool):
    """Tango's; with repeats the interval of rates that are all equal would have no width."""
    difference = build(*[dict.fromkeys("abcdef", trials)] * 2).columns[1].difference
    assert difference is not None
    assert (difference.delta, difference.low is not None) == (0.0, has_interval)


def test_one_agent_is_compared_with_none():
    alone = build({"x": "pf"})
    assert ([column.difference for column in alone.columns], alone.notes) == ([None], ())


def test_single_cases_are_tested_only_with_repeats():
    found = build({"x": "p" * 10, "y": "p"}, {"x": "f" * 10, "y": "f"})
    x, y = (row.cells[1] for row in found.rows)
    assert x is not None
    assert y is not None
    assert (x.verdict, y.verdict, y.p) == ("worse", None, None)
    sequential = build({"x": "p" * 10}, {"x": "f" * 10}, is_sequential=True).rows[0].cells[1]
    assert sequential is not None
    assert sequential.verdict is None  # a test that looked at the trials chose their number


def test_a_case_with_another_definition_is_shown_but_not_compared():
    builder = MatrixBuilder(["a", "b"])
    builder.add("a", MatrixTrial("s", "x", "passed", digest="old"))
    builder.add("b", MatrixTrial("s", "x", "failed", digest="new"))
    found = builder.build()
    cell = found.rows[0].cells[1]
    assert cell is not None
    assert cell.is_changed
    assert found.columns[1].difference is None
    assert any("same definition" in note for note in found.notes)


def test_notes_say_what_the_numbers_cannot():
    found = build({"x": "p", "y": "p"}, {"x": "f", "y": "p"}, {"x": "p", "y": "p"}, cost=None)
    assert "each p is multiplied by 2" in found.notes[0]
    assert "a1: fewer than 7 cases differ" in found.notes[1]
    assert found.columns[0].cost_usd is None
    assert build({"x": "p"}, {"x": "p"}).notes == ()

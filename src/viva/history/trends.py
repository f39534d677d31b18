"""Flaky cases, and the times of cases, from the newest runs."""

from collections.abc import Collection, Sequence
from itertools import pairwise

from msgspec import Struct

from viva.history.index import History
from viva.model.record import Status
from viva.stats.pass_rate import decide_case_status

_MIXED_RESULTS_QUERY = (
    "SELECT r.run, r.agent, r.suite, r.case_id, r.digest, r.status FROM results r JOIN runs u ON u.id = r.run"
    " WHERE r.run IN ({runs}) AND (r.suite, r.case_id) IN (SELECT suite, case_id FROM results WHERE run IN ({runs})"
    " GROUP BY suite, case_id HAVING sum(status = 'passed') > 0 AND sum(status = 'failed') > 0)"
    " ORDER BY u.at, u.id, r.trial"
)
_CASE_TIMES_QUERY = (
    "SELECT r.suite, r.case_id, avg(r.duration_ms) FROM results r JOIN runs u ON u.id = r.run"
    " WHERE r.run IN ({runs}) AND r.status <> 'skipped'"
    " GROUP BY r.suite, r.case_id, r.run ORDER BY u.number, u.at, u.id"
)
_FLAKY_RUNS = 20
"""The number of runs that are searched for flaky cases."""
_TIMED_RUNS = 20
"""The number of runs that are searched for the times of cases."""


class FlakyCase(Struct, frozen=True, kw_only=True):
    """A case that passes and fails with the same agent. `statuses` are those of its `runs`, oldest first.

    `flips` counts changes between passed and failed from run to run, and runs whose own trials disagree; `flip_rate` is
    their share of all places where it could have flipped.
    """

    suite: str
    case: str
    agent: str
    flips: int
    flip_rate: float
    passed: int
    decided: int
    runs: list[str]
    statuses: list[Status]


def find_case_times(history: History) -> dict[tuple[str, str], float]:
    """How long one trial of each case took in the newest run that has the case, in ms, by suite and id."""
    runs = [row.id for row in history.list_runs(limit=_TIMED_RUNS)]
    query = _CASE_TIMES_QUERY.format(runs=", ".join("?" * len(runs)))
    return {(suite, case): duration_ms for suite, case, duration_ms in history.query(query, runs)}


class _CaseHistory(Struct):
    """The results of one case with one agent, by run."""

    digest: str | None = None
    trials: dict[str, list[Status]] = {}


def find_flaky_cases(history: History, runs: Sequence[str]) -> list[FlakyCase]:
    """Return flaky cases, most flips first. A single change is a fix or a regression; two changes are flaky."""
    cases = [_find_flips(name, case) for name, case in _collect_case_histories(history, runs).items()]
    flaky = [case for case in cases if case is not None]
    flaky.sort(key=lambda case: (-case.flips, -len(case.runs), case.suite, case.case, case.agent))
    return flaky


def find_known_flaky(
    history: History, compared_runs: Sequence[str], agents: Collection[str]
) -> set[tuple[str, str, str | None]]:
    """Return suite, case and definition of cases that are flaky with one of these agents.

    The compared runs themselves do not count.
    """
    newest = history.list_runs(limit=_FLAKY_RUNS + len(compared_runs))
    runs = [row.id for row in newest if row.id not in compared_runs][:_FLAKY_RUNS]
    return {
        (suite, case, results.digest)
        for (agent, suite, case), results in _collect_case_histories(history, runs).items()
        if agent in agents and _find_flips((agent, suite, case), results) is not None
    }


def _collect_case_histories(history: History, runs: Sequence[str]) -> dict[tuple[str, str, str], _CaseHistory]:
    """Return results by agent, suite and case. Results of an earlier definition of a case are left out."""
    cases: dict[tuple[str, str, str], _CaseHistory] = {}
    if not runs:
        return cases
    sql = _MIXED_RESULTS_QUERY.format(runs=", ".join(f"?{n + 1}" for n in range(len(runs))))
    for run, agent, suite, case, digest, status in history.query(sql, runs):
        results = cases.get((agent, suite, case))
        if results is None or results.digest != digest:
            results = cases[agent, suite, case] = _CaseHistory(digest, {})
        results.trials.setdefault(run, []).append(status)
    return cases


def _find_flips(name: tuple[str, str, str], results: _CaseHistory) -> FlakyCase | None:
    agent, suite, case = name
    statuses: list[Status] = [decide_case_status(trials) for trials in results.trials.values()]
    verdicts = [status for status in statuses if status in ("passed", "failed")]
    changes = sum(before != after for before, after in pairwise(verdicts))
    mixed = sum("passed" in trials and "failed" in trials for trials in results.trials.values())
    if changes < 2 and not mixed:
        return None
    repeated = sum(len(trials) > 1 for trials in results.trials.values())
    return FlakyCase(
        suite=suite,
        case=case,
        agent=agent,
        flips=changes + mixed,
        flip_rate=round((changes + mixed) / max(1, len(verdicts) - 1 + repeated), 4),
        passed=verdicts.count("passed"),
        decided=len(verdicts),
        runs=list(results.trials),
        statuses=statuses,
    )

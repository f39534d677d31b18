"""How a project's runs went over time, and which of its cases cannot make up their mind."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from viva.history.index import History, RunRow
from viva.model.record import Status
from viva.stats.pass_rate import case_status

_P95 = (
    "SELECT duration_ms FROM results WHERE run = ?1 AND status <> 'skipped' ORDER BY duration_ms LIMIT 1 OFFSET"
    " (SELECT (count(*) * 95 + 99) / 100 - 1 FROM results WHERE run = ?1 AND status <> 'skipped')"
)
_BOTH = (
    "SELECT r.run, u.agent, r.suite, r.case_id, r.digest, r.status FROM results r JOIN runs u ON u.id = r.run"
    " WHERE r.run IN ({runs}) AND (r.suite, r.case_id) IN (SELECT suite, case_id FROM results WHERE run IN ({runs})"
    " GROUP BY suite, case_id HAVING sum(status = 'passed') > 0 AND sum(status = 'failed') > 0)"
    " ORDER BY u.at, u.id, r.trial"
)
_NEWEST = 20
"""In so many runs a case shows whether it is flaky."""


class RunPoint(Struct, frozen=True, kw_only=True):
    """A run in a chart. `pass_rate` is `passed` of `judged` cases; errors and skips are in neither. `p95_ms` is of its trials."""

    id: str
    at: str
    agent: str
    exit_code: int | None
    total: int
    passed: int
    judged: int
    pass_rate: float | None
    cost_usd: float | None
    duration_ms: float
    p95_ms: float | None


class FlakyCase(Struct, frozen=True, kw_only=True):
    """A case that passes and fails against the same agent. `statuses` are of the `runs` that held it, oldest first.

    `flips` counts changes between passed and failed from run to run, and each run whose own trials did not agree.
    """

    suite: str
    case: str
    agent: str
    flips: int
    passed: int
    judged: int
    runs: list[str]
    statuses: list[Status]


class _Held(Struct):
    """One case against one agent, run by run."""

    digest: str | None = None
    trials: dict[str, list[Status]] = {}


def make_run_point(history: History, row: RunRow) -> RunPoint | None:
    """None for a run that has no summary yet."""
    if (summary := row.summary) is None:
        return None
    judged = summary.passed + summary.failed
    p95: list[tuple[float]] = history.query(_P95, (row.id,))
    return RunPoint(
        id=row.id,
        at=row.at,
        agent=row.agent,
        exit_code=row.exit_code,
        total=summary.total,
        passed=summary.passed,
        judged=judged,
        pass_rate=summary.passed / judged if judged else None,
        cost_usd=summary.cost_usd,
        duration_ms=summary.duration_ms,
        p95_ms=p95[0][0] if p95 else None,
    )


def find_flaky_cases(history: History, runs: Sequence[str]) -> list[FlakyCase]:
    """Those that flipped most often come first. A single change is a fix or a regression; it takes two to be flaky."""
    if not runs:
        return []
    found = [_flaky(name, held) for name, held in _held_in(history, runs).items()]
    flaky = [case for case in found if case is not None]
    flaky.sort(key=lambda case: (-case.flips, -len(case.runs), case.suite, case.case, case.agent))
    return flaky


def find_known_flaky(history: History, compared_runs: Sequence[str]) -> set[tuple[str, str, str | None]]:
    """The cases, by suite, name and definition, that passed and failed against an agent of the compared runs in the newest runs
    of the history; the compared runs themselves do not count. Of a report in a file nobody knows the agent.
    """
    agents = {row.agent for row in history.list_runs() if row.id in compared_runs}
    runs = [row.id for row in history.list_runs(limit=_NEWEST + len(compared_runs)) if row.id not in compared_runs][
        :_NEWEST
    ]
    if not runs:
        return set()
    held = _held_in(history, runs)
    return {
        (suite, case, each.digest)
        for (agent, suite, case), each in held.items()
        if agent in agents and _flaky((agent, suite, case), each) is not None
    }


def _held_in(history: History, runs: Sequence[str]) -> dict[tuple[str, str, str], _Held]:
    query = _BOTH.format(runs=", ".join(f"?{n + 1}" for n in range(len(runs))))
    return _held(history.query(query, runs))


def _held(rows: Iterable[Any]) -> dict[tuple[str, str, str], _Held]:
    """By agent, suite and case; what an earlier definition of a case came to does not count."""
    found: dict[tuple[str, str, str], _Held] = {}
    for run, agent, suite, case, digest, status in rows:
        held = found.get((agent, suite, case))
        if held is None or held.digest != digest:
            held = found[agent, suite, case] = _Held(digest, {})
        held.trials.setdefault(run, []).append(status)
    return found


def _flaky(name: tuple[str, str, str], held: _Held) -> FlakyCase | None:
    agent, suite, case = name
    statuses: list[Status] = [case_status(trials) for trials in held.trials.values()]
    judged = [status for status in statuses if status in ("passed", "failed")]
    changes = sum(before != after for before, after in pairwise(judged))
    mixed = sum("passed" in trials and "failed" in trials for trials in held.trials.values())
    if changes < 2 and not mixed:
        return None
    return FlakyCase(
        suite=suite,
        case=case,
        agent=agent,
        flips=changes + mixed,
        passed=judged.count("passed"),
        judged=len(judged),
        runs=list(held.trials),
        statuses=statuses,
    )

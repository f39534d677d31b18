"""Runs over time: one line for each agent and suite, with intervals and what changed on the way."""

from array import array
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from viva.history.index import History, RunRow
from viva.model.event import RunStarted
from viva.stats.proportions import Tally, estimate_suite_rate
from viva.stats.values import nearest_rank

_RESULTS_QUERY = "SELECT agent, suite, case_id, status, duration_ms, cost_usd FROM results WHERE run = ?"


class LinePoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run in a line. `pass_rate` is the mean of the cases' rates, with its 95 % interval; `passed` of `decided` cases never
    failed. `trials` are those that ran; `p95_ms` is over them. `left_out` says why the run is not comparable with the others; `changes` are what changed
    since the point before.
    """

    run: str
    at: str
    exit_code: int | None = None
    passed: int
    decided: int
    pass_rate: float | None = None
    low: float | None = None
    high: float | None = None
    cost_usd: float | None = None
    trials: int = 0
    p95_ms: float | None = None
    left_out: str = ""
    changes: tuple[str, ...] = ()


class HistoryLine(Struct, frozen=True):
    """An agent on a suite, oldest run first."""

    agent: str
    suite: str
    points: list[LinePoint]


class SuitePoint(Struct, frozen=True):
    """The point of one agent and suite in a run, and which definitions it had."""

    agent: str
    suite: str
    point: LinePoint
    agent_digest: str = ""
    suite_digest: str = ""


class _AgentSuiteResults:
    """The results of one agent on one suite in a run."""

    def __init__(self) -> None:
        self.cases: dict[str, list[int]] = {}
        self.times_ms = array("d")
        self.costs: list[float] = []

    def add(self, case: str, status: str, duration_ms: float, cost_usd: float | None) -> None:
        counts = self.cases.setdefault(case, [0, 0])
        if status in ("passed", "failed"):
            counts[status == "failed"] += 1
        if status != "skipped":
            self.times_ms.append(duration_ms)
        if cost_usd is not None:
            self.costs.append(cost_usd)


def build_suite_points(history: History, row: RunRow, started: RunStarted | None) -> list[SuitePoint]:
    """The points of a run that has ended, one for each agent and suite. `started` is the first event of its journal."""
    results_by_name: dict[tuple[str, str], _AgentSuiteResults] = {}
    for agent, suite, case, status, duration_ms, cost_usd in history.query(_RESULTS_QUERY, (row.id,)):
        results_by_name.setdefault((agent, suite), _AgentSuiteResults()).add(case, status, duration_ms, cost_usd)
    fingerprint = started.settings.get("fingerprint", {}) if started else {}
    return [
        SuitePoint(
            agent,
            suite,
            _build_line_point(row, results, _explain_left_out(started, suite)),
            str(fingerprint.get("agents", {}).get(agent, "")),
            str(fingerprint.get("suites", {}).get(suite, "")),
        )
        for (agent, suite), results in results_by_name.items()
    ]


def _build_line_point(row: RunRow, results: _AgentSuiteResults, left_out: str) -> LinePoint:
    tallies = [Tally(passed, passed + failed) for passed, failed in results.cases.values()]
    rate = estimate_suite_rate(tallies)
    times = sorted(results.times_ms)
    return LinePoint(
        run=row.id,
        at=row.at,
        exit_code=row.exit_code,
        passed=sum(tally.passed == tally.decided > 0 for tally in tallies),
        decided=sum(tally.decided > 0 for tally in tallies),
        pass_rate=rate.rate if rate else None,
        low=rate.interval.low if rate else None,
        high=rate.interval.high if rate else None,
        cost_usd=sum(results.costs) if results.costs else None,
        trials=len(times),
        p95_ms=nearest_rank(times, 95) if times else None,
        left_out=left_out,
    )


def _explain_left_out(started: RunStarted | None, suite: str) -> str:
    """Why the run says little about the suite as a whole."""
    if started is None:
        return ""
    if started.settings.get("options", {}).get("replay"):
        return "replay"
    planned = next((each for each in started.suites if each.suite == suite), None)
    is_shard = bool(started.all_trials) and started.trials < started.all_trials
    if planned is not None and (planned.cases < planned.size or is_shard):
        return "one case" if planned.cases == 1 else "part of the suite"
    return ""


def group_points_into_lines(points: Iterable[SuitePoint]) -> list[HistoryLine]:
    """Groups points, given oldest first, by agent and suite; the line with the newest run comes first."""
    by_line: dict[tuple[str, str], list[SuitePoint]] = {}
    for point in points:
        by_line.setdefault((point.agent, point.suite), []).append(point)
    lines = [HistoryLine(agent, suite, _mark_changes(line)) for (agent, suite), line in by_line.items()]
    return sorted(lines, key=lambda line: (line.points[-1].at, line.suite, line.agent), reverse=True)


def _mark_changes(line: Sequence[SuitePoint]) -> list[LinePoint]:
    """Add to each point what changed since the point before it. Points that are left out are skipped."""
    points: list[LinePoint] = []
    before: SuitePoint | None = None
    for now in line:
        changes: list[str] = []
        if before is not None:
            pairs = (("agent", before.agent_digest, now.agent_digest), ("suite", before.suite_digest, now.suite_digest))
            changes = [name for name, was, digest in pairs if was and digest and was != digest]
        points.append(structs.replace(now.point, changes=tuple(changes)))
        if not now.point.left_out:
            before = now
    return points

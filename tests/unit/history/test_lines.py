"""Runs over time: a line for each agent and suite."""

from pathlib import Path

from viva.history.index import History, ResultRow
from viva.history.lines import SuitePoint, build_suite_points, group_points_into_lines
from viva.model.event import PlannedSuite, RunStarted
from viva.model.record import Status


def row(status: Status, case: str = "a", trial: int = 1, agent: str = "bot", ms: float = 1.0) -> ResultRow:
    return ResultRow(suite="s", case=case, trial=trial, status=status, duration_ms=ms, cost_usd=0.5, agent=agent)


def points(
    history: History, run: str, *rows: ResultRow, size: int = 1, digest: str = "1", replay: str | None = None
) -> list[SuitePoint]:
    settings = {"fingerprint": {"agents": {"bot": digest}, "suites": {"s": "x"}}, "options": {"replay": replay}}
    cases = len({each.case for each in rows})
    suites = (PlannedSuite(suite="s", size=max(size, cases), cases=cases),)
    start = RunStarted(run, f"2026-{run}", "0.1", "bot", (), cases, len(rows), 1, settings=settings, suites=suites)
    history.add_run_part(run, rows, start)
    return build_suite_points(history, history.find_run(run), start)


def test_a_point_is_the_rate_of_one_agent_on_one_suite_with_its_interval(tmp_path: Path):
    rows = [row("passed", f"c{n}", ms=float(n)) for n in range(1, 31)] + [
        row("failed", f"f{n}", ms=50.0) for n in range(10)
    ]
    found = points(History(tmp_path), "01", *rows, row("skipped", "z", ms=900.0), row("passed", agent="other"))
    bot, other = (each.point for each in sorted(found, key=lambda each: each.agent))
    assert (bot.passed, bot.decided, bot.pass_rate, bot.p95_ms, bot.cost_usd) == (30, 40, 0.75, 50.0, 20.5)
    assert bot.low is not None
    assert bot.high is not None
    assert bot.low < 0.75 < bot.high
    assert (other.passed, other.decided) == (1, 1)
    (only,) = points(History(tmp_path), "02", row("error"))
    assert (only.point.decided, only.point.pass_rate) == (0, None)


def test_changes_of_the_agent_are_marked_and_unfair_runs_are_left_out(tmp_path: Path):
    history = History(tmp_path)
    two = (row("passed", "a"), row("passed", "b"))
    runs = [
        points(history, "01", *two),
        points(history, "02", *two, digest="2", replay="c.cassette"),
        points(history, "03", *two),
        points(history, "04", row("passed", "a"), size=2),
        points(history, "05", *two, size=3),
        points(history, "06", *two, digest="2"),
    ]
    (line,) = group_points_into_lines(point for run in runs for point in run)
    assert [point.left_out for point in line.points] == ["", "replay", "", "one case", "part of the suite", ""]
    assert [point.changes for point in line.points] == [(), ("agent",), (), (), (), ("agent",)]

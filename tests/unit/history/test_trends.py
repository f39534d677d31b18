"""Cases that flip."""

from pathlib import Path
from typing import Any

from viva.history.index import History, ResultRow
from viva.history.trends import find_flaky_cases
from viva.model.event import RunEnded, RunStarted, RunSummary
from viva.model.record import Status


def kept(history: History, run: str, *rows: ResultRow, agent: str = "bot", **counts: int) -> None:
    """A run that has ended with these results."""
    start = RunStarted(run, f"2026-01-01T00:00:{run[-2:]}Z", "0.1", agent, (), len(rows), len(rows), 1)
    history.add_run_part(run, rows, start)
    numbers: dict[str, Any] = (
        dict.fromkeys(("total", "passed", "failed", "errors", "skipped", "not_run", "unchecked"), 0) | counts
    )
    zeros: dict[str, Any] = {"total_turns": 0, "avg_turns": 0.0, "duration_ms": 5.0, "checks": 0, "checks_passed": 0}
    history.add_run_part(run, end=RunEnded(run, "2026-01-01T00:01:00Z", 0, RunSummary(**numbers, **zeros)))


def row(status: Status, case: str = "a", trial: int = 1, digest: str = "d", ms: float = 1.0) -> ResultRow:
    return ResultRow(suite="s", case=case, trial=trial, status=status, digest=digest, duration_ms=ms)


def flips(history: History, *runs: str) -> list[tuple[str, int]]:
    return [(case.case, case.flips) for case in find_flaky_cases(history, runs)]


def test_cases_that_flip_most_often_come_first_and_one_change_is_not_flaky(tmp_path: Path):
    history = History(tmp_path)
    seen = {"often": "pfpf", "twice": "ppfp", "fixed": "ffpp", "fine": "pppp", "broken": "eppe"}
    words: dict[str, Status] = {"p": "passed", "f": "failed", "e": "error"}
    for n in range(4):
        kept(history, f"r0{n}", *(row(words[signs[n]], case) for case, signs in seen.items()))
    assert flips(history, "r00", "r01", "r02", "r03") == [("often", 3), ("twice", 2)]
    assert flips(history, "r00", "r01") == []
    assert flips(history) == []
    (often, _) = find_flaky_cases(history, ["r03", "r02", "r01", "r00"])
    assert (often.statuses, often.runs) == (["passed", "failed"] * 2, ["r00", "r01", "r02", "r03"])
    assert (often.passed, often.decided, often.flip_rate) == (2, 4, 1.0)


def test_trials_of_one_run_that_disagree_are_flaky(tmp_path: Path):
    history = History(tmp_path)
    kept(history, "r01", row("passed"), row("failed", trial=2))
    assert flips(history, "r01") == [("a", 1)]


def test_another_agent_or_another_definition_is_not_a_flip(tmp_path: Path):
    history = History(tmp_path)
    seen: list[tuple[Status, str, str]] = [
        ("passed", "a", "1"),
        ("failed", "b", "1"),
        ("passed", "a", "1"),
        ("failed", "a", "2"),
        ("passed", "b", "2"),
    ]
    for n, (status, agent, digest) in enumerate(seen):
        kept(history, f"r0{n}", row(status, digest=digest), agent=agent)
    assert flips(history, *(f"r0{n}" for n in range(5))) == []

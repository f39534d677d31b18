"""The end of a run in words: counts, turns, time, tokens, cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from viva.model.event import RunEnded, RunStarted, RunSummary, SuiteSummary
from viva.reporters.formatting import escape_controls, fit_line
from viva.reporters.numbers import format_cost, format_count, format_ms
from viva.reporters.palette import STATUS_MARKS


def format_summary(started: RunStarted | None, ended: RunEnded) -> list[str]:
    """The summary as the specification lays it out, and what it leaves out."""
    summary = ended.summary
    missing = f" of {summary.total:,}" if summary.not_run else ""
    unchecked = f" ({summary.unchecked:,} with nothing checked)" if summary.unchecked else ""
    lines = [
        f"Total:   {format_count(summary.total, 'test')}",
        f"Passed:  {summary.passed:,}",
        f"Failed:  {summary.failed:,}",
        f"Errors:  {summary.errors:,}{_faults(summary)}",
        *([f"Undecided: {summary.undecided:,}"] if summary.undecided else []),
        f"Skipped: {summary.skipped:,}{unchecked}",
        f"Not run: {summary.not_run:,}{missing}",
        "",
        f"Total turns: {summary.total_turns:,}",
        f"Avg turns/test: {summary.avg_turns:.1f}",
        f"Total time: {format_ms(summary.duration_ms)}",
        f"Checks: {summary.checks_passed:,}/{summary.checks:,} passed",
    ]
    lines += [f"{label}: {escape_controls(text)}" for label, text in describe_suites(summary)]
    if _is_repeated(summary):
        lines.append(f"Trials: {format_trial_counts(summary)}")
    lines += [
        f"{label}: {escape_controls(text)}"
        for label, text in (*describe_retries(summary), *describe_cost(summary), *describe_lost_reports(summary))
    ]
    lines += _places(started.settings if started else {})
    if (stop := describe_stop(ended)) is not None:
        lines += ["", f"Stopped: {stop}"]
    return lines


def format_counts(summary: RunSummary) -> str:
    """The counts in one line."""
    undecided = f"{summary.undecided:,} undecided, " if summary.undecided else ""
    return (
        f"{format_count(summary.total, 'test')}: {summary.passed:,} passed, {summary.failed:,} failed, "
        f"{format_count(summary.errors, 'error')}, {undecided}{summary.skipped:,} skipped, {summary.not_run:,} not run"
    )


def format_summary_line(ended: RunEnded) -> str:
    """The whole summary in one line."""
    summary = ended.summary
    parts = [format_counts(summary), format_count(summary.total_turns, "turn"), format_ms(summary.duration_ms)]
    parts += [f"{summary.retried:,} retried"] if summary.retried else []
    parts += [text for _, text in describe_cost(summary)] + [_said(*each) for each in describe_suites(summary)]
    parts += [f"{label.lower()}: {text}" for label, text in describe_lost_reports(summary)]
    if (stop := describe_stop(ended)) is not None:
        parts.append(f"stopped: {stop}")
    return " · ".join(parts)


def format_trial_counts(summary: RunSummary) -> str:
    """Single trials by status, for runs that try each case several times."""
    counts = ", ".join(f"{summary.trials[status]:,} {status}" for status in STATUS_MARKS if summary.trials.get(status))
    return f"{sum(summary.trials.values()):,} ({counts})"


def describe_details(summary: RunSummary) -> list[tuple[str, str]]:
    """All that a summary knows beside its counts."""
    return [
        *describe_suites(summary),
        *describe_retries(summary),
        *describe_cost(summary),
        *describe_lost_reports(summary),
    ]


def describe_retries(summary: RunSummary) -> list[tuple[str, str]]:
    """How many trials were run again, where some were."""
    if not summary.retried:
        return []
    return [("Retried", f"{format_count(summary.retried, 'trial')}; the totals include their earlier attempts")]


def describe_lost_reports(summary: RunSummary) -> list[tuple[str, str]]:
    """Reports that are not there."""
    return [("Report not written", lost) for lost in summary.lost_reports]


def describe_cost(summary: RunSummary) -> list[tuple[str, str]]:
    """Tokens and money, where something is known of them."""
    spent: list[tuple[str, str]] = []
    if summary.input_tokens or summary.output_tokens:
        spent.append(("Tokens", f"{summary.input_tokens:,} in, {summary.output_tokens:,} out"))
    if (money := format_cost(summary.cost_usd, summary.unpriced_calls)) is not None:
        spent.append(("Cost", money))
    return spent


def describe_suites(summary: RunSummary) -> list[tuple[str, str]]:
    """Where each suite that has a bar stands: its score, what it missed with both numbers, and how it was before."""
    said: list[tuple[str, str]] = []
    for suite in summary.suites:
        score = f"score {suite.score:.4g} over {format_count(suite.cases, 'case')}"
        needs = "" if suite.threshold.pass_score is None else f", needs {suite.threshold.pass_score:g}"
        said.append(("Suite", f"{suite.suite} {'passed' if suite.passed else 'failed'}: {score}{needs}"))
        said += [("Missed", missed) for missed in suite.unmet]
        if (before := suite.threshold.baseline) is not None:
            worse = f"; worse: {'; '.join(suite.worse_cases)}" if suite.worse_cases else ""
            said.append(("Baseline", f"{before.score:.4g} in {before.name}: {_change(suite)}{worse}"))
    return said


def _change(suite: SuiteSummary) -> str:
    if suite.score_change is None:
        return f"not compared, for want of a verdict in both: {', '.join(suite.uncompared_cases)}"
    return f"{suite.score_change:+.4g}{', a regression' if suite.regression else ''}"


def _said(label: str, text: str) -> str:
    return text if label == "Suite" else f"{label.lower()}: {text}"


def describe_stop(ended: RunEnded) -> str | None:
    """Why a run ended early, or had nothing to say."""
    parts = (ended.stopped.replace("_", "-") if ended.stopped else None, ended.stop_message)
    said = [fit_line(part, 400) for part in parts if part]
    return ", ".join(said) if said else None


def _faults(summary: RunSummary) -> str:
    """Whose faults the errors were, trial by trial; the agent's own are failures."""
    others = [f"{number:,} {fault}" for fault, number in summary.faults.items() if fault != "agent" and number]
    if others and _is_repeated(summary):
        others[0] = f"trials: {others[0]}"
    return f" ({', '.join(others)})" if others else ""


def _is_repeated(summary: RunSummary) -> bool:
    """Were there more trials than cases?"""
    return sum(summary.trials.values()) > summary.total - summary.not_run


def _places(settings: Mapping[str, Any]) -> list[str]:
    """Where the reports and the journal are, if the run says so."""
    reports: Any = settings.get("reports") or ()
    paths: Sequence[Any] = (reports,) if isinstance(reports, str) else reports
    lines = [f"Report: {fit_line(str(path), 4096)}" for path in paths]
    if journal := settings.get("journal"):
        lines.append(f"Journal: {fit_line(str(journal), 4096)}")
    return ["", *lines] if lines else []

"""The summary of a run as text: counts, turns, time, tokens, cost, thresholds."""

from collections.abc import Mapping, Sequence
from typing import Any

from viva.model.event import RunEnded, RunStarted, RunSummary, SuiteSummary
from viva.model.record import STATUS_MARKS
from viva.reporters.formatting import escape_controls, fit_line, format_cost, format_count, format_ms

Row = tuple[str, str]
"""A label and its text."""


def format_summary(started: RunStarted | None, ended: RunEnded) -> list[str]:
    """The lines above the line of counts (N34): turns, checks, cost, thresholds and files. Zeros are left out."""
    summary = ended.summary
    rows: list[Row] = []
    if summary.total_turns:
        rows += [("Total turns", f"{summary.total_turns:,}"), ("Avg turns/test", f"{summary.avg_turns:.1f}")]
    if summary.checks:
        rows.append(("Checks", f"{summary.checks_passed:,}/{summary.checks:,} passed"))
    rows += describe_suites(summary)
    if _has_repeats(summary):
        rows.append(("Trials", format_trial_counts(summary)))
    rows += [*describe_retries(summary), *describe_cost(summary), *describe_lost_reports(summary)]
    rows += _list_reports(started.settings if started else {})
    return [f"{label}: {escape_controls(text)}" for label, text in rows]


def format_counts(summary: RunSummary, *, with_faults: bool = False) -> str:
    """The counts in one line, without zeros. `with_faults` adds whose fault the errors are."""
    faults = _format_faults(summary) if with_faults else ""
    unchecked = f" ({summary.unchecked:,} without checks)" if with_faults and summary.unchecked else ""
    counts = (
        (summary.passed, f"{summary.passed:,} passed"),
        (summary.failed, f"{summary.failed:,} failed"),
        (summary.errors, f"{format_count(summary.errors, 'error')}{faults}"),
        (summary.undecided, f"{summary.undecided:,} undecided"),
        (summary.skipped, f"{summary.skipped:,} skipped{unchecked}"),
        (summary.not_run, f"{summary.not_run:,} not run"),
    )
    parts = [text for count, text in counts if count]
    return f"{format_count(summary.total, 'test')}: {', '.join(parts) or 'nothing ran'}"


def format_summary_line(ended: RunEnded) -> str:
    """The summary of `-q`: one line."""
    summary = ended.summary
    turns = [format_count(summary.total_turns, "turn")] if summary.total_turns else []
    parts = [format_counts(summary), *turns, format_ms(summary.duration_ms)]
    parts += [f"{summary.retried:,} retried"] if summary.retried else []
    parts += [text for _, text in describe_cost(summary)]
    parts += [text if label == "Suite" else f"{label.lower()}: {text}" for label, text in describe_suites(summary)]
    parts += [f"{label.lower()}: {text}" for label, text in describe_lost_reports(summary)]
    if (stop := describe_stop(ended)) is not None:
        parts.append(f"stopped: {stop}")
    return " · ".join(parts)


def format_trial_counts(summary: RunSummary) -> str:
    """Trials by status, for runs with several trials per case."""
    counts = [(status, summary.trials[status]) for status in STATUS_MARKS if summary.trials.get(status)]
    texts = (format_count(many, "error") if status == "error" else f"{many:,} {status}" for status, many in counts)
    return f"{sum(summary.trials.values()):,} ({', '.join(texts)})"


def describe_details(summary: RunSummary) -> list[Row]:
    """Thresholds, retries, cost and lost reports of a run."""
    return [
        *describe_suites(summary),
        *describe_retries(summary),
        *describe_cost(summary),
        *describe_lost_reports(summary),
    ]


def describe_retries(summary: RunSummary) -> list[Row]:
    if not summary.retried:
        return []
    return [("Retried", f"{format_count(summary.retried, 'trial')}; totals include earlier attempts")]


def describe_lost_reports(summary: RunSummary) -> list[Row]:
    return [("Report not written", report) for report in summary.lost_reports]


def describe_cost(summary: RunSummary) -> list[Row]:
    """Tokens and cost, as far as known."""
    rows: list[Row] = []
    if summary.input_tokens or summary.output_tokens:
        rows.append(("Tokens", f"{summary.input_tokens:,} in, {summary.output_tokens:,} out"))
    if (cost := format_cost(summary.cost_usd, summary.unpriced_calls)) is not None:
        rows.append(("Cost", cost))
    return rows


def describe_suites(summary: RunSummary) -> list[Row]:
    """The result of each suite with a threshold: its score, unmet limits, and the change since the baseline."""
    rows: list[Row] = []
    names_agents = len({suite.agent for suite in summary.suites}) > 1
    for suite in summary.suites:
        score = f"score {suite.score:.4g} over {format_count(suite.cases, 'case')}"
        required = "" if suite.threshold.pass_score is None else f", needs {suite.threshold.pass_score:g}"
        agent = f" on {suite.agent}" if names_agents else ""
        rows.append(("Suite", f"{suite.suite}{agent} {'passed' if suite.passed else 'failed'}: {score}{required}"))
        rows += [("Threshold not met", unmet) for unmet in suite.unmet]
        if (baseline := suite.threshold.baseline) is not None:
            worse = f"; worse: {'; '.join(suite.worse_cases)}" if suite.worse_cases else ""
            rows.append(("Baseline", f"{baseline.score:.4g} in {baseline.name}: {_format_change(suite)}{worse}"))
    return rows


def _format_change(suite: SuiteSummary) -> str:
    if suite.score_change is None:
        return f"not compared (no verdict in both runs): {', '.join(suite.uncompared_cases)}"
    return f"{suite.score_change:+.4g}{', a regression' if suite.regression else ''}"


def describe_stop(ended: RunEnded) -> str | None:
    """Why a run ended early."""
    parts = (ended.stopped.replace("_", "-") if ended.stopped else None, ended.stop_message)
    return ", ".join(fit_line(part, 400) for part in parts if part) or None


def _format_faults(summary: RunSummary) -> str:
    """The faults of errors by trial; faults of the agent are failures."""
    faults = [(fault, number) for fault, number in summary.faults.items() if fault != "agent" and number]
    if len(faults) == 1 and faults[0][1] == summary.errors:
        return f" ({faults[0][0]})"
    texts = [f"{number:,} {fault}" for fault, number in faults]
    if texts and _has_repeats(summary):
        texts[0] = f"trials: {texts[0]}"
    return f" ({', '.join(texts)})" if texts else ""


def _has_repeats(summary: RunSummary) -> bool:
    return sum(summary.trials.values()) > summary.total - summary.not_run


def _list_reports(settings: Mapping[str, Any]) -> list[Row]:
    reports: Any = settings.get("reports") or ()
    paths: Sequence[Any] = (reports,) if isinstance(reports, str) else reports
    return [("Report", fit_line(str(path), 4096)) for path in paths]

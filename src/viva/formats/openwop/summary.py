"""Builds the EvalSummary of an eval suite from records: scores, ids and counts, without any text of the conversations."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, BinaryIO

from msgspec import UNSET, Meta, Struct, UnsetType

from viva.engine.thresholds import CaseScore, score_case, score_trial
from viva.errors import BadInput
from viva.model import codec
from viva.model.case import ModelClass
from viva.model.event import RunEnded, SuiteSummary
from viva.model.finding import Finding
from viva.model.record import TrialRecord
from viva.reporters.report import Report
from viva.stats.pass_rule import PassRule

_ScoreValue = Annotated[float, Meta(ge=0, le=1)]
_Cost = Annotated[float, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=0)]
_Name = Annotated[str, Meta(min_length=1)]
_SuiteId = Annotated[str, Meta(pattern=r"^[a-z0-9.-]+\.evals\.[a-z0-9-]+$")]
_Version = Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
_TaskId = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*$")]
_DEFAULT_RULE = PassRule()


class _SummaryPart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A closed object of the summary, with the field names of its schema."""


class TaskSummary(_SummaryPart, frozen=True, kw_only=True):
    """Result of a task. The cost is omitted if unknown, the latency if nothing was sent."""

    task_id: _TaskId
    score: _ScoreValue
    passed: bool
    cost_usd: _Cost | UnsetType = UNSET
    latency_ms: _Count | UnsetType = UNSET
    schema_valid: bool | UnsetType = UNSET
    safety_findings: tuple[Finding, ...] | UnsetType = UNSET


class Regression(_SummaryPart, frozen=True, kw_only=True):
    """The score compared with an earlier run; negative is worse."""

    baseline_run_id: _Name
    score_delta: Annotated[float, Meta(ge=-1, le=1)]
    diff_ref: str | UnsetType = UNSET


class EvalSummary(_SummaryPart, frozen=True, kw_only=True):
    """The scorecard of one suite in one run."""

    suite_id: _SuiteId
    suite_version: _Version
    evaluated_model_class: ModelClass | UnsetType = UNSET
    aggregate_score: _ScoreValue
    passed: bool
    task_count: _Count
    passed_count: _Count
    total_cost_usd: _Cost | UnsetType = UNSET
    tasks: tuple[TaskSummary, ...]
    regression: Regression | UnsetType = UNSET


def build_eval_summary(
    suite_summary: SuiteSummary,
    records: Iterable[TrialRecord],
    *,
    model_class: Any = None,
    diff_ref: str | None = None,
    rule: PassRule = _DEFAULT_RULE,
) -> EvalSummary:
    """The summary of a suite, its tasks in the order of the records. Records of other suites are not looked at.

    Of several trials of a task (`--runs`) the score and latency are the mean, the cost is the sum; it passed as the
    rule of the run says.
    """
    trials: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.suite == suite_summary.suite:
            trials.setdefault(record.id, []).append(record)
    threshold = suite_summary.threshold
    compared: Regression | UnsetType = UNSET
    if threshold.baseline is not None and (delta := suite_summary.score_change) is not None:
        compared = Regression(
            baseline_run_id=threshold.baseline.name, score_delta=delta, diff_ref=UNSET if diff_ref is None else diff_ref
        )
    return EvalSummary(
        suite_id=suite_summary.suite,
        suite_version=suite_summary.version,
        evaluated_model_class=model_class or UNSET,
        aggregate_score=suite_summary.score,
        passed=suite_summary.passed,
        task_count=suite_summary.cases,
        passed_count=suite_summary.passed_cases,
        total_cost_usd=UNSET if suite_summary.cost_usd is None else suite_summary.cost_usd,
        tasks=tuple(build_task_summary(each, rule) for each in trials.values()),
        regression=compared,
    )


def build_task_summary(records: Sequence[TrialRecord], rule: PassRule = _DEFAULT_RULE) -> TaskSummary:
    """The result of one task over all its trials."""
    in_order = sorted(records, key=lambda record: record.trial)
    score: CaseScore = score_case(records[0].id, [score_trial(record) for record in in_order], rule)
    was_checked = any(_find_assertion(record, "safety") is not None for record in records)
    valid = [each["passed"] for record in records if (each := _find_assertion(record, "return_schema")) is not None]
    return TaskSummary(
        task_id=score.case,
        score=score.score,
        passed=score.status == "passed",
        cost_usd=UNSET if score.cost_usd is None else score.cost_usd,
        latency_ms=UNSET if score.latency_ms is None else score.latency_ms,
        schema_valid=all(each is True for each in valid) if valid else UNSET,
        safety_findings=score.findings if was_checked or score.findings else UNSET,
    )


def _find_assertion(record: TrialRecord, kind: str) -> dict[str, Any] | None:
    """The first evaluated assertion of a type."""
    return next((each for turn in record.turns for each in turn.assertions if each.get("type") == kind), None)


def parse_eval_summary(raw: bytes, file: str) -> EvalSummary:
    """Parse a summary file. Raises BadInput if it is not one."""
    try:
        return codec.decode(raw, type=EvalSummary)
    except codec.DecodeError as error:
        raise BadInput.of(f"is not an eval summary: {error}", file) from error


class EvalSummaryReport(Report):
    """Writes the summary of the run's eval suite when the run ends."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        settings = self._started.settings if self._started else {}
        (suite_summary,) = (suite for suite in ended.summary.suites if suite.kind == "eval_suite")
        summary = build_eval_summary(
            suite_summary, self._journal.records(), model_class=settings.get("model_class"), rule=self.rule
        )
        out.write(codec.pretty_json(codec.encode(summary)) + b"\n")

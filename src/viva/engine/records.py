"""Builds the record of a trial from its state."""

import time
from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from viva.engine.outcome import Outcome, all_assertion_results, count_checks
from viva.model import codec
from viva.model.case import Assertion, Checkpoint
from viva.model.finding import Finding
from viva.model.message import Attachment, Message, Part, ToolCall, Usage
from viva.model.record import CheckpointRecord, ToolCallRecord, TrialRecord, TurnRecord
from viva.model.turn import AssertionResult, CheckpointState, Turn, Verdict
from viva.state.evaluation import format_assertion_label, is_live_check
from viva.state.trial_state import TrialState
from viva.text.tool_names import find_unstubbed_tools

_MIN_RECORDED_CHECKS_MS = 0.5
"""A shorter duration of checks is recorded as 0, to keep records small."""


def build_turn_record(turn: Turn) -> TurnRecord:
    """Builds the record of one turn, finished or cut off."""
    user_message, message = turn.user_message, turn.user_message.message
    reply = turn.reply or turn.partial_reply
    record = TurnRecord(
        turn=turn.number,
        input=message.text,
        input_source=user_message.source,
        output=reply.content if reply else "",
        awaiting_input=turn.awaiting is not None and turn.awaiting.is_awaiting,
        tool_calls=[_build_tool_call_record(call) for call in reply.tool_calls] if reply else [],
        assertions=[build_assertion_record(result) for result in turn.results],
        duration_ms=round(turn.latency_ms, 3),
        start_ms=round(turn.start_ms, 3),
        checks_ms=round(turn.checks_ms, 3) if turn.checks_ms >= _MIN_RECORDED_CHECKS_MS else 0.0,
        error=turn.error,
        files=turn.files,
        comment=user_message.comment,
    )
    if (
        user_message.options and user_message.history is None
    ):  # with a history they are options of code, not of the case
        record.options = dict(user_message.options)
    if turn.awaiting is not None:
        record.awaiting_reason = turn.awaiting.reason
        record.awaiting_confidence = turn.awaiting.confidence
    if not isinstance(message.content, str):
        record.attachments = [_part_without_url(part) for part in message.attachments]
    if turn.results:
        record.assertion_errors = describe_failures(turn.results) or None
    if reply is not None:
        if reply.first_token_ms is not None:
            record.first_token_ms = round(reply.first_token_ms, 3)
        record.parts = reply.parts
        record.data = reply.data
        record.input_hint = reply.input_hint
        record.finish_reason = reply.finish_reason
        record.path = reply.path
        record.steps = reply.steps
        if reply.calls:
            record.usage = Usage.of(reply.calls)
            record.cost_usd = record.usage.cost_usd
    return record


def build_trial_record(state: TrialState, outcome: Outcome, trials: int = 1) -> TrialRecord:
    """Builds the record of a trial. A trial that failed or was cut off keeps its turns, verdicts and score."""
    case, key = state.case, state.key
    usage = Usage.of(state.calls) if state.calls else None
    results = all_assertion_results(state)
    is_cut_short = outcome.status in ("failed", "error")
    unsent = [message.message.text for message in case.user.planned_messages[len(state.turns) :]]
    return TrialRecord(
        id=case.id,
        name=case.name or case.id,
        status=outcome.status,
        turns=[build_turn_record(turn) for turn in state.turns],
        final_assertions=[build_assertion_record(result) for result in state.final_results],
        total_turns=len(state.turns),
        duration_ms=round((time.perf_counter() - state.started) * 1e3, 3),
        suite=key.suite,
        trial=key.trial,
        attempt=key.attempt,
        trials=trials,
        fault=outcome.fault,
        fault_evidence=_list_fault_evidence(state, outcome) if outcome.fault else None,
        error=outcome.message,
        deterministic=outcome.deterministic,
        unchecked=outcome.unchecked,
        hint=outcome.hint,
        assertion_errors=describe_failures(results) or None,
        checkpoints=[_build_checkpoint_record(checkpoint, state) for checkpoint in case.goal.checkpoints] or None,
        goal_achieved=True if state.goal_reason is not None else None,
        goal_reason=state.goal_reason,
        turns_not_run=(unsent or None) if is_cut_short else None,
        checks=count_checks(state),
        score=_compute_score(state, results, outcome),
        usage=usage,
        cost_usd=usage.cost_usd if usage else None,
        model_calls=tuple(state.calls) if case.records_model_calls else (),
        tags=case.tags,
        history=[_message_fields(message) for message in case.history] or None,
        options=dict(case.options) or None,
        metadata=dict(case.metadata) or None,
        agent=key.agent or None,
        simulator=case.user.simulator,
        session_id=state.session_id,
        started_at=state.started_at,
        source=str(case.origin) if case.origin else None,
        digest=case.digest or None,
        warnings=state.warnings or None,
        tracebacks=tuple(state.tracebacks),
        helper_calls=tuple(state.helper_calls),
        notes=state.notes or None,
        findings=_collect_findings(state, results),
        workspace=state.kept_workspace,
    )


def _list_fault_evidence(state: TrialState, outcome: Outcome) -> list[str]:
    """The reasons for the fault, with their places: checks, turns and checkpoints that failed."""
    status = "failed" if outcome.status == "failed" else "error"
    results_by_place = [
        *((f"turn {turn.number}", turn.results) for turn in state.turns),
        ("in the end", state.final_results),
    ]
    evidence = [
        f"{place}: {format_assertion_label(result.assertion)}: {result.verdict.reason or result.verdict.status}"
        for place, results in results_by_place
        for result in results
        if result.verdict.status == status
    ]
    evidence += [f"turn {turn.number}: {turn.error}" for turn in state.turns if turn.error]
    for checkpoint in state.case.goal.checkpoints if not evidence else ():
        checkpoint_state = state.checkpoints.get(checkpoint.id, CheckpointState())
        verdict = checkpoint_state.verdict
        is_missing = checkpoint.required and checkpoint_state.turn is None
        if is_missing and (status == "failed" or (verdict is not None and verdict.status == "error")):
            evidence.append(f"checkpoint {checkpoint.id}: {verdict.reason if verdict else 'never tried'}")
    if outcome.message and not any(line.endswith(outcome.message) for line in evidence):
        evidence.append(f"after turn {len(state.turns)}: {outcome.message}" if state.turns else outcome.message)
    return evidence


def build_assertion_record(result: AssertionResult) -> dict[str, Any]:
    """The assertion's definition with its verdict; `passed` is null if it could not be evaluated."""
    verdict = result.verdict
    status = verdict.status
    record = {**_labelled_definition(result.assertion), "passed": None if status == "error" else status == "passed"}
    if result.is_live:
        record |= _LIVE_FIELDS | {"label": f"{record['label']} (ran live)"}
    if result.duration_ms is not None:
        record["duration_ms"] = result.duration_ms
    if result.helper_calls:
        record["judge_calls"] = list(result.helper_calls)
    if status == "passed" and not verdict.reason and verdict.score is None:
        return record
    return record | _verdict_fields(verdict)


_LIVE_FIELDS = {"live": True}
"""Added to the record of a check that read something that the cassette does not hold."""


def _labelled_definition(assertion: Assertion) -> dict[str, Any]:
    return {**assertion.definition, "label": format_assertion_label(assertion)}


def _verdict_fields(verdict: Verdict) -> dict[str, Any]:
    details = {
        "reason": verdict.reason or None,
        "score": verdict.score,
        "expected": verdict.expected,
        "actual": verdict.actual,
        "evidence": codec.to_builtins(verdict.evidence) or None,
        "suggestions": list(verdict.suggestions) or None,
        "criteria_results": codec.to_builtins(verdict.criteria) or None,
    }
    return {key: value for key, value in details.items() if value is not None and value is not UNSET}


def describe_failures(results: Iterable[AssertionResult]) -> list[str]:
    """One line for each assertion that failed or could not be evaluated."""
    return [
        f"{result.assertion.message or format_assertion_label(result.assertion)}: "
        f"{result.verdict.reason or result.verdict.status}"
        for result in results
        if result.verdict.status != "passed"
    ]


def _collect_findings(state: TrialState, results: list[AssertionResult]) -> tuple[Finding, ...]:
    """Each distinct finding once."""
    findings = {finding for result in results for finding in result.verdict.findings}
    for turn in state.turns:
        if turn.reply is None and turn.partial_reply is not None:  # no check has seen it
            findings.update(find_unstubbed_tools(turn.partial_reply.tool_calls, state.case.fixtures))
    return tuple(sorted(findings))


def _compute_score(state: TrialState, results: list[AssertionResult], outcome: Outcome) -> float | None:
    """The weighted share of passed verdicts, or of their own scores, from 0 to 1. A failed gate makes it 0.

    An agent that failed by itself (it raised or timed out) failed one more check: a failed trial never scores 1.
    """
    total = reached = 0.0
    for result in results:
        assertion, verdict = result.assertion, result.verdict
        if assertion.gate and verdict.status == "failed":
            return 0.0
        if verdict.status != "error":
            total += assertion.weight
            reached += assertion.weight * _score_of_verdict(verdict)
    for checkpoint in state.case.goal.checkpoints if state.turns else ():  # before the first turn nothing was checked
        total += checkpoint.assertion.weight
        if state.checkpoints and state.checkpoints[checkpoint.id].turn is not None:
            reached += checkpoint.assertion.weight
    if outcome.status == "failed" and reached >= total > 0:
        total += 1
    return round(reached / total, 6) if total else None


def _score_of_verdict(verdict: Verdict) -> float:
    """A verdict as a number from 0 to 1. A score on another scale (4 of 5) counts as passed or failed."""
    if verdict.score is None or not 0 <= verdict.score <= 1:
        return float(verdict.passed)
    return verdict.score


def _build_checkpoint_record(checkpoint: Checkpoint, state: TrialState) -> CheckpointRecord:
    checkpoint_state = state.checkpoints.get(checkpoint.id, CheckpointState())
    reached, verdict = checkpoint_state.turn is not None, checkpoint_state.verdict
    if reached and verdict is not None:
        reason = verdict.reason or format_assertion_label(checkpoint.assertion)
    elif checkpoint_state.unmet_after:
        reason = "waits for " + ", ".join(checkpoint_state.unmet_after)
        reason += f"; last: {verdict.reason}" if verdict else ""
    else:
        reason = verdict.reason if verdict else "never tried"
    return CheckpointRecord(
        id=checkpoint.id,
        description=checkpoint.description,
        required=checkpoint.required,
        reached=reached,
        turn=checkpoint_state.turn,
        reason=reason,
        unmet_after=() if reached else checkpoint_state.unmet_after,
        assertion={
            **_labelled_definition(checkpoint.assertion),
            **(_verdict_fields(verdict) if verdict else {}),
            **({"judge_calls": list(checkpoint_state.helper_calls)} if checkpoint_state.helper_calls else {}),
            **(_LIVE_FIELDS if is_live_check(checkpoint.assertion, state) else {}),
        },
    )


def _build_tool_call_record(call: ToolCall) -> ToolCallRecord:
    return ToolCallRecord(
        call.name, call.arguments, call.id, call.result, call.error, pending=call.pending, refused=call.refused
    )


def _part_without_url(part: Part | Attachment) -> dict[str, Any]:
    """A part without its `url`: the bytes of attachments stay out of records."""
    return {key: value for key, value in codec.to_builtins(part).items() if key != "url"}


def _message_fields(message: Message) -> dict[str, Any]:
    content = message.content
    return {
        **codec.to_builtins(message),
        "content": content if isinstance(content, str) else [*map(_part_without_url, content)],
    }

"""From a talk to its record: the engine's words become those of the specification's report."""

import time
from typing import Any

from msgspec import UNSET

from viva.engine.outcome import Outcome, count_checks
from viva.model import codec
from viva.model.case import Assertion, Checkpoint
from viva.model.finding import Finding
from viva.model.message import Attachment, Message, Part, ToolCall, Usage
from viva.model.record import CheckpointRecord, ToolCallRecord, TrialRecord, TurnRecord
from viva.model.turn import AssertionResult, CheckpointState, Turn, Verdict
from viva.state.evaluation import assertion_label, is_live
from viva.state.trial_state import TrialState
from viva.state.unstubbed import unstubbed_tools


def turn_record(turn: Turn) -> TurnRecord:
    """One turn as reports show it, finished or cut off."""
    reply, message = turn.reply or turn.partial_reply, turn.user_message.message
    record = TurnRecord(
        turn=turn.number,
        input=message.text,
        input_source=turn.user_message.source,
        output=reply.content if reply else "",
        awaiting_input=turn.awaiting is not None and turn.awaiting.is_awaiting,
        tool_calls=[_tool_call(call) for call in reply.tool_calls] if reply else [],
        assertions=[assertion_record(each) for each in turn.results],
        duration_ms=round(turn.latency_ms, 3),
        error=turn.error,
        files=turn.files,
        comment=turn.user_message.comment,
    )
    if (
        turn.user_message.options and turn.user_message.history is None
    ):  # those of a script test are its code's, not the case's
        record.options = dict(turn.user_message.options)
    if turn.awaiting is not None:
        record.awaiting_reason = turn.awaiting.reason
        record.awaiting_confidence = turn.awaiting.confidence
    if not isinstance(message.content, str):
        record.attachments = _attachments(message)
    if turn.results:
        record.assertion_errors = failure_lines(turn.results) or None
    if reply is not None:
        record.data = reply.data
        record.input_hint = reply.input_hint
        record.finish_reason = reply.finish_reason
        if reply.calls:
            record.usage = Usage.of(reply.calls)
            record.cost_usd = record.usage.cost_usd
    return record


def trial_record(
    state: TrialState,
    outcome: Outcome,
    *,
    agent: str,
    session_id: str,
    started_at: str,
    not_run: list[str],
    trials: int = 1,
) -> TrialRecord:
    """The whole trial. What was reached before it ended is scored and shown, however it ended."""
    case, key = state.case, state.key
    usage = Usage.of(state.calls) if state.calls else None
    return TrialRecord(
        id=case.id,
        name=case.name or case.id,
        status=outcome.status,
        turns=[turn_record(turn) for turn in state.turns],
        final_assertions=[assertion_record(each) for each in state.final_results],
        total_turns=len(state.turns),
        duration_ms=round((time.perf_counter() - state.started) * 1e3, 3),
        suite=key.suite,
        trial=key.trial,
        attempt=key.attempt,
        trials=trials,
        fault=outcome.fault,
        fault_evidence=_evidence(state, outcome) if outcome.fault else None,
        error=outcome.message,
        deterministic=outcome.deterministic,
        hint=outcome.hint,
        assertion_errors=failure_lines([*(j for turn in state.turns for j in turn.results), *state.final_results])
        or None,
        checkpoints=_checkpoints(state) or None,
        goal_achieved=True if state.goal_reason is not None else None,
        goal_reason=state.goal_reason,
        turns_not_run=not_run or None,
        checks=count_checks(state),
        score=_score(state, outcome),
        usage=usage,
        cost_usd=usage.cost_usd if usage else None,
        model_calls=tuple(state.calls) if case.keep_calls else (),
        tags=case.tags,
        history=[_said_before(message) for message in case.history] or None,
        options=dict(case.options) or None,
        metadata=dict(case.metadata) or None,
        agent=agent or None,
        simulator=case.user.simulator,
        session_id=session_id,
        started_at=started_at,
        source=str(case.origin) if case.origin else None,
        digest=case.digest or None,
        warnings=state.warnings or None,
        tracebacks=tuple(state.tracebacks),
        notes=state.notes or None,
        findings=_found(state),
        workspace=state.kept_workspace,
    )


def _evidence(state: TrialState, outcome: Outcome) -> list[str]:
    """What the blame rests on, with its place: checks that failed or broke, turns that went wrong, checkpoints never seen."""
    status = "failed" if outcome.status == "failed" else "error"
    places = [*((f"turn {turn.number}", turn.results) for turn in state.turns), ("in the end", state.final_results)]
    found = [
        f"{place}: {assertion_label(each.assertion)}: {each.verdict.reason or each.verdict.status}"
        for place, judged in places
        for each in judged
        if each.verdict.status == status
    ]
    found += [f"turn {turn.number}: {turn.error}" for turn in state.turns if turn.error]
    for checkpoint in state.case.goal.checkpoints if not found else ():
        checkpoint_state = state.checkpoints.get(checkpoint.id, CheckpointState())
        if checkpoint.required and checkpoint_state.turn is None:
            last = checkpoint_state.verdict.reason if checkpoint_state.verdict else "never tried"
            found.append(f"checkpoint {checkpoint.id}: {last}")
    if outcome.message and not any(line.endswith(outcome.message) for line in found):
        found.append(f"after turn {len(state.turns)}: {outcome.message}" if state.turns else outcome.message)
    return found


def assertion_record(judged: AssertionResult) -> dict[str, Any]:
    """A claim as it was written, with what came of it; `passed` is null where it could not be evaluated."""
    assertion, verdict = judged.assertion, judged.verdict
    shown: dict[str, Any] = {**_written(assertion), "passed": None if verdict.status == "error" else verdict.passed}
    if judged.is_live:
        shown |= _LIVE | {"label": f"{shown['label']} (ran live)"}
    if verdict.status == "passed" and not verdict.reason and verdict.score is None:
        return shown
    return {**shown, **_details(verdict)}


_LIVE = {"live": True}
"""What this check found is not on the cassette: it looked for itself."""


def _written(assertion: Assertion) -> dict[str, Any]:
    return {**assertion.definition, "label": assertion_label(assertion)}


def _details(verdict: Verdict) -> dict[str, Any]:
    details = {
        "reason": verdict.reason or None,
        "score": verdict.score,
        "expected": verdict.expected,
        "actual": verdict.actual,
        "evidence": codec.to_builtins(verdict.evidence) or None,
        "suggestions": list(verdict.suggestions) or None,
    }
    return {key: value for key, value in details.items() if value is not None and value is not UNSET}


def failure_lines(judged: list[AssertionResult]) -> list[str]:
    """One line for each claim that does not hold or could not be evaluated."""
    return [
        f"{each.assertion.message or _written(each.assertion)['label']}: {each.verdict.reason or each.verdict.status}"
        for each in judged
        if not each.verdict.passed
    ]


def _found(state: TrialState) -> tuple[Finding, ...]:
    """Every kind of finding once."""
    verdicts = [each.verdict for turn in state.turns for each in turn.results] + [
        each.verdict for each in state.final_results
    ]
    found = {found for verdict in verdicts for found in verdict.findings}
    for turn in state.turns:
        if turn.reply is None and turn.partial_reply is not None:  # no check has seen it
            found.update(unstubbed_tools(turn.partial_reply.tool_calls, state.case.fixtures))
    return tuple(sorted(found))


def _score(state: TrialState, outcome: Outcome) -> float | None:
    """Weighted share of verdicts that passed; a verdict's own score counts where it has one. A gate that fails takes it all.

    An agent that failed by itself (it raised, it took too long) failed one check more: no score is 1 beside a failure.
    """
    total = got = 0.0
    judged = [*(each for turn in state.turns for each in turn.results), *state.final_results]
    if any(each.assertion.gate and each.verdict.status == "failed" for each in judged):
        return 0.0
    for each in judged:
        if each.verdict.status != "error":
            total += each.assertion.weight
            got += each.assertion.weight * (each.verdict.passed if each.verdict.score is None else each.verdict.score)
    for checkpoint in state.case.goal.checkpoints:
        total += checkpoint.assertion.weight
        got += checkpoint.assertion.weight * (
            state.checkpoints[checkpoint.id].turn is not None if state.checkpoints else 0.0
        )
    if outcome.status == "failed" and got >= total > 0:
        total += 1
    return round(got / total, 6) if total else None


def _checkpoints(state: TrialState) -> list[CheckpointRecord]:
    return [
        _checkpoint(each, state.checkpoints.get(each.id, CheckpointState()), state)
        for each in state.case.goal.checkpoints
    ]


def _checkpoint(checkpoint: Checkpoint, checkpoint_state: CheckpointState, state: TrialState) -> CheckpointRecord:
    reached, verdict = checkpoint_state.turn is not None, checkpoint_state.verdict
    if reached and verdict is not None:
        reason = verdict.reason or _written(checkpoint.assertion)["label"]
    elif checkpoint_state.unmet_after:
        reason = (
            "waits for " + ", ".join(checkpoint_state.unmet_after) + (f"; last: {verdict.reason}" if verdict else "")
        )
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
            **_written(checkpoint.assertion),
            **(_details(verdict) if verdict else {}),
            **(_LIVE if is_live(checkpoint.assertion, state) else {}),
        },
    )


def _tool_call(call: ToolCall) -> ToolCallRecord:
    return ToolCallRecord(
        call.name, call.arguments, call.id, call.result, call.error, pending=call.pending, refused=call.refused
    )


def _attachments(message: Message) -> list[dict[str, Any]]:
    return [_part(part) for part in message.attachments]


def _part(part: Part | Attachment) -> dict[str, Any]:
    """Attachments by their source; their bytes stay out of reports."""
    return {key: value for key, value in codec.to_builtins(part).items() if key != "url"}


def _said_before(message: Message) -> dict[str, Any]:
    content = message.content
    return {**codec.to_builtins(message), "content": content if isinstance(content, str) else [*map(_part, content)]}

"""From a talk to its record: the engine's words become those of the specification's report."""

import time
from typing import Any

from msgspec import UNSET

from viva.engine.outcome import Ending, checks_done
from viva.model import codec
from viva.model.case import Checkpoint, Claim
from viva.model.finding import Finding
from viva.model.judging import is_live, label_of
from viva.model.message import Attachment, Message, Part, ToolCall, Usage
from viva.model.record import CheckpointRecord, ToolCallRecord, TrialRecord, TurnRecord
from viva.model.talk import Judged, Sighting, Talk, Turn, Verdict
from viva.model.unstubbed import unstubbed_tools


def turn_record(turn: Turn) -> TurnRecord:
    """One turn as reports show it, finished or cut off."""
    reply, message = turn.reply or turn.partial, turn.utterance.message
    record = TurnRecord(
        turn=turn.number,
        input=message.text,
        input_source=turn.utterance.by,
        output=reply.content if reply else "",
        awaiting_input=turn.awaiting is not None and turn.awaiting.awaiting,
        tool_calls=[_tool_call(call) for call in reply.tool_calls] if reply else [],
        assertions=[assertion(each) for each in turn.judged],
        duration_ms=round(turn.latency_ms, 3),
        error=turn.error,
        files=turn.files,
        remark=turn.utterance.remark,
    )
    if (
        turn.utterance.options and turn.utterance.history is None
    ):  # those of a script test are its code's, not the case's
        record.options = dict(turn.utterance.options)
    if turn.awaiting is not None:
        record.awaiting_reason = turn.awaiting.reason
        record.awaiting_confidence = turn.awaiting.confidence
    if not isinstance(message.content, str):
        record.attachments = _attachments(message)
    if turn.judged:
        record.assertion_errors = failures(turn.judged) or None
    if reply is not None:
        record.data = reply.data
        record.input_hint = reply.input_hint
        record.finish_reason = reply.finish_reason
        if reply.calls:
            record.usage = Usage.of(reply.calls)
            record.cost_usd = record.usage.cost_usd
    return record


def trial_record(
    talk: Talk, ending: Ending, *, agent: str, session_id: str, started_at: str, not_run: list[str], trials: int = 1
) -> TrialRecord:
    """The whole trial. What was reached before it ended is scored and shown, however it ended."""
    case, key = talk.case, talk.key
    usage = Usage.of(talk.calls) if talk.calls else None
    return TrialRecord(
        id=case.id,
        name=case.name or case.id,
        status=ending.status,
        turns=[turn_record(turn) for turn in talk.turns],
        final_assertions=[assertion(each) for each in talk.finals],
        total_turns=len(talk.turns),
        duration_ms=round((time.perf_counter() - talk.started) * 1e3, 3),
        suite=key.suite,
        trial=key.trial,
        attempt=key.attempt,
        trials=trials,
        fault=ending.fault,
        fault_evidence=_evidence(talk, ending) if ending.fault else None,
        error=ending.said,
        deterministic=ending.deterministic,
        hint=ending.hint,
        assertion_errors=failures([*(j for turn in talk.turns for j in turn.judged), *talk.finals]) or None,
        checkpoints=_checkpoints(talk) or None,
        goal_achieved=True if talk.goal_achieved is not None else None,
        goal_reason=talk.goal_achieved,
        turns_not_run=not_run or None,
        checks=checks_done(talk),
        score=_score(talk, ending),
        usage=usage,
        cost_usd=usage.cost_usd if usage else None,
        model_calls=tuple(talk.calls) if case.keep_calls else (),
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
        warnings=talk.warnings or None,
        tracebacks=tuple(talk.tracebacks),
        notes=talk.notes or None,
        findings=_found(talk),
        workspace=talk.kept_at,
    )


def _evidence(talk: Talk, ending: Ending) -> list[str]:
    """What the blame rests on, with its place: checks that failed or broke, turns that went wrong, checkpoints never seen."""
    status = "failed" if ending.status == "failed" else "error"
    places = [*((f"turn {turn.number}", turn.judged) for turn in talk.turns), ("in the end", talk.finals)]
    found = [
        f"{place}: {label_of(each.claim)}: {each.verdict.reason or each.verdict.status}"
        for place, judged in places
        for each in judged
        if each.verdict.status == status
    ]
    found += [f"turn {turn.number}: {turn.error}" for turn in talk.turns if turn.error]
    for checkpoint in talk.case.goal.checkpoints if not found else ():
        sighting = talk.sightings.get(checkpoint.id, Sighting())
        if checkpoint.required and sighting.turn is None:
            last = sighting.verdict.reason if sighting.verdict else "never tried"
            found.append(f"checkpoint {checkpoint.id}: {last}")
    if ending.said and not any(line.endswith(ending.said) for line in found):
        found.append(f"after turn {len(talk.turns)}: {ending.said}" if talk.turns else ending.said)
    return found


def assertion(judged: Judged) -> dict[str, Any]:
    """A claim as it was written, with what came of it; `passed` is null where it could not be evaluated."""
    claim, verdict = judged.claim, judged.verdict
    shown: dict[str, Any] = {**_written(claim), "passed": None if verdict.status == "error" else verdict.passed}
    if judged.live:
        shown |= _LIVE | {"label": f"{shown['label']} (ran live)"}
    if verdict.status == "passed" and not verdict.reason and verdict.score is None:
        return shown
    return {**shown, **_details(verdict)}


_LIVE = {"live": True}
"""What this check found is not on the cassette: it looked for itself."""


def _written(claim: Claim) -> dict[str, Any]:
    return {**claim.written, "label": label_of(claim)}


def _details(verdict: Verdict) -> dict[str, Any]:
    details = {
        "reason": verdict.reason or None,
        "score": verdict.score,
        "expected": verdict.expected,
        "actual": verdict.actual,
        "evidence": codec.builtins(verdict.evidence) or None,
        "suggestions": list(verdict.suggestions) or None,
    }
    return {key: value for key, value in details.items() if value is not None and value is not UNSET}


def failures(judged: list[Judged]) -> list[str]:
    """One line for each claim that does not hold or could not be evaluated."""
    return [
        f"{each.claim.message or _written(each.claim)['label']}: {each.verdict.reason or each.verdict.status}"
        for each in judged
        if not each.verdict.passed
    ]


def _found(talk: Talk) -> tuple[Finding, ...]:
    """Every kind of finding once."""
    verdicts = [each.verdict for turn in talk.turns for each in turn.judged] + [each.verdict for each in talk.finals]
    found = {found for verdict in verdicts for found in verdict.findings}
    for turn in talk.turns:
        if turn.reply is None and turn.partial is not None:  # no check has seen it
            found.update(unstubbed_tools(turn.partial.tool_calls, talk.case.fixtures))
    return tuple(sorted(found))


def _score(talk: Talk, ending: Ending) -> float | None:
    """Weighted share of verdicts that passed; a verdict's own score counts where it has one. A gate that fails takes it all.

    An agent that failed by itself (it raised, it took too long) failed one check more: no score is 1 beside a failure.
    """
    total = got = 0.0
    judged = [*(each for turn in talk.turns for each in turn.judged), *talk.finals]
    if any(each.claim.gate and each.verdict.status == "failed" for each in judged):
        return 0.0
    for each in judged:
        if each.verdict.status != "error":
            total += each.claim.weight
            got += each.claim.weight * (each.verdict.passed if each.verdict.score is None else each.verdict.score)
    for checkpoint in talk.case.goal.checkpoints:
        total += checkpoint.claim.weight
        got += checkpoint.claim.weight * (talk.sightings[checkpoint.id].turn is not None if talk.sightings else 0.0)
    if ending.status == "failed" and got >= total > 0:
        total += 1
    return round(got / total, 6) if total else None


def _checkpoints(talk: Talk) -> list[CheckpointRecord]:
    return [_checkpoint(each, talk.sightings.get(each.id, Sighting()), talk) for each in talk.case.goal.checkpoints]


def _checkpoint(checkpoint: Checkpoint, sighting: Sighting, talk: Talk) -> CheckpointRecord:
    reached, verdict = sighting.turn is not None, sighting.verdict
    if reached and verdict is not None:
        reason = verdict.reason or _written(checkpoint.claim)["label"]
    elif sighting.unmet:
        reason = "waits for " + ", ".join(sighting.unmet) + (f"; last: {verdict.reason}" if verdict else "")
    else:
        reason = verdict.reason if verdict else "never tried"
    return CheckpointRecord(
        id=checkpoint.id,
        description=checkpoint.description,
        required=checkpoint.required,
        reached=reached,
        turn=sighting.turn,
        reason=reason,
        unmet_after=() if reached else sighting.unmet,
        assertion={
            **_written(checkpoint.claim),
            **(_details(verdict) if verdict else {}),
            **(_LIVE if is_live(checkpoint.claim, talk) else {}),
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
    return {key: value for key, value in codec.builtins(part).items() if key != "url"}


def _said_before(message: Message) -> dict[str, Any]:
    content = message.content
    return {**codec.builtins(message), "content": content if isinstance(content, str) else [*map(_part, content)]}

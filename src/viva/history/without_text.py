"""A journal without the texts of its conversations: results, times, costs and counts remain, so that it can be compared.

What remains is listed field by field; a new field of a record is left out until it is added here.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from viva.model.event import AGENTS_KEY, AnyEvent, Event, RunEnded, RunResumed, RunStarted, TrialEnded, TrialRetried
from viva.model.record import CheckpointRecord, TrialRecord, TurnRecord
from viva.record.journal import read_events

WITHOUT_TEXT_KEY = "without_text"
"""A setting of a run whose texts were left out."""
LEFT_OUT_TEXT = "left out: the run was pushed without text"
_ASSERTION_FIELDS = ("type", "passed", "score", "weight", "negate")
_TURN_FIELDS = ("turn", "input_source", "awaiting_input", "duration_ms", "awaiting_reason", "usage", "cost_usd")
_RECORD_FIELDS = (
    *("id", "name", "status", "total_turns", "duration_ms", "suite", "trial", "attempt", "trials", "fault"),
    *("deterministic", "goal_achieved", "checks", "score", "usage", "cost_usd", "model_calls", "tags", "agent"),
    *("simulator", "started_at", "source", "digest", "findings"),
)


def read_events_without_text(journal: Path) -> Iterator[Event]:
    """The events of a journal without texts. Notes and generated cases are left out."""
    for event in read_events(journal):
        if (stripped := _remove_text(event)) is not None:
            yield stripped


def _remove_text(event: AnyEvent) -> Event | None:
    match event:
        case RunStarted():
            return structs.replace(event, settings=_strip_settings(event.settings))
        case RunResumed():
            return event
        case TrialRetried():
            return structs.replace(event, error=LEFT_OUT_TEXT if event.error else None, workspace=None)
        case TrialEnded():
            return structs.replace(event, record=_strip_record(event.record))
        case RunEnded():
            summary = structs.replace(event.summary, lost_reports=())
            return structs.replace(event, summary=summary, stop_message=None)
        case _:
            return None


def _strip_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in settings.get("options", {}).items() if name != "cases"}
    other_settings = {name: value for name, value in settings.items() if name != AGENTS_KEY}
    return {**other_settings, "options": options, WITHOUT_TEXT_KEY: True}


def _strip_record(record: TrialRecord) -> TrialRecord:
    return TrialRecord(
        turns=[_strip_turn(turn) for turn in record.turns],
        final_assertions=_strip_assertions(record.final_assertions),
        error=LEFT_OUT_TEXT if record.error else None,
        checkpoints=record.checkpoints and [_strip_checkpoint(each) for each in record.checkpoints],
        **{name: getattr(record, name) for name in _RECORD_FIELDS},
    )


def _strip_turn(turn: TurnRecord) -> TurnRecord:
    return TurnRecord(
        input="",
        output="",
        tool_calls=[],
        assertions=_strip_assertions(turn.assertions),
        error=LEFT_OUT_TEXT if turn.error else None,
        **{name: getattr(turn, name) for name in _TURN_FIELDS},
    )


def _strip_assertions(assertions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: each[name] for name in _ASSERTION_FIELDS if name in each} for each in assertions]


def _strip_checkpoint(checkpoint: CheckpointRecord) -> CheckpointRecord:
    return CheckpointRecord(checkpoint.id, "", checkpoint.required, checkpoint.reached, checkpoint.turn)

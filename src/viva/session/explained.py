"""What did not hold, in words for an AssertionError: each claim with its reason, and the conversation so far."""

from collections.abc import Sequence

from viva.engine.outcome import Outcome
from viva.engine.records import assertion_record, trial_record
from viva.model.record import TrialRecord
from viva.model.talk import AssertionResult, TrialState
from viva.reporters.explain import finding_lines
from viva.reporters.ink import Ink
from viva.reporters.prose import transcript, why_text
from viva.reporters.why import finding, why

_WIDTH = 100
_TEXT_ROOM = 2000


def unmet_text(unmet: Sequence[AssertionResult], talk: TrialState) -> str:
    """Of a conversation that goes on."""
    lines = [line for each in unmet for line in finding_lines(finding(assertion_record(each), ""), Ink(colour=False), _WIDTH)]
    said = transcript(record_of(talk), _TEXT_ROOM)
    return "\n".join([*lines, *(["", "The conversation so far:", said] if said else [])])


def record_text(record: TrialRecord) -> str:
    """Of a trial that has ended."""
    parts = [why_text(why(record)), *(record.warnings or ()), *(record.notes or ())]
    said = transcript(record, _TEXT_ROOM)
    return "\n".join([*parts, *(["", said] if said else [])])


def record_of(talk: TrialState) -> TrialRecord:
    """What could be kept of a conversation now."""
    return trial_record(talk, Outcome("passed"), agent="", session_id=talk.key.session_id, started_at="", not_run=[])

"""What did not hold, in words for an AssertionError: each claim with its reason, and the conversation so far."""

from collections.abc import Sequence

from viva.engine.outcome import Outcome
from viva.engine.records import assertion_record, trial_record
from viva.model.record import TrialRecord
from viva.model.turn import AssertionResult
from viva.reporters.console_lines import Palette, format_failed_check
from viva.reporters.failures import build_failed_check, explain_failure
from viva.reporters.plain_text import format_failure_text, format_transcript
from viva.state.trial_state import TrialState

_WIDTH = 100
_TEXT_ROOM = 2000


def format_failed_assertions(unmet: Sequence[AssertionResult], state: TrialState) -> str:
    """Of a conversation that goes on."""
    lines = [
        line
        for each in unmet
        for line in format_failed_check(build_failed_check(assertion_record(each), ""), Palette(colour=False), _WIDTH)
    ]
    said = format_transcript(build_partial_record(state), _TEXT_ROOM)
    return "\n".join([*lines, *(["", "The conversation so far:", said] if said else [])])


def format_record(record: TrialRecord) -> str:
    """Of a trial that has ended."""
    parts = [format_failure_text(explain_failure(record)), *(record.warnings or ()), *(record.notes or ())]
    said = format_transcript(record, _TEXT_ROOM)
    return "\n".join([*parts, *(["", said] if said else [])])


def build_partial_record(state: TrialState) -> TrialRecord:
    """What could be kept of a conversation now."""
    return trial_record(state, Outcome("passed"))

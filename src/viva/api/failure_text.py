"""Text for failed assertions and failed trials: each reason, and the conversation."""

from collections.abc import Sequence

from msgspec import structs

from viva.engine.outcome import Outcome
from viva.engine.records import build_assertion_record, build_trial_record
from viva.model.record import TrialRecord
from viva.model.turn import AssertionResult
from viva.reporters.console_lines import Palette, format_failed_check
from viva.reporters.failures import build_failed_check, explain_failure
from viva.reporters.formatting import fit_line
from viva.reporters.plain_text import format_failure_text, format_transcript
from viva.state.trial_state import TrialState

_WIDTH = 100
_MAX_TEXT = 2000
_HEADLINE_WIDTH = 300


def format_failed_assertions(failed: Sequence[AssertionResult], state: TrialState) -> str:
    """The failed assertions of a running conversation."""
    checks = (build_failed_check(build_assertion_record(result), "") for result in failed)
    lines = [line for check in checks for line in format_failed_check(check, Palette(colour=False), _WIDTH)]
    transcript = format_transcript(build_partial_record(state), _MAX_TEXT)
    return "\n".join([*lines, *(["", "The conversation so far:", transcript] if transcript else [])])


def format_record(record: TrialRecord, command: str | None) -> str:
    """The failure of a trial that has ended. `command` replaces the command shown for running it again."""
    failure = explain_failure(record)
    if command is not None:
        failure = structs.replace(failure, command=command)
    lines = [format_failure_text(failure), *(record.warnings or ()), *(record.notes or ())]
    transcript = format_transcript(record, _MAX_TEXT)
    return "\n".join([*lines, *(["", transcript] if transcript else [])])


def format_headline(record: TrialRecord) -> str:
    """Why a trial did not pass, in one line."""
    failure = explain_failure(record)
    return fit_line(f"{failure.status_text}: {failure.headline}", _HEADLINE_WIDTH)


def build_partial_record(state: TrialState) -> TrialRecord:
    """The record of a conversation as it is now."""
    return build_trial_record(state, Outcome("passed"))

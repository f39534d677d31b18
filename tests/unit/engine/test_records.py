"""Records of trials: what they keep of replies, verdicts and checkpoints, and the score."""

from collections.abc import Sequence

import pytest
from msgspec import structs

from viva.engine.outcome import Outcome
from viva.engine.records import build_assertion_record, build_trial_record, build_turn_record
from viva.model.case import Assertion, Checkpoint, Goal
from viva.model.message import Reply
from viva.model.record import CheckpointRecord, Status
from viva.model.turn import PASSED, AssertionResult, CheckpointState, Quote, Verdict
from viva.state.trial_state import CheckContext
from viva.testing.check_context import make_trial_state


class Anything:
    """A check of a plugin."""

    costly = False
    label = "anything"

    def check(self, context: CheckContext) -> Verdict:
        return PASSED


ASSERTION = Assertion(Anything(), {"type": "anything"})
FAILED = Verdict("failed")


def test_a_turn_keeps_why_the_model_stopped_and_the_way_through_the_graph():
    (turn,) = make_trial_state(Reply("hi", finish_reason="length", path=("plan", "write"))).turns
    record = build_turn_record(turn)
    assert (record.finish_reason, record.path) == ("length", ("plan", "write"))


def test_an_assertion_keeps_the_evidence_and_the_suggestions_of_its_judge():  # N26
    verdict = Verdict("failed", "rude", evidence=(Quote(1, "No."),), suggestions=("be polite",))
    record = build_assertion_record(AssertionResult(ASSERTION, verdict))
    assert list(record["evidence"]) == [{"turn": 1, "quote": "No."}]
    assert record["suggestions"] == ["be polite"]


@pytest.mark.parametrize(
    ("verdicts", "outcome", "score"),
    [
        ([Verdict("passed", score=0.5), PASSED], Outcome("passed"), 0.75),
        ([Verdict("failed", score=1.0), FAILED], Outcome.failed(None), 0.5),
        ([Verdict("passed", score=4.0), FAILED], Outcome.failed(None), 0.5),  # 4 of 5 is another scale
        ([PASSED, Verdict("error")], Outcome("error", "judge", "down"), 1.0),
        ([PASSED, PASSED, PASSED], Outcome.failed("timeout after 5m"), 0.75),  # a failed trial never scores 1
    ],
)
def test_the_score_is_the_share_of_passed_verdicts_or_of_their_scores(
    verdicts: Sequence[Verdict], outcome: Outcome, score: float | None
):
    state = make_trial_state("hi")
    state.final_results = [AssertionResult(ASSERTION, verdict) for verdict in verdicts]
    assert build_trial_record(state, outcome).score == score


@pytest.mark.parametrize("status", ["skipped", "error"])
def test_checkpoints_count_only_once_there_is_a_turn(status: Status):
    for replies, score in (((), None), (("hi",), 0.0)):
        state = make_trial_state(*replies)
        state.case = structs.replace(state.case, goal=Goal((Checkpoint("paid", ASSERTION),)))
        assert build_trial_record(state, Outcome(status)).score == score


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        (Outcome.failed("max turns (1) exceeded"), ["asked: down", "paid: no receipt", "sent: never tried"]),
        (Outcome.error("judge", "judge error: down", deterministic=False), ["asked: down"]),
        (Outcome.error("simulator", "simulator error: down", deterministic=False), ["asked: down"]),
    ],
)
def test_missing_checkpoints_are_evidence_of_a_failure_and_those_in_error_of_an_error(
    outcome: Outcome, named: Sequence[str]
):  # N16, N17
    state = make_trial_state("hi")
    found = {
        "asked": CheckpointState(verdict=Verdict("error", "down")),
        "paid": CheckpointState(verdict=Verdict("failed", "no receipt")),
        "sent": CheckpointState(),
        "seen": CheckpointState(1, PASSED),
        "liked": CheckpointState(verdict=FAILED),
    }
    state.checkpoints = found
    goal = Goal(tuple(Checkpoint(name, ASSERTION, required=name != "liked") for name in found))
    state.case = structs.replace(state.case, goal=goal)
    evidence = build_trial_record(state, outcome).fault_evidence
    assert evidence == [*(f"checkpoint {each}" for each in named), f"after turn 1: {outcome.message}"]


def checkpoint_record(found: CheckpointState, *, uses_cassette: bool = False) -> CheckpointRecord:
    state = make_trial_state("hi")
    state.case = structs.replace(state.case, goal=Goal((Checkpoint("paid", ASSERTION, after=("asked",)),)))
    state.checkpoints["paid"] = found
    state.uses_cassette = uses_cassette
    (record,) = build_trial_record(state, Outcome.failed(None)).checkpoints or [None]
    assert record is not None
    return record


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (CheckpointState(), "never tried"),
        (CheckpointState(verdict=Verdict("failed", "no receipt")), "no receipt"),
        (CheckpointState(unmet_after=("asked",)), "waits for asked"),
        (CheckpointState(None, Verdict("failed", "no receipt"), ("asked",)), "waits for asked; last: no receipt"),
        (CheckpointState(1, Verdict("passed", "receipt 7")), "receipt 7"),
    ],
)
def test_a_checkpoint_says_how_close_it_came(found: CheckpointState, reason: str):
    record = checkpoint_record(found)  # N14
    assert (record.reason, record.reached) == (reason, found.turn == 1)


def test_a_checkpoint_names_the_calls_of_its_judge():
    assertion = checkpoint_record(CheckpointState(1, PASSED, helper_calls=(2, 3))).assertion
    assert assertion == {"type": "anything", "label": "anything", "judge_calls": [2, 3]}


@pytest.mark.parametrize(("reason", "achieved"), [("booked", True), (None, None)])
def test_a_goal_counts_as_achieved_only_if_the_simulator_said_so(reason: str | None, achieved: bool | None):
    state = make_trial_state("hi")
    state.goal_reason = reason
    assert build_trial_record(state, Outcome("passed")).goal_achieved is achieved  # N34


def test_a_checkpoint_says_whether_its_check_looked_at_more_than_the_cassette_holds():
    plain = {"type": "anything", "label": "anything"}
    assert checkpoint_record(CheckpointState(1, PASSED)).assertion == plain
    assert checkpoint_record(CheckpointState(1, PASSED), uses_cassette=True).assertion == {**plain, "live": True}

"""Full-text search: which texts of a record are found, and where."""

from collections.abc import Iterable

import pytest

from unit.reporters.samples import check, trial, turn
from viva.model import codec
from viva.model.record import CheckpointRecord, ToolCallRecord, TrialRecord
from viva.model.turn import HelperCall, SentMessage, Traceback
from viva.viewer.search import FoundCase, search_cases, split_words


def search(text: str, *cases: Iterable[TrialRecord]) -> list[FoundCase]:
    return list(search_cases(((at, [*map(codec.encode, records)]) for at, records in enumerate(cases)), text))


FULL = trial(
    "a",
    "failed",
    [
        turn(1, "Where is my Ärger?", 'It is "lost"\nat sea'),
        turn(
            2,
            "And now?",
            tool_calls=[ToolCallRecord("look_up", {"order": "W-77"}, "1", {"found": ["pier"]})],
            assertions=[check("contains", False, reason="no lighthouse in sight")],
            data={"state": "adrift"},
        ),
    ],
    final_assertions=[check("judge", message="must be calm")],
    checkpoints=[CheckpointRecord("docked", "the ship is in", True, False, reason="fog")],
    history=[{"role": "user", "content": "Ahoy"}],
    error="agent error: storm",
    tracebacks=(Traceback("agent", "WindError: 12", printed="rigging torn"),),
    session_id="deadbeef",
    helper_calls=(HelperCall("judge", "j", 2, 0, 1, sent=(SentMessage("user", "sextant"),)),),
)


@pytest.mark.parametrize(
    ("word", "place", "kind"),
    [
        ("ärger", "turn-1", "user"),
        ('"lost', "turn-1", "reply"),
        ("at sea", "turn-1", "reply"),
        ("w-77", "turn-2", "tool look_up"),
        ("pier", "turn-2", "tool look_up"),
        ("adrift", "turn-2", "data"),
        ("lighthouse", "check-2-1", "check"),
        ("calm", "check-end-1", "check"),
        ("fog", "checkpoints", "checkpoint"),
        ("ahoy", "turn-0", "history"),
        ("storm", "why", "error"),
        ("rigging", "why", "traceback"),
    ],
)
def test_every_text_of_a_conversation_is_found_at_its_place(word: str, place: str, kind: str):
    (case,) = search(word, [FULL])
    assert (case.hits[0].place, case.hits[0].kind) == (place, kind)
    assert word.strip('"').split()[0].lower() in case.hits[0].snippet.lower()


@pytest.mark.parametrize("word", ["tool_calls", "deadbeef", "sextant", "duration_ms", ""])
def test_names_of_fields_ids_and_what_a_judge_was_sent_are_not_found(word: str):
    assert search(word, [FULL]) == []


def test_all_words_must_be_in_one_case_but_in_any_of_its_trials():
    trials = [trial("b", turns=[turn(1, "red apple")]), trial("b", turns=[turn(1, "green pear")], trial=2)]
    assert [case.index for case in search("apple pear", trials, trials[:1])] == [0]
    assert [hit.trial for hit in search("pear", trials)[0].hits] == [2]
    assert [case.index for case in search('"red apple"', trials, [trial("c", turns=[turn(1, "apple red")])])] == [0]


def test_words_in_quotation_marks_are_one():
    assert split_words('Red "Two  Words" x"y') == ["red", "two  words", "x", "y"]

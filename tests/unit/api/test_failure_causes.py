"""When two trials failed for one reason: the same check, which found the same, but for numbers, ids and the user's words."""

from typing import Any

import pytest

from viva.api.failure_causes import RELATED_OVERLAP, are_causes_similar, extract_causes
from viva.model.record import ToolCallRecord, TrialRecord, TurnRecord
from viva.model.turn import Frame, Traceback


def failed(said: str = "go", *verdicts: dict[str, Any], tools: tuple[str, ...] = (), **more: Any) -> TrialRecord:
    turn = TurnRecord(
        turn=1,
        input=said,
        input_source="static",
        output="",
        awaiting_input=False,
        tool_calls=[ToolCallRecord(name, {}) for name in tools],
        assertions=[{"passed": False, **verdict} for verdict in verdicts],
        duration_ms=1.0,
    )
    return TrialRecord(
        id="c",
        name="c",
        suite="s",
        trial=1,
        attempt=1,
        status="failed",
        turns=[turn],
        final_assertions=[],
        total_turns=1,
        duration_ms=1.0,
        **more,
    )


def text(found: str, reason: str = '"x" is not in "y"') -> dict[str, Any]:
    return {"type": "contains", "label": 'contains "x"', "reason": reason, "actual": found}


def raised(kind: str, function: str, line: int = 3) -> dict[str, Any]:
    frame = Frame("agent.py", line, function, "raise it")
    return {"error": f"agent error: {kind}: so {line}", "tracebacks": (Traceback("agent", kind, (frame,)),)}


def path(value: Any) -> dict[str, Any]:
    return {"type": "json_path", "label": "json_path $.a", "reason": f"$.a: is {value}, not 5", "actual": value}


JUDGE = {"type": "judge", "label": 'judge "is kind"', "criteria": "is kind"}
RUBRIC = {"type": "rubric", "label": "rubric of 2 criteria", "criteria": ["is kind", "is short"]}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (failed("a", {**JUDGE, "reason": "is rude"}), failed("b", {**JUDGE, "reason": "shouts at people"}), True),
        (failed("a", text("Order 17 was cancelled")), failed("b", text("Order W-9 was cancelled")), True),
        (failed("a", text("Order 17 was cancelled")), failed("b", text("How can I help you today?")), False),
        (failed("tell me of cats", text("You said: tell me of cats")), failed("me", text("You said: me")), True),
        (failed("a", text("Cancelled it")), failed("a", text("", '"x" is not there: the text is empty')), False),
        (failed("a", {**text("a"), "negate": True}), failed("a", {**text("b"), "negate": True}), True),
        (failed(**raised("KeyError", "f", 3)), failed(**raised("KeyError", "f", 9)), True),
        (failed(**raised("KeyError", "f")), failed(**raised("KeyError", "g")), False),
        (failed(**raised("KeyError", "f")), failed(**raised("ValueError", "f")), False),
        (failed("a", path(7)), failed("a", path(8.5)), True),
        (failed("a", path(7)), failed("a", path(None)), False),
        (failed("a", {**RUBRIC, "reason": "0.5; not met: is kind (x)"}), failed("a", {**RUBRIC, "reason": "0.5; not met: is kind (other words)"}), True),
        (failed("a", {**RUBRIC, "reason": "0.5; not met: is kind (x)"}), failed("a", {**RUBRIC, "reason": "0.5; not met: is short (x)"}), False),
        (
            failed("a", {"type": "tool_called", "label": "t", "reason": "r", "actual": ["look", "pay"]}),
            failed("a", {"type": "tool_called", "label": "t", "reason": "r", "actual": ["pay", "look", "pay"]}),
            True,
        ),
        (
            failed("a", {"type": "tool_called", "label": "t", "reason": "r", "actual": ["look"]}),
            failed("a", {"type": "tool_called", "label": "t", "reason": "r", "actual": []}),
            False,
        ),
        (
            failed("a", {"type": "tool_not_called", "label": "t", "reason": '"a" must not be called, but was, with {"n":1}'}, tools=("a", "b")),
            failed("a", {"type": "tool_not_called", "label": "t", "reason": '"b" must not be called, but was, with {"n":1}'}, tools=("a", "b")),
            False,
        ),
    ],
)  # fmt: skip
def test_the_same_cause(one: TrialRecord, other: TrialRecord, same: bool):
    assert are_causes_similar(extract_causes(other), extract_causes(one)) == same
    assert are_causes_similar(extract_causes(one), extract_causes(one))


def test_every_check_that_failed_has_to_fail_again():
    both = failed("a", text("cancelled"), {"type": "regex", "label": "regex", "reason": "r", "actual": "cancelled"})
    assert not are_causes_similar(extract_causes(failed("a", text("cancelled"))), extract_causes(both))
    assert are_causes_similar(extract_causes(both), extract_causes(failed("a", text("cancelled"))))


def test_the_same_agent_may_find_other_words_for_it():
    one, other = (
        extract_causes(failed("a", text(words)))
        for words in ("I am sorry, I cannot do that for you", "Unfortunately I cannot do that here")
    )
    assert (are_causes_similar(one, other), are_causes_similar(one, other, RELATED_OVERLAP)) == (False, True)

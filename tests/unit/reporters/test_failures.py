"""Why a trial did not pass, read from its record."""

from typing import Any

import pytest

from unit.reporters.samples import check, errored, failed, missing_checkpoints, skipped_awaiting, trial, turn
from viva.model.record import CheckpointRecord
from viva.reporters.commands import split_source
from viva.reporters.failures import build_failed_check, explain_failure, get_turn_status, list_differences
from viva.reporters.formatting import format_cost, format_count, format_ms


def test_each_failed_check_is_listed() -> None:
    failure = explain_failure(failed())
    assert [(item.place, item.label, item.expected, item.actual) for item in failure.failed_checks] == [
        ("turn 2", 'contains "refunded"', None, '"I cannot do that."'),
        ("turn 2", 'tool_called "refund"', None, None),
    ]
    assert failure.status_text == "failed (agent)"
    assert failure.headline == ('turn 2: contains "refunded" · must refund: the text is not in the reply (and 1 more)')


def test_an_error_is_shown_once() -> None:
    failure = explain_failure(errored())
    assert [(item.reason, item.is_error) for item in failure.failed_checks] == [
        ("agent error: connection refused", True)
    ]
    assert failure.error is None


def test_a_judge_error_is_shown_once_with_its_place() -> None:
    judged = turn(1, "Hi", assertions=[check("agent kind", None, reason="the model is down")])
    failure = explain_failure(trial("A", "error", [judged], fault="judge", error="judge error: the model is down"))
    assert (failure.error, failure.headline) == (None, "turn 1: agent kind: the model is down")


def test_a_check_that_could_not_be_evaluated_is_an_error() -> None:  # N24
    record = trial(
        "A", "error", [turn(1, "x", "y", assertions=[check("agent", None, reason="judge is down")])], fault="judge"
    )
    assert [item.is_error for item in explain_failure(record).failed_checks] == [True]
    assert get_turn_status(record.turns[0], record) == "error"


def test_a_failure_beats_an_error_in_a_turn() -> None:  # N17
    assert get_turn_status(turn(1, "x", assertions=[check("a", None), check("b", False)])) == "failed"


def test_the_headline_is_the_check_that_decides_the_status() -> None:  # N14, N17
    both = [check("a", None, reason="no price"), check("b", False, reason="it is not there")]
    assert explain_failure(trial("A", "failed", [turn(1, "x", assertions=both)])).headline == (
        "turn 1: b: it is not there (and 1 more)"
    )
    missed = [CheckpointRecord(name, "", True, reached=False, reason=f"no {name}") for name in ("book", "pay")]
    record = trial("A", "error", [turn(1, "x")], checkpoints=missed, error="judge error: checkpoint pay: no pay")
    assert explain_failure(record).headline == "checkpoint pay: no pay (and 1 more)"


def test_missed_checkpoints_have_a_reason_and_optional_ones_are_left_out() -> None:  # N14
    failure = explain_failure(missing_checkpoints())
    assert [(item.place, item.reason) for item in failure.failed_checks] == [
        ("checkpoint submitted", "waits for approved; last: no tool was called")
    ]
    assert failure.error == "missing checkpoints: submitted"


def test_final_assertions_have_their_own_place() -> None:
    record = trial("A", "failed", [turn(1, "x")], final_assertions=[check("a"), check("b", False)], fault="agent")
    assert [(item.place, item.label) for item in explain_failure(record).failed_checks] == [("final assertions", "b")]


def test_reasons_without_assertions_are_not_lost() -> None:
    failure = explain_failure(trial("A", "failed", assertion_errors=["line 3: not equal"], fault="agent"))
    assert [item.reason for item in failure.failed_checks] == ["line 3: not equal"]


def test_the_unanswered_question_is_the_agents_question_or_hint() -> None:  # N11, N34
    record = skipped_awaiting()
    record.turns[0].input_hint = "PO number"
    assert explain_failure(record).unanswered_question == "Please provide PO number"
    record.turns[0].output = ""
    assert explain_failure(record).unanswered_question == "PO number"
    record.hint = None
    assert explain_failure(record).unanswered_question is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a/b.jsonl:12", ("a/b.jsonl", 12)),
        ("a.jsonl", ("a.jsonl", None)),
        ("C:a.jsonl", ("C:a.jsonl", None)),
        (None, (None, None)),
    ],
)
def test_a_source_is_split_into_file_and_line(source: str | None, expected: tuple[str | None, int | None]) -> None:
    assert split_source(source) == expected


def test_the_rerun_command_selects_exactly_this_case() -> None:
    record = trial("a.b (1)-c", "failed", [turn(1, "x")], source="my tests/a.jsonl:3", fault="agent")
    assert explain_failure(record).command == r"viva test -i 'my tests/a.jsonl' -k '^a\.b \(1\)-c$' -v"
    record.agent = "python:./my bot.py:agent"
    assert explain_failure(record).command == (
        r"viva test -i 'my tests/a.jsonl' -k '^a\.b \(1\)-c$' -v -n 'python:./my bot.py:agent'"
    )


def test_a_reason_that_repeats_expected_and_actual_is_left_out() -> None:
    repeated = build_failed_check(check("equals 5", False, reason="expected 5, was 6", expected=5, actual=6), "turn 1")
    assert (repeated.reason, repeated.headline) == ("", "turn 1: equals 5: was 6")
    text = check('contains "hi"', False, reason='"hi" is not in "bye"', expected="hi", actual="bye")
    once = build_failed_check(text, "turn 1")
    assert (once.reason, once.expected, once.actual) == ("", None, '"bye"')
    assert build_failed_check(check("equals 5", False, reason="expected 5, was 6"), "").reason == "expected 5, was 6"


@pytest.mark.parametrize(
    ("assertion", "differences"),
    [
        ({"type": "equals", "expected": "a\nb", "actual": "a\nc"}, (" a", "-b", "+c")),
        (
            {"type": "json_path", "value": {"a": 1}, "expected": {"a": 1}, "actual": {"a": 2}},
            ("$.a: expected 1, was 2",),
        ),
        ({"type": "json_path", "matches": "a", "expected": "a", "actual": "b\nc"}, ()),
        ({"type": "contains", "expected": "zz", "actual": "a\nb"}, ()),
        ({"type": "golden", "strategy": "contains", "expected": "zz", "actual": "a\nb"}, ()),
        ({"type": "tool_sequence", "expected": ["a"], "actual": ["b"]}, ()),
    ],
)
def test_only_a_value_that_must_be_equal_shows_where_it_differs(
    assertion: dict[str, Any], differences: tuple[str, ...]
) -> None:
    assert build_failed_check({**assertion, "passed": False}, "turn 1").differences == differences


def test_a_value_is_shown_once_also_by_paths_and_checkpoints() -> None:
    reason = '$.c: expected {"d":"y"}, was {"d":"x"}'
    path = check('$.c = {"d":"y"}', False, reason=reason, expected={"d": "y"}, actual={"d": "x"})
    once = build_failed_check(path, "turn 1")
    assert (once.reason, once.expected, once.actual) == ("", None, '{d: "x"}')
    reason = '"zz" is not in "no"'
    missed = CheckpointRecord(
        "c", "zz", True, False, reason=reason, assertion=check('contains "zz"', expected="zz", actual="no")
    )
    (shown,) = explain_failure(trial("A", "failed", [turn(1, "x")], checkpoints=[missed], fault="agent")).failed_checks
    assert (shown.title, shown.reason, shown.expected, shown.actual) == ('contains "zz"', "", None, '"no"')


def test_number_formats() -> None:
    assert [format_ms(ms) for ms in (0, 42, 100, 7100, 59_940, 59_960, 125_000, 3_725_000)] == [
        "0ms", "42ms", "0.1s", "7.1s", "59.9s", "1m 00s", "2m 05s", "1h 02m",
    ]  # fmt: skip
    assert [format_count(n, "turn") for n in (0, 1, 1200)] == ["0 turns", "1 turn", "1,200 turns"]
    assert format_cost(0.0123, 3) == "$0.0123 + 3 calls without a price"
    assert format_cost(12.5, 0) == "$12.50"
    assert format_cost(None, 1) == "1 call without a price"
    assert format_cost(None, 0) is None


def test_large_values_show_where_they_differ() -> None:
    expected = {"total": 5, "items": [1, 2], "ok": True}
    actual = {"total": 6, "items": [1], "ok": 1, "extra": "x"}
    assert list_differences(expected, actual) == [
        "$.total: expected 5, was 6",
        "$.items[1]: expected 2, missing",
        "$.ok: expected true, was 1",
        '$.extra: not expected, was "x"',
    ]
    assert list_differences("a\nb\nc", "a\nx\nc") == [" a", "-b", "+x", " c"]
    assert list_differences("one line", "another") == []
    assert len(list_differences(list(range(100)), [])) == 9


def test_the_rerun_command_has_the_time_limits_and_hooks_of_its_run() -> None:
    record = trial("a", "failed", [turn(1, "x")], source="a.jsonl:3", fault="agent")
    flags = [("--timeout", "1m30s"), ("--turn-timeout", "500ms"), ("--before", "hooks:up")]
    command = explain_failure(record, {"rerun_flags": flags}).command or ""
    for part in ("--timeout 1m30s", "--turn-timeout 500ms", "--before hooks:up"):
        assert part in command

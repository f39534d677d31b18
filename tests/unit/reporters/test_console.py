"""The console output."""

import io
import re
import shlex
import subprocess
from io import StringIO

import pytest

from unit.reporters.samples import (
    check,
    errored,
    failed,
    make_console,
    missing_checkpoints,
    passed_dynamic,
    passed_static,
    render_console,
    run_ended,
    run_started,
    skipped_awaiting,
    trial,
    trial_ended,
    turn,
)
from viva.model.case import Key
from viva.model.event import Event, Note, RunResumed, TrialStarted, TurnEnded, TurnStarted
from viva.model.finding import Finding
from viva.model.message import ModelCall, Usage
from viva.model.record import ToolCallRecord, TrialRecord
from viva.reporters.console import ProgressLine
from viva.reporters.formatting import display_width
from viva.reporters.plain_text import format_transcript

SAMPLE = """\
═══════════════════════════════════════════════════════════════
  Viva
═══════════════════════════════════════════════════════════════
ℹ Agent: assistants.expense
ℹ Input: ./tests/expense-flow.jsonl (5 test cases)

───────────────────────────────────────────────────────────────
  Running Tests
───────────────────────────────────────────────────────────────

► [T001] Expense Reimbursement Flow (3 turns)
  ├─ Turn 1: "I want to submit an expense" → PASSED (2.1s)
  │          Agent: "What type of expense would you like to submit?"
  │          ✓ contains "type of expense"
  │
  ├─ Turn 2: "Business travel, $3500" → PASSED (3.2s)
  │          Agent: [tool: create_expense({amount: 3500, type: "travel"})]
  │          ✓ tool_called "create_expense"
  │
  ├─ Turn 3: "Yes, confirm" → PASSED (1.8s)
  │          Agent: "Expense submitted. Reference: EXP-2025-001"
  │          ✓ contains "submitted"
  │
  └─ Final Assertions: PASSED
     ✓ $.expense.status = "submitted"

► [T002] Large Expense Approval
  ├─ Turn 1: "Submit $100,000 equipment purchase" → PASSED (2.0s)
  │          Agent: "This requires manager approval. Please provide PO number."
  │
  ├─ Turn 2: SKIPPED
  │          Reason: Agent awaiting input, no next turn defined
  │          Agent asked: "Please provide PO number"
  │          Hint: Add more turns, use --interactive, or configure simulator
  │
  └─ Result: SKIPPED

► [T003] Dynamic Expense Flow (simulator: workers.test.user-sim)
  ├─ Turn 1: [Initial] "Help me file an expense" → PASSED (2.1s)
  ├─ Turn 2: [Simulated] "It's for client dinner, $250" → PASSED (2.8s)
  ├─ Turn 3: [Simulated] "Yesterday evening" → PASSED (2.2s)
  ├─ Turn 4: [Simulated] "Confirm" → PASSED (1.9s)
  │          Goal achieved: Expense submitted
  │
  └─ Final Assertions: PASSED
     ✓ $.expense.status = "submitted"

───────────────────────────────────────────────────────────────
  Summary
───────────────────────────────────────────────────────────────
  Total turns: 10
  Avg turns/test: 3.3
  Checks: 5/5 passed

✓ 3 tests: 2 passed, 1 skipped · 18.1s
"""


def all_kinds() -> list[TrialRecord]:
    return [passed_static(), skipped_awaiting(), passed_dynamic(), failed(), errored(), missing_checkpoints()]


def live_events(record: TrialRecord) -> list[Event]:
    key, planned = record.key, record.total_turns + len(record.turns_not_run or ())
    events: list[Event] = [TrialStarted(key, 0, record.name, planned, record.simulator)]
    for each in record.turns:
        events += [TurnStarted(key, each.turn, each.input, each.input_source), TurnEnded(key, each)]
    return [*events, trial_ended(record)]


def test_the_tree_is_the_specifications_sample() -> None:  # N34
    records = (passed_static(), skipped_awaiting(), passed_dynamic())
    assert render_console([run_started(), *map(trial_ended, records), run_ended()], verbose=True) == SAMPLE


@pytest.mark.parametrize("record", all_kinds(), ids=lambda record: record.id)
def test_live_turns_give_the_same_tree(record: TrialRecord) -> None:  # N34
    assert render_console(live_events(record), verbose=True, parallel=1) == render_console(
        [trial_ended(record)], verbose=True
    )


def test_only_one_case_at_a_time_is_shown_live() -> None:  # N34
    assert make_console(StringIO(), verbose=True, parallel=1).live
    assert not make_console(StringIO(), verbose=True, parallel=2).live
    assert not make_console(StringIO(), parallel=1).live
    assert not make_console(StringIO(), verbose=True, quiet=True, parallel=1).live


def test_a_turn_is_printed_before_its_reply() -> None:  # N34
    events = live_events(passed_static())
    assert render_console(events[:2], verbose=True, parallel=1).endswith('\n  ├─ Turn 1: "I want to submit an expense"')


def test_a_turn_that_was_cut_off_is_not_passed() -> None:  # N18
    key = Key("s", "A")
    events: list[Event] = [
        TrialStarted(key, 0, "A"),
        TurnStarted(key, 1, "Hello", "static"),
        TurnEnded(key, turn(1, "Hello", ms=30_000)),
    ]
    record = trial(
        "A",
        "failed",
        [turn(1, "Hello", ms=30_000, error="timeout after 30s")],
        error="timeout after 30s",
        fault="agent",
    )
    assert render_console([*events, trial_ended(record)], verbose=True, parallel=1) == (
        "► [A]\n"
        '  ├─ Turn 1: "Hello" → FAILED (30.0s)\n'
        "  │          Error: timeout after 30s\n"
        "  │\n"
        "  └─ Result: FAILED (fault: agent)\n\n"
    )
    cancelled = render_console([*events, run_ended(2)], verbose=True, parallel=1)
    assert '  ├─ Turn 1: "Hello"\n  └─ not finished\n' in cancelled
    assert "PASSED" not in cancelled


def test_a_note_during_a_turn_starts_a_new_line() -> None:
    events = live_events(trial("A", turns=[turn(1, "Hello", "Hi", 500)]))
    text = render_console([*events[:2], Note("slow", "warning"), *events[2:]], verbose=True, parallel=1)
    assert '  ├─ Turn 1: "Hello"\n⚠ slow\n  │          → PASSED (0.5s)\n' in text


def test_a_retried_attempt_is_closed_first() -> None:
    first = TrialStarted(Key("s", "A", 1, 1), 0, "A")
    again = TrialStarted(Key("s", "A", 1, 2), 0, "A")
    assert render_console([first, again], verbose=True, parallel=1) == "► [A]\n  └─ retried, attempt 2\n\n► [A]\n"


def test_without_verbose_one_line_per_case_and_the_failure() -> None:  # N34
    assert (
        render_console(map(trial_ended, all_kinds()))
        == """\
✓ T001 Expense Reimbursement Flow  3 turns  7.1s
○ T002 Large Expense Approval  1 turn  2.0s
    skipped: Agent awaiting input, no next turn defined
    agent asked: "Please provide PO number"
    hint: Add more turns, use --interactive, or configure simulator
    at tests/expense-flow.jsonl:12
✓ T003 Dynamic Expense Flow  4 turns  9.0s
✗ T004 Refund  2 turns  2.4s
    failed (agent)
    turn 2: "Refund order 12"
      ✗ contains "refunded" · must refund
        the text is not in the reply
        actual:   "I cannot do that."
      ✗ tool_called "refund"
        no tool was called
        agent:    "I cannot do that."
    at tests/it's refunds.jsonl:7
! T005  1 turn  30ms
    error (infra)
    turn 1: "Hello"
      ! agent error: connection refused
    hint: Is the server running?
    at tests/expense-flow.jsonl:30
✗ T006  1 turn  0.5s
    failed (agent): missing checkpoints: submitted
    checkpoint submitted
      ✗ waits for approved; last: no tool was called
    at tests/d.jsonl
"""
    )


def test_the_tree_shows_failures_turns_not_run_and_checkpoints() -> None:  # N10 N14
    assert (
        render_console(map(trial_ended, (failed(), errored(), missing_checkpoints())), verbose=True)
        == """\
► [T004] Refund (3 turns)
  ├─ Turn 1: "Hello" → PASSED (0.9s)
  │          Agent: "Hi, what can I do for you?"
  │          ✓ contains "Hi"
  │
  ├─ Turn 2: "Refund order 12" → FAILED (1.5s)
  │          Agent: "I cannot do that."
  │          ✗ contains "refunded" · must refund
  │            the text is not in the reply
  │            actual:   "I cannot do that."
  │          ✗ tool_called "refund"
  │            no tool was called
  │          ✓ not_contains "sorry"
  │
  ├─ Turn 3: "Thanks" → NOT RUN
  └─ Result: FAILED (fault: agent)
     Source: tests/it's refunds.jsonl:7

► [T005]
  ├─ Turn 1: "Hello" → ERROR (30ms)
  │          Error: agent error: connection refused
  │
  └─ Result: ERROR (fault: infra)
     Hint: Is the server running?
     Source: tests/expense-flow.jsonl:30

► [T006] (simulator: user-sim)
  ├─ Turn 1: [Initial] "Hi" → PASSED (0.5s)
  │          Agent: "What type?"
  │
  ├─ Checkpoints: 1/3 reached
  │          ✓ ask_type: Agent asks for the type
  │            reached at turn 1 by contains "type"
  │          ✗ submitted
  │            not reached: waits for approved; last: no tool was called
  │          ○ thanked
  │            not reached (optional): never tried
  │
  └─ Result: FAILED (fault: agent)
     Error: missing checkpoints: submitted
     Source: tests/d.jsonl

"""
    )


def test_a_check_with_an_error_has_its_own_mark() -> None:  # N24
    broke = check("agent judge", None, reason="judge error: no answer", suggestions=["ask again"])
    record = trial("A", "error", [turn(1, "Hi", "Yo", 100)], final_assertions=[check("a", True), broke], fault="judge")
    assert (
        render_console([trial_ended(record)], verbose=True)
        == """\
► [A]
  ├─ Turn 1: "Hi" → PASSED (0.1s)
  │          Agent: "Yo"
  │
  └─ Final Assertions: ERROR (fault: judge)
     ✓ a
     ! agent judge
       judge error: no answer
       suggestion: ask again

"""
    )


def test_suggestions_of_a_judge_follow_its_verdict() -> None:  # N26
    denied = check("agent polite", False, reason="it is curt", suggestions=["say please", "say thanks"])
    record = trial("A", "failed", [turn(1, "Hi", "Yo", 100, assertions=[denied])], fault="agent")
    assert "      it is curt\n        suggestion: say please\n        suggestion: say thanks\n" in render_console(
        [trial_ended(record)]
    )


def test_passed_final_assertions_do_not_hide_another_result() -> None:
    record = trial(
        "A", "failed", [turn(1, "Hi")], final_assertions=[check("a")], error="timeout after 5m", fault="agent"
    )
    assert render_console([trial_ended(record)], verbose=True).endswith(
        "  ├─ Final Assertions: PASSED\n  │          ✓ a\n  │\n  └─ Result: FAILED (fault: agent)\n     Error: timeout after 5m\n\n"
    )


def test_a_skipped_case_shows_only_its_reason() -> None:
    record = trial("A", "skipped", error="not on Fridays", source="a.jsonl:1")
    assert render_console([trial_ended(record)]) == "○ A\n    skipped: not on Fridays\n"
    assert (
        render_console([trial_ended(record)], verbose=True)
        == "► [A]\n  └─ Result: SKIPPED\n     Reason: not on Fridays\n\n"
    )


def test_the_awaiting_reason_is_dimmed() -> None:  # N22
    record = trial(
        "A", turns=[turn(1, "Hi", "Which?", 100, awaiting_input=True, awaiting_reason="content_is_question")]
    )
    assert "  │          \x1b[2mawaiting input: content_is_question\x1b[0m\n" in render_console(
        [trial_ended(record)], verbose=True, colour=True
    )


def test_quiet_shows_failures_warnings_and_one_line() -> None:  # N34
    events = [
        run_started(),
        trial_ended(passed_static()),
        Note("hello"),
        Note("careful", "warning"),
        trial_ended(errored()),
        run_ended(1),
    ]
    assert (
        render_console(events, quiet=True, is_terminal=True)
        == """\
⚠ careful
! T005  1 turn  30ms
    error (infra)
    turn 1: "Hello"
      ! agent error: connection refused
    hint: Is the server running?
    at tests/expense-flow.jsonl:30
3 tests: 2 passed, 1 skipped · 10 turns · 18.1s
"""
    )


def test_the_summary_shows_missing_and_unknown_values() -> None:
    run = run_started(reports=["out/a.jsonl", "out/a.xml"], journal=".viva/runs/r1/journal.jsonl")
    end = run_ended(
        1,
        total=9,
        not_run=6,
        unchecked=1,
        errors=1,
        faults={"agent": 1, "infra": 1},
        cost_usd=0.0123,
        unpriced_calls=3,
        input_tokens=1200,
        output_tokens=34,
        stopped="fail_fast",
        stop_message="T004 failed",
    )
    text = render_console([run, end])
    assert text.endswith("""
  Total turns: 10
  Avg turns/test: 3.3
  Checks: 5/5 passed
  Tokens: 1,200 in, 34 out
  Cost: $0.0123 + 3 calls without a price
  Report: out/a.jsonl
  Report: out/a.xml
  Stopped: fail-fast, T004 failed

! 9 tests: 2 passed, 1 error (infra), 1 skipped (1 without checks), 6 not run · 18.1s

  viva test --resume r1  # continue the run
  viva view r1           # see the run in the browser
""")


def test_the_end_lists_failures_again_then_the_counts_then_what_to_do_next() -> None:  # N34
    """Each with its place and one reason; in input order, whichever ended first."""
    ended = [trial_ended(record, index) for index, record in enumerate([failed(), errored(), missing_checkpoints()])]
    end = run_ended(1, total=4, passed=1, failed=2, errors=1, skipped=0, faults={"infra": 1, "agent": 2})
    text = render_console([run_started(4, journal="j"), trial_ended(passed_static(), 3), *reversed(ended), end])
    assert (
        text.partition("  Failures\n")[2].partition("\n")[2]
        == """\
✗ T004  tests/it's refunds.jsonl:7
    turn 2: contains "refunded" · must refund: the text is not in the reply (and 1 more)
! T005  tests/expense-flow.jsonl:30  error (infra)
    turn 1: agent error: connection refused
✗ T006  tests/d.jsonl
    missing checkpoints: submitted

───────────────────────────────────────────────────────────────
  Summary
───────────────────────────────────────────────────────────────
  Total turns: 10
  Avg turns/test: 3.3
  Checks: 5/5 passed

✗ 4 tests: 1 passed, 2 failed, 1 error (infra) · 18.1s

  viva view r1            # see the run in the browser
  viva runs show r1 T004  # show a conversation
  viva test -i ./tests/expense-flow.jsonl -n assistants.expense --last-failed
"""
    )


@pytest.mark.parametrize(("exit_code", "fields", "code"), [(0, {}, 32), (1, {"failed": 1}, 31), (2, {"errors": 1}, 33)])
def test_the_line_of_counts_has_the_colour_of_the_result(exit_code: int, fields: dict[str, int], code: int) -> None:
    line = render_console([run_ended(exit_code, **fields)], colour=True).splitlines()[-1]
    assert line.startswith(f"\x1b[{code}m")
    assert "3 tests: 2 passed" in line


def test_many_cases_with_one_reason_are_listed_together() -> None:
    records = [
        trial(f"T{n}", "error", [turn(1, "x", error="refused")], fault="infra", source=f"a.jsonl:{n}")
        for n in range(1, 61)
    ]
    text = render_console([run_started(60), *map(trial_ended, records), run_ended(1, errors=60)])
    listed = text.partition("  Failures\n")[2].splitlines()[1:]
    assert listed[0] == "! 50 × turn 1: refused"
    assert listed[1:51] == [f"    T{n}  a.jsonl:{n}  error (infra)" for n in range(1, 51)]
    assert listed[51] == "… and 10 more"


def test_errors_that_differ_in_numbers_are_listed_together() -> None:
    records = [
        trial(f"T{n}", "error", [turn(1, "x", error=f"refused by 10.0.0.{n}")], fault="infra", source=f"a.jsonl:{n}")
        for n in range(1, 4)
    ]
    records.append(trial("other", "error", [turn(1, "x", error="no route")], fault="infra", source="a.jsonl:9"))
    text = render_console([run_started(4), *map(trial_ended, records), run_ended(1, errors=4)])
    listed = text.partition("  Failures\n")[2].splitlines()[1:]
    assert listed[0] == "! 3 × turn 1: refused by …"
    assert listed[1:4] == [f"    T{n}  a.jsonl:{n}  error (infra)" for n in range(1, 4)]
    assert listed[4].startswith("! other")


def test_a_resumed_run_counts_the_rate_from_where_it_continues() -> None:
    now = [0.0]
    stream = StringIO()
    sink = make_console(stream, is_terminal=True, clock=lambda: now[0], describe_pace=lambda: "4 in parallel")
    sink.receive((run_started(100), *(trial_ended(trial(f"T{index}")) for index in range(90)), RunResumed("r1", "")))
    for index in (90, 91):
        now[0] += 1
        sink.receive((trial_ended(trial(f"T{index}")),))
    assert stream.getvalue().endswith("\r\x1b[K92/100 · 92 ✓ · 1.0/s · ETA 8.0s · 4 in parallel")


def test_repeated_cases_show_their_trials_and_pass_rates() -> None:  # N33
    trials = [trial("A", status, [turn(1, "x")], trial=n) for n, status in enumerate(["passed", "failed", "passed"], 1)]
    end = run_ended(1, total=1, trials={"failed": 1, "passed": 2})
    text = render_console([run_started(1, 3), *map(trial_ended, trials), end])
    assert "(1 test case, 3 trials)" in text
    assert "\n✗ A (trial 2)  1 turn  1.0s\n" in text
    assert "  Trials: 3 (2 passed, 1 failed)\n" in text
    assert "  Pass rate: 66.7 % (21 to 94 %) over 1 case, 3 trials; pass@3 100.0 %, pass^3 0.0 %\n" in text
    assert (
        text.partition("  Failures\n")[2]
        .partition("\n")[2]
        .startswith("✗ A\n    2/3 passed (21 to 94 %), unstable\n    1 × failed\n\n")
    )
    enough = render_console([run_started(1, 3, min_pass=0.5), *map(trial_ended, trials), end])
    assert "Failures" not in enough
    assert "  A: 2/3 passed (21 to 94 %), unstable\n" in enough


def test_warnings_of_a_passed_case_are_shown() -> None:  # N32
    record = trial("A", turns=[turn(1, "x", ms=100)], warnings=["after hook: KeyError"])
    assert render_console([trial_ended(record)]) == "✓ A  1 turn  0.1s\n    ⚠ after hook: KeyError\n"
    assert render_console([trial_ended(record)], verbose=True).endswith(
        "  └─ Result: PASSED\n     ⚠ after hook: KeyError\n\n"
    )


def test_only_paths_and_commands_are_longer_than_the_terminal() -> None:
    words = "word " * 100
    wide = trial(
        "W" * 50, "failed", [turn(1, words, words, error=words)], name=words, error=words, hint=words, fault="agent"
    )
    events = [run_started(), *map(trial_ended, [*all_kinds(), wide]), run_ended()]
    for text in (render_console(events, width=60), render_console(events, width=60, verbose=True)):
        long = [line for line in text.splitlines() if display_width(line) > 60]
        assert [line for line in long if "viva test -i" not in line and "viva runs show" not in line] == []


@pytest.mark.parametrize("name", ["pay", "payments__card_charge_with_a_long_name_of_its_own", "支払い" * 20])
@pytest.mark.parametrize("error", [None, "no", "the card was declined by the bank of the customer"])
def test_a_tool_call_fits_in_one_line(name: str, error: str | None) -> None:
    call = ToolCallRecord(name, {"金額": "三千五百" * 9, "type": "travel"}, error=error)
    lines = render_console(
        [trial_ended(trial("A", turns=[turn(1, "x", tool_calls=[call])]))], verbose=True, width=60
    ).splitlines()
    assert max(map(display_width, lines)) <= 60
    assert ("failed: " in "".join(lines)) == (error is not None)


def test_without_colour_there_is_no_escape_and_with_it_the_text_is_the_same() -> None:
    events = [run_started(), *map(trial_ended, all_kinds()), run_ended()]
    for verbose in (False, True):
        plain, painted = (render_console(events, verbose=verbose, colour=colour) for colour in (False, True))
        assert "\x1b" not in plain
        assert re.sub(r"\x1b\[\d+m", "", painted) == plain
        assert "\x1b[32m✓\x1b[0m" in painted


@pytest.mark.parametrize("verbose", [False, True])
def test_agent_text_cannot_control_the_terminal(verbose: bool) -> None:
    evil = "\x1b[2J\x1b]0;pwned\x07 \u202egnp.exe\r\nover \x9b31m"
    checks = [check(evil, False, reason=evil, expected=evil, actual=evil, message=evil)]
    record = trial(
        evil, "failed", [turn(1, evil, evil, assertions=checks, error=evil)], name=evil, error=evil, hint=evil
    )
    record.fault, record.source, record.simulator, record.warnings = "agent", evil, evil, [evil]
    text = render_console([trial_ended(record), Note(evil)], verbose=verbose)
    assert not set("\x1b\x07\r\x9b\u202e") & set(text)
    assert "␛[2J" in text


def test_a_reply_of_five_megabytes_takes_three_lines() -> None:
    huge = "lorem ipsum " * 430_000
    call = ToolCallRecord("lookup", {"x": huge}, error=huge)
    record = trial("A", turns=[turn(1, huge, huge), turn(2, "x", data={"x": huge}), turn(3, "x", tool_calls=[call])])
    text = render_console([trial_ended(record)], verbose=True)
    assert len(text) < 2000
    assert text.count("lorem") > 10
    assert '…"\n' in text


def test_progress_is_drawn_at_most_ten_times_a_second_and_gone_at_the_end() -> None:
    now = [0.0]
    stream = StringIO()
    sink = make_console(stream, is_terminal=True, clock=lambda: now[0])
    sink.receive((run_started(100),))
    draws: list[float] = []
    for index in range(100):
        now[0] += 0.01
        before = stream.getvalue().count("/100 ")
        sink.receive((trial_ended(trial(f"T{index}", turns=[turn(1, "x")])),))
        draws += [now[0]] * (stream.getvalue().count("/100 ") - before)
    assert 5 <= len(draws) <= 10
    assert "\r\x1b[K1/100 · 1 ✓ · 100.0/s · ETA 1.0s" in stream.getvalue()
    sink.receive((run_ended(),))
    screen = re.sub(r"[^\n]*\r\x1b\[K", "", stream.getvalue())
    assert "ETA" not in screen
    assert screen.count("\n✓ T") == 100


def test_progress_shows_the_cost_and_marks_unknown_prices() -> None:
    now = [0.0]
    stream = StringIO()
    sink = make_console(stream, is_terminal=True, clock=lambda: now[0])
    priced, unpriced = Usage(calls=2, cost_usd=0.25), Usage(calls=1)
    for event in (run_started(9), trial_ended(trial("A", usage=priced)), trial_ended(trial("B", usage=priced))):
        now[0] += 1
        sink.receive((event,))
    assert stream.getvalue().endswith("2/9 · 2 ✓ · 1.0/s · ETA 7.0s · $0.5000")
    now[0] += 1
    sink.receive((trial_ended(trial("C", usage=unpriced)),))
    assert stream.getvalue().endswith(" · $0.5000+")
    now[0] += 1
    mixed = Usage.of((ModelCall(cost_usd=0.25), ModelCall()))
    sink.receive((trial_ended(trial("D", usage=mixed)),))
    assert stream.getvalue().endswith(" · $0.7500+")


@pytest.mark.parametrize("width", [80, 60, 56, 40])
def test_progress_leaves_out_parts_that_do_not_fit(width: int) -> None:
    now = [0.0]
    progress = ProgressLine(lambda: now[0])
    progress.start(10_000)
    now[0] = 100.0
    for status in ("passed", "failed", "error", "skipped"):
        for _ in range(300):
            progress.add(trial("A", status, usage=Usage(calls=1, cost_usd=0.01)))
    line = progress.render(width)
    assert display_width(line) < width
    assert (
        line
        == {
            80: "1200/10000 · 300 ✓ 300 ✗ 300 ! 300 ○ · 12.0/s · ETA 12m 13s · $12.00",
            60: "1200/10000 · 300 ✓ 300 ✗ 300 ! 300 ○ · ETA 12m 13s · $12.00",
            56: "1200/10000 · 300 ✓ 300 ✗ 300 ! 300 ○ · ETA 12m 13s",
            40: "1200/10000 · ETA 12m 13s",
        }[width]
    )


@pytest.mark.parametrize("case", ["-dash", "two\nlines", "a b", "it's odd"])
def test_the_show_command_quotes_case_ids(case: str) -> None:
    """It has the id of the run, and needs a journal."""
    record = trial(case, "failed", [turn(1, "x")])
    text = render_console([run_started(journal="j"), trial_ended(record), run_ended(1, failed=1)], width=60)
    (command,) = (line.partition("  # show")[0] for line in text.splitlines() if "viva runs show" in line)
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True).stdout.decode()
    assert words.split("\0")[:-1] == ["viva", "runs", "show", "r1", *(["--"] if case == "-dash" else []), case]
    assert "viva runs show" not in render_console([run_started(), trial_ended(record), run_ended(1, failed=1)])


@pytest.mark.parametrize(("count", "journal"), [(1, True), (1, False), (3, False), (3, True)])
def test_the_rerun_command_names_one_case_or_selects_those_that_failed(count: int, journal: bool) -> None:
    records = [trial(f"T.{n}", "failed", [turn(1, "x")], source=f"a.jsonl:{n}") for n in range(count)]
    started = run_started(3, journal="j" if journal else None)
    text = render_console([started, *map(trial_ended, records), run_ended(1, failed=count)], width=200)
    words = shlex.split(text.splitlines()[-1].partition("  # run what")[0])
    selector = {(1, True): r"^T\.0$", (1, False): r"^T\.0$", (3, False): r"^(T\.0|T\.1|T\.2)$"}.get((count, journal))
    assert (words[words.index("-k") + 1] if "-k" in words else None) == selector
    assert ("--last-failed" in words) == (selector is None)


def test_the_rerun_command_names_a_case_once_that_failed_in_several_suites() -> None:
    records = [trial("T1", "failed", [turn(1, "x")], suite=f"s{n}", source=f"s{n}:1") for n in range(11)]
    text = render_console([run_started(11), *map(trial_ended, records), run_ended(1, failed=11)], width=200)
    assert "-k '^(T1)$'" in text.splitlines()[-1]


@pytest.mark.parametrize("verbose", [False, True])
def test_the_message_of_an_assertion_wraps(verbose: bool) -> None:
    """It has a line of its own if it does not fit beside the name."""
    assertion = check('tool_not_called "submit_expense"', False, message="It submits what the user has just corrected")
    record = trial("A", "failed", [turn(1, "x", assertions=[assertion])])
    lines = [line.strip(" │") for line in render_console([trial_ended(record)], verbose=verbose, width=70).splitlines()]
    assert '✗ tool_not_called "submit_expense"' in lines
    assert "It submits what the user has just corrected" in lines
    wide = [line.strip(" │") for line in render_console([trial_ended(record)], verbose=verbose, width=120).splitlines()]
    assert '✗ tool_not_called "submit_expense" · It submits what the user has just corrected' in wide


@pytest.mark.parametrize("verbose", [False, True])
def test_a_passed_case_shows_findings_and_workspace(verbose: bool) -> None:
    record = trial("A", turns=[turn(1, "x")], workspace="/tmp/workspace", findings=(Finding("pii-leak", "low"),))
    out = render_console([trial_ended(record)], verbose=verbose)
    assert "/tmp/workspace" in out
    assert "safety findings: pii-leak (low)" in out


def test_progress_is_redrawn_after_single_cases() -> None:
    now = [0.0]
    stream = StringIO()
    sink = make_console(stream, is_terminal=True, clock=lambda: now[0])
    sink.receive((run_started(100),))
    for index in range(12):
        now[0] += 0.5
        sink.receive((trial_ended(failed() if index == 3 else trial(f"T{index}")),))
    assert stream.getvalue().endswith("\r\x1b[K12/100 · 11 ✓ 1 ✗ · 2.0/s · ETA 44.0s")


def test_each_passed_case_is_one_line() -> None:
    text = render_console(trial_ended(trial(f"T{index}", turns=[turn(1, "x")])) for index in range(10_000))
    lines = text.splitlines()
    assert len(lines) == 10_000
    assert lines[1234] == "✓ T1234  1 turn  1.0s"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk"])
def test_a_terminal_without_unicode_gets_ascii_marks(encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    sink = make_console(stream, verbose=True)
    record = failed()
    record.turns[0].output = "👍 Größe"
    sink.receive((run_started(), trial_ended(record), run_ended()))
    text = raw.getvalue().decode(encoding)
    assert '  |- Turn 2: "Refund order 12" > FAILED (1.5s)\n' in text
    assert '  |          x contains "refunded" - must refund\n' in text
    assert "  `- Result: FAILED (fault: agent)\n" in text
    assert "\\U0001f44d Gr" in text


def streamed() -> TrialRecord:
    parts = ("Let me see.", "It is noon.")
    return trial("T9", "failed", [turn(1, "When?", "\n".join(parts), first_token_ms=250.0, parts=parts)])


def test_a_streamed_reply_shows_its_messages_and_the_time_of_its_first_token():  # N34
    text = render_console([trial_ended(streamed())], verbose=True)
    assert '  ├─ Turn 1: "When?" → PASSED (1.0s, first token 0.2s)' in text
    assert '  │          Agent: "Let me see."\n  │                 "It is noon."\n' in text


def test_a_transcript_shows_the_same():
    lines = format_transcript(streamed(), 1000).splitlines()
    assert lines[0].endswith("1.0s, first token 0.2s)")
    assert lines[2:] == ["  agent: Let me see.", "  agent: It is noon."]

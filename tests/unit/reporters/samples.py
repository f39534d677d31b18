"""Records and events for the tests of reporters; T001 to T003 are the specification's sample."""

import time
from collections.abc import Callable, Iterable
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from viva.model.case import Key
from viva.model.event import Event, RunEnded, RunStarted, RunSummary, TrialEnded
from viva.model.record import CheckpointRecord, ToolCallRecord, TrialRecord, TurnRecord
from viva.record.journal import Journal
from viva.reporters.console import Console, ConsoleOptions


def check(label: str, passed: bool | None = True, **fields: Any) -> dict[str, Any]:
    return {"type": label.split(maxsplit=1)[0], **fields, "label": label, "passed": passed}


def turn(number: int, message: str, output: str = "", ms: float = 1000, **fields: Any) -> TurnRecord:
    all_fields: dict[str, Any] = {
        "input_source": "static",
        "awaiting_input": False,
        "tool_calls": [],
        "assertions": [],
        **fields,
    }
    return TurnRecord(turn=number, input=message, output=output, duration_ms=ms, **all_fields)


def trial(case: str, status: Any = "passed", turns: Iterable[TurnRecord] = (), **fields: Any) -> TrialRecord:
    turn_list = list(turns)
    all_fields: dict[str, Any] = {
        "name": case,
        "final_assertions": [],
        "total_turns": len(turn_list),
        "duration_ms": sum(each.duration_ms for each in turn_list),
        "suite": "expense",
        "trial": 1,
        "attempt": 1,
        **fields,
    }
    return TrialRecord(id=case, status=status, turns=turn_list, **all_fields)


def passed_static() -> TrialRecord:
    tool = ToolCallRecord("create_expense", {"amount": 3500, "type": "travel"})
    return trial(
        "T001",
        name="Expense Reimbursement Flow",
        turns=[
            turn(
                1,
                "I want to submit an expense",
                "What type of expense would you like to submit?",
                2100,
                awaiting_input=True,
                assertions=[check('contains "type of expense"')],
            ),
            turn(
                2,
                "Business travel, $3500",
                ms=3200,
                tool_calls=[tool],
                assertions=[check('tool_called "create_expense"')],
            ),
            turn(
                3,
                "Yes, confirm",
                "Expense submitted. Reference: EXP-2025-001",
                1800,
                assertions=[check('contains "submitted"')],
            ),
        ],
        final_assertions=[check('$.expense.status = "submitted"')],
    )


def skipped_awaiting() -> TrialRecord:
    return trial(
        "T002",
        "skipped",
        name="Large Expense Approval",
        turns=[
            turn(
                1,
                "Submit $100,000 equipment purchase",
                "This requires manager approval. Please provide PO number.",
                2000,
                awaiting_input=True,
            )
        ],
        error="Agent awaiting input, no next turn defined",
        hint="Add more turns, use --interactive, or configure simulator",
        source="tests/expense-flow.jsonl:12",
    )


def passed_dynamic() -> TrialRecord:
    return trial(
        "T003",
        name="Dynamic Expense Flow",
        simulator="workers.test.user-sim",
        turns=[
            turn(1, "Help me file an expense", ms=2100, input_source="initial"),
            turn(2, "It's for client dinner, $250", ms=2800, input_source="simulated"),
            turn(3, "Yesterday evening", ms=2200, input_source="simulated"),
            turn(4, "Confirm", ms=1900, input_source="simulated"),
        ],
        goal_achieved=True,
        goal_reason="Expense submitted",
        final_assertions=[check('$.expense.status = "submitted"')],
    )


def failed() -> TrialRecord:
    return trial(
        "T004",
        "failed",
        name="Refund",
        fault="agent",
        turns=[
            turn(1, "Hello", "Hi, what can I do for you?", 900, assertions=[check('contains "Hi"')]),
            turn(
                2,
                "Refund order 12",
                "I cannot do that.",
                1500,
                assertions=[
                    check(
                        'contains "refunded"',
                        False,
                        message="must refund",
                        reason="the text is not in the reply",
                        expected="refunded",
                        actual="I cannot do that.",
                    ),
                    check('tool_called "refund"', False, reason="no tool was called"),
                    check('not_contains "sorry"'),
                ],
            ),
        ],
        assertion_errors=["must refund: the text is not in the reply", 'tool_called "refund": no tool was called'],
        turns_not_run=["Thanks"],
        source="tests/it's refunds.jsonl:7",
    )


def errored() -> TrialRecord:
    return trial(
        "T005",
        "error",
        fault="infra",
        error="agent error: connection refused",
        turns=[turn(1, "Hello", ms=30, error="connection refused")],
        hint="Is the server running?",
        source="tests/expense-flow.jsonl:30",
    )


def missing_checkpoints() -> TrialRecord:
    return trial(
        "T006",
        "failed",
        fault="agent",
        error="missing checkpoints: submitted",
        simulator="user-sim",
        turns=[turn(1, "Hi", "What type?", 500, input_source="initial")],
        checkpoints=[
            CheckpointRecord("ask_type", "Agent asks for the type", True, True, 1, 'contains "type"'),
            CheckpointRecord(
                "submitted", "", True, False, None, "waits for approved; last: no tool was called", ("approved",)
            ),
            CheckpointRecord("thanked", "", False, False, None, "never tried"),
        ],
        source="tests/d.jsonl",
    )


def summary(**fields: Any) -> RunSummary:
    all_fields: dict[str, Any] = {
        "total": 3,
        "passed": 2,
        "failed": 0,
        "errors": 0,
        "skipped": 1,
        "not_run": 0,
        "unchecked": 0,
        "total_turns": 10,
        "avg_turns": 3.33,
        "duration_ms": 18_100,
        "checks": 5,
        "checks_passed": 5,
        **fields,
    }
    return RunSummary(**all_fields)


def run_started(cases: int = 5, trials: int | None = None, **settings: Any) -> RunStarted:
    return RunStarted(
        run="r1",
        at="2026-01-02T03:04:05Z",
        viva="0.1.0",
        agent="assistants.expense",
        inputs=("./tests/expense-flow.jsonl",),
        cases=cases,
        trials=trials or cases,
        parallel=4,
        settings=settings,
        agents=("assistants.expense",),
    )


def run_ended(exit_code: int = 0, **fields: Any) -> RunEnded:
    stopped, stop_message = fields.pop("stopped", None), fields.pop("stop_message", None)
    return RunEnded("r1", "2026-01-02T03:05:05Z", exit_code, summary(**fields), stopped, stop_message)


def trial_ended(record: TrialRecord, index: int = 0) -> TrialEnded:
    return TrialEnded(Key(record.suite, record.id, record.trial, record.attempt), index, 1, record)


def make_console(stream: TextIO, clock: Callable[[], float] = time.monotonic, **options: Any) -> Console:
    options.setdefault("parallel", 4)
    return Console(stream, ConsoleOptions(**options), clock)


def render_console(events: Iterable[Event], **options: Any) -> str:
    """The output of a console for these events, one batch each."""
    stream = StringIO()
    sink = make_console(stream, **options)
    for event in events:
        sink.receive((event,))
    return stream.getvalue()


def write_journal(folder: Path, records: Iterable[TrialRecord]) -> Journal:
    journal = Journal(folder / "journal.jsonl")
    for index, record in enumerate(records):
        journal.append(trial_ended(record, index))
    return journal

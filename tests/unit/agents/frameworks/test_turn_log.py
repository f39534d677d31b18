"""What is noted of a framework's turn, and how the user's next line decides an approval."""

import asyncio
from typing import Any

import pytest
from msgspec import UNSET

from viva.agents.frameworks.turn_log import TurnLog, read_answer, read_decision, to_plain_value
from viva.agents.tools import ToolStubs
from viva.model.case import ToolStub
from viva.model.message import Message
from viva.model.progress import CallProgress


@pytest.mark.parametrize(
    ("text", "options", "is_approved"),
    [
        ("yes", {}, True),
        ("Yes, please!", {}, True),
        ("OK.", {}, True),
        ("go ahead", {}, True),
        ("Sure, do it", {}, True),
        ("approve", {}, True),
        ("no", {}, False),
        ("do not book it", {}, False),
        ("ok, no", {}, False),
        ("I want the later one", {}, False),
        ("", {}, False),
        ("no", {"approval": "approve"}, True),
        ("yes", {"approval": "deny"}, False),
        ("yes", {"approval": "perhaps"}, True),
    ],
)
def test_the_first_word_or_the_option_decides(text: str, options: dict[str, Any], is_approved: bool):
    decision = read_decision(Message("user", text), options)
    assert (decision.is_approved, decision.text) == (is_approved, text)


def test_calls_keep_their_order_and_the_first_arguments():
    log = TurnLog(CallProgress())
    log.start_call("1", "add", '{"a": 1}')
    log.start_call("2", "find", {"q": "x"})
    log.start_call("1", "add", {"a": 1, "injected": "state"})
    log.end_call("2", "found")
    log.end_call("1", 3)
    calls = log.build_reply("done").tool_calls
    assert [(call.name, call.arguments, call.result) for call in calls] == [
        ("add", {"a": 1}, 3),
        ("find", {"q": "x"}, "found"),
    ]


def test_an_error_is_not_replaced_by_the_text_that_the_model_gets():
    progress = CallProgress()
    log = TurnLog(progress)
    log.start_call("1", "add")
    log.fail_call("1", ValueError("no such table"))
    log.end_call("1", "Something went wrong")
    (call,) = log.build_reply().tool_calls
    assert (call.error, call.result) == ("ValueError: no such table", UNSET)
    assert [each.where for each in progress.tracebacks] == ["tool add"]  # N38


def test_a_call_that_waits_makes_the_reply_wait():
    log = TurnLog(CallProgress())
    log.start_call("1", "book", {"days": 7})
    log.start_call("2", "add")
    log.end_call("2", 3)
    log.mark_unfinished_pending()
    reply = log.build_reply()
    assert [call.pending for call in reply.tool_calls] == [True, False]
    assert (reply.declared_state, reply.input_hint) == ("awaiting", 'approve or deny: book({"days":7})')
    log.refuse_call("1", "too long")
    call = log.build_reply().tool_calls[0]
    assert (call.pending, call.refused, call.error) == (False, True, "too long")


def test_a_stub_answers_and_one_that_is_missing_is_an_error():
    log = TurnLog(CallProgress(), ToolStubs([ToolStub("add", 40)]))
    assert log.answer_call("1", "add", "{}").result == 40
    assert "no canned response" in (log.answer_call("2", "book", "{}").error or "")  # W3
    log.end_call("1", "40 as text")
    assert [call.result for call in log.build_reply().tool_calls] == [40, UNSET]


def test_model_calls_are_priced_and_wrong_counts_are_none():
    log = TurnLog(CallProgress())
    log.add_model_call("gpt-4o-mini", "openai", {"input_tokens": 10, "output_tokens": 5, "cache_read_tokens": 4})
    log.add_model_call(None, None, {"output_tokens": -1, "cache_read_tokens": True})
    known, unknown = log.build_reply().calls
    assert (known.model, known.input_tokens, known.cached_tokens) == ("gpt-4o-mini", 10, 4)
    assert known.cost_usd is not None
    assert (unknown.input_tokens, unknown.output_tokens, unknown.cached_tokens, unknown.cost_usd) == (0, 0, 0, None)


def test_the_path_has_each_stay_once():
    log = TurnLog(CallProgress())
    for name in ("triage", "triage", "booking", "triage"):
        log.enter_node(name)
    assert log.build_reply().path == ("triage", "booking", "triage")


class Model:
    def model_dump(self, mode: str) -> dict[str, Any]:
        return {"city": "Rome"}


class Wrong:
    def model_dump(self, mode: str) -> dict[str, Any]:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Model(), {"city": "Rome"}),
        ([{"trip": Model()}, (1, 2)], [{"trip": {"city": "Rome"}}, [1, 2]]),
        ({1: "one"}, {"1": "one"}),
        (None, None),
    ],
)
def test_values_of_frameworks_become_plain(value: Any, plain: Any):
    assert to_plain_value(value) == plain


def test_a_value_that_cannot_be_read_is_named():
    assert "Wrong" in to_plain_value(Wrong())


class Waits(Exception):  # noqa: N818 -- as frameworks name theirs
    pass


def test_a_tool_that_runs_is_logged_with_its_result_error_or_wait():
    progress = CallProgress()
    log = TurnLog(progress)

    async def run(result: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    async def scenario() -> None:
        assert await log.run_tool(log.create_call_id(), "add", {}, lambda: run(3)) == 3
        with pytest.raises(Waits):
            await log.run_tool(log.create_call_id(), "ask", {}, lambda: run(Waits()), Waits)
        with pytest.raises(ValueError, match="no table"):
            await log.run_tool(log.create_call_id(), "find", {}, lambda: run(ValueError("no table")))

    asyncio.run(scenario())
    with pytest.raises(ZeroDivisionError):
        log.run_sync_tool("divide", {}, lambda: 1 / 0)
    added, asked, found, divided = log.build_reply().tool_calls
    assert (added.result, asked.pending, found.error) == (3, True, "ValueError: no table")
    assert "division" in (divided.error or "")
    assert [each.error for each in progress.tracebacks] == [found.error, divided.error]  # N38


def test_a_stubbed_tool_does_not_run():  # W3
    log = TurnLog(CallProgress(), ToolStubs([ToolStub("add", {"sum": 40}), ToolStub("find", error="down")]))

    def run() -> Any:
        raise AssertionError("it ran")

    assert asyncio.run(log.run_tool("1", "add", {"a": 1}, run)) == '{"sum":40}'  # for the model
    assert log.run_sync_tool("add", {"a": 1}, run) == {"sum": 40}  # for code
    assert log.run_sync_tool("find", {}, run) == '{"error":"down"}'
    assert [call.error for call in log.build_reply().tool_calls] == [None, None, "down"]


def test_the_error_of_a_model_is_kept_for_frameworks_that_raise_only_its_text():
    log, error = TurnLog(CallProgress()), ValueError("401")
    with pytest.raises(ValueError, match="401"), log.store_model_error():
        raise error
    assert log.model_error is error


def test_an_output_is_the_text_or_the_data_of_the_reply():
    log = TurnLog(CallProgress())
    assert (log.build_output_reply("hi").content, log.build_output_reply({"a": 1}).data) == ("hi", {"a": 1})


def test_calls_that_the_model_asked_for_together_may_start_in_any_order():
    log = TurnLog(CallProgress())
    for call_id, arguments in (("1", '{"a": 1}'), ("2", '{"a": 2}')):
        log.add_requested_call(call_id, "double", arguments)
    log.add_requested_call("3", "fly", {})
    assert log.run_sync_tool("double", {"a": 2}, lambda: 4) == 4
    assert log.run_sync_tool("double", {"a": 1, "filled_in": "b"}, lambda: 2) == 2
    assert log.run_sync_tool("double", {"a": 5}, lambda: 10) == 10  # code calls it: the model did not ask
    log.fail_requested_calls("no such tool")
    calls = log.build_reply().tool_calls
    assert [(call.id, call.arguments, call.result) for call in calls if call.error is None] == [
        ("1", {"a": 1}, 2),
        ("2", {"a": 2}, 4),
        ("viva_1", {"a": 5}, 10),
    ]
    assert [(call.name, call.error) for call in calls if call.error is not None] == [("fly", "no such tool")]


@pytest.mark.parametrize(
    ("options", "answer"), [({}, "yes"), ({"approval": "deny"}, False), ({"approval": "deny", "resume": [1]}, [1])]
)
def test_the_answer_to_a_question_is_an_option_or_the_text(options: dict[str, Any], answer: Any):
    assert read_answer(Message("user", "yes"), options) == answer


def test_messages_are_parts_of_the_reply_and_the_output_is_not_repeated():
    log = TurnLog(CallProgress())
    assert (log.build_reply("done").content, log.build_reply("done").parts) == ("done", ())
    log.add_message("Let me see.")
    log.add_message("")
    log.add_message("done")
    reply = log.build_reply("done")
    assert (reply.content, reply.parts) == ("Let me see.\ndone", ("Let me see.", "done"))
    assert log.build_reply("Really.").parts == ("Let me see.", "done", "Really.")
    log.drop_message()
    assert (log.build_reply().content, log.build_reply().parts) == ("Let me see.", ())


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), BaseException("no Exception")])
def test_a_tool_that_raises_no_exception_raises_one_to_the_framework(error: BaseException):
    async def leave() -> None:
        raise error

    log = TurnLog(CallProgress())
    with pytest.raises(RuntimeError, match=type(error).__name__):
        asyncio.run(log.run_tool("1", "leave", {}, leave))
    (call,) = log.build_reply().tool_calls
    assert type(error).__name__ in (call.error or "")

"""Graphs and runnables in the shapes that users of LangGraph write, beyond the contract of all frameworks."""

from collections.abc import Iterator
from typing import Any

import pytest
from apps import graphs
from apps import langgraph as app
from framework_contract import answer, case, run, run_all

import viva
from viva.testing import OpenAIServer


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(answer) as running:
        app.connect(running)
        yield running


def test_a_graph_that_is_not_compiled_and_its_subgraph():
    record = run(graphs.make_graph(), "call add 1 2", "and now?")
    assert record.status == "passed", record.error
    assert record.turns[0].path == ("assistant", "think", "tools", "think")
    assert [call.result for call in record.turns[0].tool_calls] == [{"sum": 3}]
    assert (record.turns[1].tool_calls, record.turns[1].output) == ([], "Hello, 2")


@pytest.mark.parametrize(
    ("reply", "heard"),
    [
        ("on Monday", "the user says on Monday"),
        ({"input": "x", "options": {"resume": {"day": 1}}}, "the user says {'day': 1}"),
        ({"input": "x", "options": {"approval": "approve"}}, "the user says True"),
    ],
)
def test_an_interrupt_gets_the_users_next_line(server: OpenAIServer, reply: Any, heard: str):
    record = run(graphs.make_graph(), "call ask", reply)
    assert record.status == "passed", record.error
    waiting, after = record.turns
    assert (waiting.awaiting_input, waiting.input_hint) == (True, "When?")
    assert [(call.name, call.pending) for call in waiting.tool_calls] == [("ask", True)]
    assert [(call.name, call.result) for call in after.tool_calls] == [("ask", heard)]
    assert after.output == "ask is done"


@pytest.mark.parametrize(("decision", "result", "refused"), [("go on", {"sum": 3}, False), ("no, wait", None, True)])
def test_a_breakpoint_before_the_tools_is_an_approval(decision: str, result: Any, refused: bool):
    record = run(graphs.make_graph(interrupt_before=["tools"]), "call add 1 2", decision)
    assert record.status == "passed", record.error
    waiting, after = record.turns
    assert (waiting.awaiting_input, waiting.input_hint) == (True, "paused before tools")
    assert [call.pending for call in waiting.tool_calls] == [True]
    (call,) = after.tool_calls
    assert (call.refused, None if refused else call.result) == (refused, result)
    assert after.output == "add is done"


def test_the_messages_of_several_nodes_are_parts_of_the_reply():
    record = run(graphs.make_pair(), "hello", "again")
    first, second = record.turns
    assert (first.parts, first.output) == (("writer: 1", "critic: 2"), "writer: 1\ncritic: 2")  # 18
    assert second.parts == ("writer: 4", "critic: 5")  # those of this turn only
    assert first.path == ("writer", "critic")


def test_what_a_supervisor_adds_for_its_model_is_no_message_and_no_tool_call():
    (turn,) = run(graphs.make_supervisor(), "hello").turns
    assert (turn.output, turn.parts, turn.tool_calls) == ("done", (), [])


def test_stubs_reach_the_tools_of_subgraphs():
    stubs = {"tools": [{"tool": "add", "response": 40}]}
    (record,) = run_all(graphs.make_graph(), [case("s", "call add 1 2", fixtures=stubs)])
    assert [call.result for call in record.turns[0].tool_calls] == [40]


def test_a_tool_outside_of_a_tool_node_is_seen_and_stubbed():
    record = run(graphs.make_loose_graph(), "call add 1 2")
    assert [call.result for call in record.turns[0].tool_calls] == [{"sum": 3}]
    stubs = {"tools": [{"tool": "add", "response": 40}]}
    (record,) = run_all(graphs.make_loose_graph(), [case("s", "call add 1 2", fixtures=stubs)])
    assert [call.result for call in record.turns[0].tool_calls] == [40]  # W3


def test_a_graph_without_messages_is_refused_with_a_way_out():
    with pytest.raises(viva.errors.BadInput, match=r"no `messages`, it has question, answer; name a function"):
        run(graphs.make_graph_without_messages(), "hi")
    record = run(graphs.make_graph_without_messages, "hi")  # what a function creates is known only in the trial
    assert (record.status, record.fault) == ("failed", "agent")
    assert "no `messages`" in (record.error or "")


def test_a_chain_gets_the_question_and_the_history(server: OpenAIServer):
    record = run(graphs.make_chain(), "hello", "again")
    assert [turn.output for turn in record.turns] == ["Hello, 1", "Hello, 2"]
    assert [each.text for each in server.model_requests[-1].messages] == ["Be brief.", "hello", "Hello, 1", "again"]
    assert record.usage is not None
    assert record.usage.calls == 2


def test_a_runnable_with_a_history_of_its_own_keeps_it_for_a_conversation():
    record = run(graphs.make_chain_with_history(), "hello", "again")
    assert [turn.output for turn in record.turns] == ["Hello, 1", "Hello, 2"]


def test_a_state_without_a_reducer_keeps_the_conversation():
    record = run(graphs.make_graph_without_reducer(), "hello", "again")
    assert [turn.output for turn in record.turns] == ["1 messages", "3 messages"]  # N19


def test_a_handoff_by_a_command_has_the_result_that_the_model_gets():
    record = run(graphs.make_handoff(), "call hand_over")
    assert [(call.name, call.result) for call in record.turns[0].tool_calls] == [("hand_over", "handed over")]
    assert record.turns[0].path == ("triage", "model", "tools", "booking", "model")


@pytest.mark.parametrize(
    ("decision", "booked"),
    [
        ("no", None),
        ({"input": "", "options": {"resume": {"decisions": [{"type": "approve"}]}}}, "booked 7"),
        ({"input": "", "options": {"resume": {"decisions": [{"type": "reject"}]}}}, None),
    ],
)
def test_only_the_calls_that_need_an_approval_are_decided(decision: Any, booked: str | None):
    record = run(graphs.make_partly_approving_agent(), "call book 7 and add 1 2", decision)
    assert record.status == "passed", record.error
    waiting, after = record.turns
    assert [(call.name, call.pending) for call in waiting.tool_calls] == [("book", True), ("add", False)]
    results = {call.name: call.result for call in after.tool_calls if call.error is None}
    assert results == {"add": {"sum": 3}} | ({} if booked is None else {"book": booked})


def test_a_chain_that_takes_a_text_gets_the_last_message(server: OpenAIServer):
    record = run(graphs.make_retriever_chain(), "hello")
    assert record.status == "passed", record.error
    assert server.model_requests[-1].messages[-1].text == "a document on HELLO: hello"


def test_a_graph_inside_another_runnable_takes_messages():
    record = run(graphs.make_graph(interrupt_before=[]).with_retry(), "call add 1 2", "and now?")
    assert [turn.output for turn in record.turns] == ["add is done", "Hello, 2"]

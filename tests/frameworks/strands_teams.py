"""Graphs and swarms of Strands: their path, parts, memory, interrupts, stubs and faults."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from apps import strands as app
from apps.tools import BOOKED, add, book
from framework_contract import case, run, run_all
from strands import Agent, tool
from strands.hooks import BeforeToolCallEvent
from strands.multiagent import GraphBuilder, Swarm

from viva.model.message import ToolCall
from viva.testing import Fail, ModelRequest, OpenAIServer, Say


def answer(request: ModelRequest) -> Say | Fail | str:
    """A writer that can add, a critic, a clerk that books, and a triage that hands over to the clerk."""
    role = request.system
    if role == "fail":
        return Fail(401)
    if request.tool_results:
        return f"{role} has {request.new_messages[-1].text}"
    if role == "triage":
        return Say(tool_calls=[ToolCall("handoff_to_agent", {"agent_name": "clerk", "message": "book"})])
    if role == "clerk":
        return Say(content="I book.", tool_calls=[ToolCall("book", {"a": 7})])
    if role == "writer" and "add" in request.text:
        return Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})])
    return f"{role} saw {len([each for each in request.messages if each.role == 'user'])}"


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(answer) as running:
        app.connect(running)
        yield running


def make_member(name: str, *tools: Any, role: str = "") -> Any:
    quiet: Any = {"callback_handler": None, "retry_strategy": None}
    return Agent(app.get_model(), name=name, system_prompt=role or name, tools=list(map(tool, tools)), **quiet)


def make_graph(*members: Any) -> Any:
    """A line of members, each with the name of its agent and a capital letter."""
    builder = GraphBuilder()
    names = [each.name.title() for each in members]
    for name, each in zip(names, members, strict=True):
        builder.add_node(each, name)
    for before, after in itertools.pairwise(names):
        builder.add_edge(before, after)
    builder.set_entry_point(names[0])
    builder.set_max_node_executions(10)
    return builder.build()


def approve(event: BeforeToolCallEvent) -> None:
    if event.tool_use["name"] == "book" and not str(event.interrupt("book", reason="Sure?")).startswith("yes"):
        event.cancel_tool = "no"


def make_clerk() -> Any:
    clerk = make_member("clerk", book)
    clerk.add_hook(approve, BeforeToolCallEvent)
    return clerk


def test_the_nodes_of_a_graph_are_its_path_and_their_messages_are_parts_of_the_reply():
    graph = make_graph(make_member("writer", add), make_member("critic"))
    for _ in range(2):  # a new conversation has no history
        record = run(graph, "add", "more")
        assert record.status == "passed", record.error
        first, second = record.turns
        assert (first.path, first.parts) == (("Writer", "Critic"), ("writer has 3", "critic saw 1"))
        assert [(call.name, call.result) for call in first.tool_calls] == [("add", "3")]
        assert (second.tool_calls, second.parts) == ([], ("writer saw 2", "critic saw 2"))  # the agents remember
        assert first.usage is not None
        assert first.usage.calls == 3


def test_an_interrupt_in_a_graph_waits_for_the_users_next_line():
    graph = make_graph(make_clerk(), make_member("critic"))
    records = run_all(graph, [case("a", "go", "yes"), case("b", "go", "no")], parallel=2)
    for record, result in zip(records, ("booked 7", None), strict=True):
        assert record.status == "passed", record.error
        waiting, after = record.turns
        assert (waiting.awaiting_input, waiting.input_hint, waiting.path) == (True, "book: Sure?", ("Clerk",))
        assert [(call.name, call.args, call.pending) for call in waiting.tool_calls] == [("book", {"a": 7}, True)]
        assert [call.result if call.error is None else None for call in after.tool_calls] == [result]
        assert after.path == ("Clerk", "Critic")
        assert after.parts[-1] == "critic saw 1"


@pytest.mark.parametrize("stubs", [None, {"tools": [{"tool": "book", "response": "canned"}]}])
def test_a_handoff_of_a_swarm_is_in_the_path_and_no_tool_call(stubs: Any):
    BOOKED.clear()
    swarm = Swarm([make_member("triage"), make_member("clerk", book)])
    (record,) = run_all(swarm, [case("s", "go", "again", **({"fixtures": stubs} if stubs else {}))])
    assert record.status == "passed", record.error
    for turn in record.turns:
        assert turn.path == ("triage", "clerk")
        assert [(call.name, call.result) for call in turn.tool_calls] == [("book", "canned" if stubs else "booked 7")]
        assert turn.parts[-2:] == ("I book.", "clerk has canned" if stubs else "clerk has booked 7")
    assert ([] if stubs else [7, 7]) == BOOKED


def test_an_interrupt_in_a_swarm_waits_for_the_users_next_line():
    BOOKED.clear()
    record = run(Swarm([make_member("triage"), make_clerk()]), "go", "yes")
    assert record.status == "passed", record.error
    waiting, after = record.turns
    assert (waiting.awaiting_input, waiting.input_hint) == (True, "book: Sure?")
    assert [(call.name, call.pending) for call in waiting.tool_calls] == [("book", True)]
    assert [(call.name, call.result) for call in after.tool_calls] == [("book", "booked 7")]
    assert BOOKED == [7]


@pytest.mark.parametrize("make", [make_graph, lambda *members: Swarm(list(members))])
def test_a_provider_that_fails_in_a_member_is_infra(make: Any):
    record = run(make(make_member("writer", role="fail")), "hello")
    assert (record.status, record.fault) == ("error", "infra"), record.error  # N17


def test_prior_messages_of_a_case_are_refused():
    before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    history = {"id": "h", "input": before, "assertions": {"type": "contains", "value": "c"}}
    (record,) = run_all(make_graph(make_member("critic")), [history])
    assert (record.status, "no place for the prior messages" in (record.error or "")) == ("failed", True)

"""Apps, runners, sub-agents and tools that run long in Google ADK, beyond the contract of all frameworks."""

from collections.abc import Iterator
from typing import Any

import pytest
from apps import adk as app
from framework_contract import TRIP, answer, case, run, run_all
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.apps import App
from google.adk.runners import InMemoryRunner
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.workflow import START, Workflow

from viva.model.message import ToolCall
from viva.testing import GeminiServer, ModelRequest, Say


def answer_or_hand_over(request: ModelRequest) -> Any:
    if "For context:" in request.text and any("a trip" in each.text for each in request.messages):
        return app.say_trip(TRIP)
    if "For context:" in request.text:  # so ADK tells one agent what another one did
        return "Booking here."
    if request.text.startswith("transfer"):
        return Say(tool_calls=[ToolCall("transfer_to_agent", {"agent_name": "booking"})])
    return answer(request)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[GeminiServer]:
    with GeminiServer(answer_or_hand_over) as running:
        app.connect(running)
        yield running


@pytest.mark.parametrize("wrap", [lambda agent: App(name="app", root_agent=agent), InMemoryRunner])
def test_apps_and_runners_are_agents(wrap: Any):
    record = run(wrap(app.make_agent()), "call add 1 2", "and now?")
    assert [turn.output for turn in record.turns] == ["add is done", "Hello, 2"]


@pytest.mark.parametrize("stubs", [None, {"tools": [{"tool": "add", "response": 40}]}])
def test_a_transfer_is_in_the_path_and_no_tool_call(stubs: Any):
    booking = LlmAgent(name="booking", model=app.get_model())
    root = LlmAgent(name="triage", model=app.get_model(), sub_agents=[booking])
    (record,) = run_all(root, [case("t", "transfer me", **({"fixtures": stubs} if stubs else {}))])
    assert record.turns[0].path == ("triage", "booking")
    assert (record.turns[0].tool_calls, record.turns[0].output) == ([], "Booking here.")


def test_the_messages_of_agents_in_a_sequence_are_parts_of_the_reply():
    writer, booking = (LlmAgent(name=name, model=app.get_model()) for name in ("writer", "booking"))
    record = run(SequentialAgent(name="both", sub_agents=[writer, booking]), "hi")
    (turn,) = record.turns
    assert (turn.parts, turn.output) == (("Hello, 1", "Booking here."), "Hello, 1\nBooking here.")
    assert turn.path == ("both", "writer", "booking")


def test_structured_output_after_a_message_is_the_data_of_the_reply():
    writer = LlmAgent(name="writer", model=app.get_model())
    record = run(SequentialAgent(name="both", sub_agents=[writer, app.make_planning_agent()]), "plan a trip")
    (turn,) = record.turns
    assert (turn.parts, turn.output, turn.data) == ((), app.say_trip(TRIP), TRIP)


def test_a_tool_that_runs_long_gets_its_result_from_the_user(server: GeminiServer):
    def ask() -> dict[str, str]:
        """Asks a person."""
        return {"status": "pending"}

    agent = LlmAgent(name="assistant", model=app.get_model(), tools=[LongRunningFunctionTool(ask)])
    record = run(agent, "call ask", '{"status": "approved"}')
    waiting, after = record.turns
    assert (waiting.awaiting_input, [call.pending for call in waiting.tool_calls]) == (True, [True])
    assert [(call.name, call.result) for call in after.tool_calls] == [("ask", {"status": "approved"})]
    assert any("approved" in each.text for each in server.model_requests[-1].messages if each.role == "tool")


def test_a_workflow_is_an_agent():
    record = run(Workflow(name="flow", edges=[(START, app.make_agent())]), "call add 1 2")
    assert (record.turns[0].output, [call.result for call in record.turns[0].tool_calls]) == ("add is done", [3])


def test_arguments_that_do_not_fit_are_an_error_of_the_call():
    (call,) = run(app.make_agent(), "call add 1").turns[0].tool_calls
    assert "mandatory input parameters" in (call.error or "")

"""Crews of CrewAI: their inputs, path, tools and faults."""

from collections.abc import Iterator
from typing import Any

import pytest
from apps import crewai as app
from apps.tools import add
from crewai import Crew, Process, Task
from crewai.flow.flow import Flow, start

import viva
from viva.errors import BadInput
from viva.model.message import ToolCall
from viva.model.record import TrialRecord
from viva.testing import Fail, ModelRequest, OpenAIServer, Say


def answer(request: ModelRequest) -> Say | Fail | str:
    """A writer that can add, and a critic that repeats its task."""
    if "fail" in request.text:
        return Fail(401)
    if "You are writer" in request.system and not request.tool_results:
        return Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})])
    return "written" if "You are writer" in request.system else f"seen: {request.text}"


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[Any]:
    with OpenAIServer(answer) as running:
        app.connect(running)
        yield running


def make_crew(description: str, **fields: Any) -> Any:
    writer, critic = app.make_member("writer", add), app.make_member("critic")
    tasks = [Task(description=description, expected_output="text", agent=each, **fields) for each in (writer, critic)]
    return Crew(agents=[writer, critic], tasks=tasks)


def run(crew: Any, *turns: str, **fields: Any) -> TrialRecord:
    holds = {"type": "regex", "pattern": "(?s).*"}
    case = {"id": "c", "turns": [{"input": turn, "assertions": [holds]} for turn in turns], **fields}
    return next(iter(viva.run([case], crew, options=viva.RunOptions(retry_faults=0)).records()))


def test_a_crew_gets_the_message_and_the_history_as_inputs():
    record = run(make_crew("Earlier: {history}\nNow: {message}"), "hello", "bye")
    assert record.status == "passed", record.error
    first, second = record.turns
    assert first.path == ("writer", "critic")
    assert [(call.name, call.args, call.result) for call in first.tool_calls] == [("add", {"a": 1, "b": 2}, 3)]
    assert first.usage is not None
    assert first.usage.calls == 3
    assert "Now: bye" in second.output
    assert "Earlier: user: hello\nassistant: seen:" in second.output


def test_the_tools_of_a_crew_are_stubbed_and_its_provider_may_fail():
    crew = make_crew("{message}")
    record = run(crew, "hello", fixtures={"tools": [{"tool": "add", "response": 40}]})
    assert [call.result for call in record.turns[0].tool_calls] == [40]
    record = run(crew, "fail")
    assert (record.status, record.fault) == ("error", "infra"), record.error  # N17


def test_an_agent_whose_copy_would_lack_its_tools_is_refused():
    writer = app.make_member("writer").model_copy(update={"mcps": ["https://127.0.0.1:9/mcp"]})
    with pytest.raises(BadInput, match="`mcps` and `apps`; give it those as `tools`"):
        run(writer, "hello")


@pytest.mark.parametrize("name", ["manager_llm", "manager_agent"])
def test_the_manager_of_a_crew_is_counted(name: str):
    manager = app.get_model() if name == "manager_llm" else app.make_member("manager")
    task = Task(description="{message}", expected_output="text")
    crew = Crew(agents=[app.make_member("critic")], tasks=[task], process=Process.hierarchical, **{name: manager})
    record = run(crew, "hello")
    assert record.status == "passed", record.error
    assert record.usage is not None
    assert (record.usage.calls, record.turns[0].path) == (1, ("manager",))


@pytest.mark.parametrize(
    ("description", "fields", "problem"),
    [
        ("hello", {}, "has no input"),
        ("{city} in {month}", {}, "has the inputs city, month"),
        ("{message}", {"human_input": True}, "reads from the console"),
    ],
)
def test_a_crew_that_cannot_converse_is_refused(description: str, fields: Any, problem: str):
    with pytest.raises(BadInput, match=problem):
        run(make_crew(description, **fields), "hello")


class Greeting(Flow[Any]):
    @start()
    def greet(self) -> str:
        return f"Hello, {self.state['message']}"


def test_a_flow_is_refused_with_the_function_that_runs_it():
    with pytest.raises(BadInput, match=r"Flow needs a function(.|\n)*kickoff\(inputs"):
        run(Greeting(), "Ada")

    def agent(messages: Any) -> str:
        return str(Greeting().kickoff(inputs={"message": messages[-1]["content"]}))

    assert run(agent, "Ada").turns[0].output == "Hello, Ada"

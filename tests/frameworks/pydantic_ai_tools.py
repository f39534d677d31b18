"""Deps, tools that run outside, and invalid arguments in pydantic-ai, beyond the contract of all frameworks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from apps import pydantic_ai as app
from apps.tools import add, book
from framework_contract import answer, case, run, run_all
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, RunContext, Tool

from viva.testing import OpenAIServer

APP = """
from pydantic_ai import Agent, RunContext
from apps import pydantic_ai as app

agent = Agent(app.get_model(), deps_type=str)

@agent.tool
def whoami(ctx: RunContext[str]) -> str:
    return f"user {ctx.deps}"

def make_deps():
    return "Ada"
"""


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(answer) as running:
        app.connect(running)
        yield running


def test_deps_come_from_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "deps_app.py").write_text(APP)
    (tmp_path / "viva.toml").write_text(
        '[agents.a]\nuse = "pydantic_ai:./deps_app.py:agent"\ncontext = "python:./deps_app.py:make_deps"\n'
    )
    monkeypatch.chdir(tmp_path)
    (record,) = run_all("a", [case("c", "call whoami")])
    assert [call.result for call in record.turns[0].tool_calls] == ["user Ada"]


def test_a_tool_that_runs_outside_gets_its_result_from_the_user():
    agent = Agent(app.get_model(), output_type=[str, DeferredToolRequests])

    @agent.tool
    def ask(ctx: RunContext[None]) -> str:  # pyright: ignore[reportUnusedFunction]
        raise CallDeferred

    record = run(agent, "call ask", '{"day": "Monday"}')
    assert record.status == "passed", record.error
    waiting, after = record.turns
    assert [(call.name, call.pending) for call in waiting.tool_calls] == [("ask", True)]
    assert [(call.name, call.result) for call in after.tool_calls] == [("ask", {"day": "Monday"})]
    assert after.output == "ask is done"


def test_arguments_that_do_not_fit_are_an_error_of_the_call():
    record = run(Agent(app.get_model(), tools=[add]), "call add 1")
    (call, *_) = record.turns[0].tool_calls
    assert "Field required" in (call.error or "")


def test_a_tool_that_does_not_exist_is_an_error_of_the_call():
    record = run(Agent(app.get_model(), tools=[add]), "call nothing")
    (call,) = record.turns[0].tool_calls
    assert "Unknown tool name" in (call.error or "")


def test_calls_are_in_the_order_of_the_model():
    agent = Agent(
        app.get_model(), tools=[Tool(book, requires_approval=True), add], output_type=[str, DeferredToolRequests]
    )
    waiting = run(agent, "call book 7 and add 1 2").turns[0]
    assert [(call.name, call.pending) for call in waiting.tool_calls] == [("book", True), ("add", False)]

"""Agents of the OpenAI Agents SDK that hand over to each other."""

from typing import Any

from agents import Agent, RunContextWrapper, function_tool, handoff

from apps import openai_agents as app
from apps.tools import book


@function_tool
def whoami(context: RunContextWrapper[Any]) -> str:
    """Says who the user is."""
    return f"user {context.context['user']}"


def make_triage() -> Any:
    model = app.get_model()
    booking = Agent("booking", model=model, tools=[function_tool(book)])
    travel = Agent("travel", model=model, handoffs=[handoff(booking)])
    return Agent("triage", model=model, handoffs=[travel])


def make_personal_agent() -> Any:
    return Agent("assistant", model=app.get_model(), tools=[whoami])


def make_context() -> Any:
    return {"user": "Ada"}

"""Agents of the OpenAI Agents SDK."""

import json
from typing import Any

from agents import Agent, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI
from pydantic import BaseModel

from apps.tools import BOOKED, INSTRUCTIONS, STARTED, TOOLS, add, book
from viva.testing import OpenAIServer

__all__ = ["BOOKED", "INSTRUCTIONS", "STARTED"]
SERVER = OpenAIServer
MODEL, PROVIDER = "gpt-4o-mini", "openai"
PATH = ("assistant",)
HANDLES_TOOL_ERRORS = True
TELLS_EVERY_REASON = True
TAKES_IMAGES = True
_model: list[Any] = []


class Trip(BaseModel):
    city: str
    days: int


def connect(server: OpenAIServer) -> None:
    client = AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0)
    _model[:] = [OpenAIResponsesModel("gpt-4o-mini", client)]


def get_model() -> Any:
    return _model[0]


def say_trip(trip: dict[str, Any]) -> Any:
    return json.dumps(trip)


def make_agent() -> Any:
    return Agent("assistant", instructions=INSTRUCTIONS, model=_model[0], tools=[function_tool(tool) for tool in TOOLS])


def make_approving_agent() -> Any:
    return Agent("assistant", model=_model[0], tools=[function_tool(book, needs_approval=True)])


def make_nesting_agent() -> Any:
    inner = Agent("inner", model=_model[0], tools=[function_tool(add)])

    @function_tool
    async def research() -> str:
        return (await Runner.run(inner, "call add 1 2")).final_output

    return Agent("assistant", model=_model[0], tools=[research])


def make_planning_agent() -> Any:
    return Agent("assistant", model=_model[0], output_type=Trip)

"""Agents of LangChain, which are graphs of LangGraph."""

import json
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from apps.tools import BOOKED, INSTRUCTIONS, STARTED, TOOLS, add, book
from viva.testing import OpenAIServer

__all__ = ["BOOKED", "INSTRUCTIONS", "STARTED"]
SERVER = OpenAIServer
MODEL, PROVIDER = "gpt-4o-mini", "openai"
PATH = ("model",)
HANDLES_TOOL_ERRORS = False
TELLS_EVERY_REASON = True
TAKES_IMAGES = True
_model: list[Any] = []


class Trip(BaseModel):
    city: str
    days: int


def connect(server: OpenAIServer) -> None:
    _model[:] = [ChatOpenAI(model="gpt-4o-mini", base_url=server.url, api_key="k", max_retries=0)]


def get_model() -> Any:
    return _model[0]


def say_trip(trip: dict[str, Any]) -> Any:
    return json.dumps(trip)


def make_agent() -> Any:
    return create_agent(_model[0], TOOLS, system_prompt=INSTRUCTIONS)


def make_approving_agent() -> Any:
    return create_agent(_model[0], [book], middleware=[HumanInTheLoopMiddleware(interrupt_on={"book": True})])


def make_nesting_agent() -> Any:
    inner = create_agent(_model[0], [add])

    async def research() -> str:
        """Asks another agent."""
        return (await inner.ainvoke({"messages": [("user", "call add 1 2")]}))["messages"][-1].content

    return create_agent(_model[0], [research])


def make_planning_agent() -> Any:
    return create_agent(_model[0], [book], response_format=Trip)

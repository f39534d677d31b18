"""Agents of pydantic-ai."""

from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from apps.tools import BOOKED, INSTRUCTIONS, STARTED, TOOLS, add, book
from viva.model.message import ToolCall
from viva.testing import OpenAIServer, Say

__all__ = ["BOOKED", "INSTRUCTIONS", "STARTED"]
SERVER = OpenAIServer
MODEL, PROVIDER = "gpt-4o-mini", "openai"
PATH = ("assistant",)
HANDLES_TOOL_ERRORS = False
TELLS_EVERY_REASON = True
TAKES_IMAGES = True
_model: list[Any] = []


class Trip(BaseModel):
    city: str
    days: int


def connect(server: OpenAIServer) -> None:
    client = AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0)
    _model[:] = [OpenAIChatModel("gpt-4o-mini", provider=OpenAIProvider(openai_client=client))]


def get_model() -> Any:
    return _model[0]


def say_trip(trip: dict[str, Any]) -> Any:
    return Say(tool_calls=[ToolCall("final_result", trip)])


def make_agent() -> Any:
    return Agent(_model[0], name="assistant", system_prompt=INSTRUCTIONS, tools=TOOLS)


def make_approving_agent() -> Any:
    tools = [Tool(book, requires_approval=True)]
    return Agent(_model[0], name="assistant", tools=tools, output_type=[str, DeferredToolRequests])


def make_nesting_agent() -> Any:
    inner = Agent(_model[0], name="inner", tools=[add])

    async def research() -> str:
        return (await inner.run("call add 1 2")).output

    return Agent(_model[0], name="assistant", tools=[research])


def make_planning_agent() -> Any:
    return Agent(_model[0], name="assistant", output_type=Trip)

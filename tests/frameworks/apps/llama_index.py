"""Agents of LlamaIndex."""

import json
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI
from pydantic import BaseModel

from apps.tools import BOOKED, INSTRUCTIONS, STARTED, TOOLS, add
from viva.testing import OpenAIServer

__all__ = ["BOOKED", "INSTRUCTIONS", "STARTED"]
SERVER = OpenAIServer
MODEL, PROVIDER = "gpt-4o-mini", "openai"
PATH = ("assistant",)
HANDLES_TOOL_ERRORS = True
TAKES_IMAGES = True
_model: list[Any] = []


class Trip(BaseModel):
    """A trip."""

    city: str
    days: int


def connect(server: OpenAIServer) -> None:
    _model[:] = [OpenAI(model="gpt-4o-mini", api_base=server.url, api_key="k", max_retries=0)]


def get_model() -> Any:
    return _model[0]


def say_trip(trip: dict[str, Any]) -> Any:
    return json.dumps(trip)


def make_agent() -> Any:
    return FunctionAgent(name="assistant", llm=_model[0], system_prompt=INSTRUCTIONS, tools=TOOLS)


def make_nesting_agent() -> Any:
    inner = FunctionAgent(name="inner", llm=_model[0], tools=[add], streaming=False)

    async def research() -> str:
        """Asks another agent."""
        return str(await inner.run("call add 1 2"))

    return FunctionAgent(name="assistant", llm=_model[0], tools=[research])


def make_planning_agent() -> Any:
    return FunctionAgent(name="assistant", llm=_model[0], output_cls=Trip)

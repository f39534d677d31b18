"""Agents of AutoGen AgentChat."""

import json
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

from apps.tools import BOOKED, INSTRUCTIONS, STARTED, TOOLS
from viva.testing import OpenAIServer

__all__ = ["BOOKED", "INSTRUCTIONS", "STARTED"]
SERVER = OpenAIServer
MODEL, PROVIDER = "gpt-4o-mini", "openai"
PATH = ("assistant",)
HANDLES_TOOL_ERRORS = True
TAKES_IMAGES = False
_model: list[Any] = []


class Trip(BaseModel):
    city: str
    days: int


def connect(server: OpenAIServer) -> None:
    _model[:] = [OpenAIChatCompletionClient(model="gpt-4o-mini", base_url=server.url, api_key="k", max_retries=0)]


def get_model() -> Any:
    return _model[0]


def say_trip(trip: dict[str, Any]) -> Any:
    return json.dumps(trip)


def make_agent() -> Any:
    options: Any = {"system_message": INSTRUCTIONS, "reflect_on_tool_use": True}
    return AssistantAgent("assistant", _model[0], tools=TOOLS, **options)


def make_planning_agent() -> Any:
    return AssistantAgent("assistant", _model[0], output_content_type=Trip)

"""Agents of Google ADK."""

import json
import os
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.google_llm import Gemini
from google.adk.tools.function_tool import FunctionTool
from pydantic import BaseModel

from apps.tools import BOOKED, INSTRUCTIONS, STARTED, TOOLS, book
from viva.testing import GeminiServer

__all__ = ["BOOKED", "INSTRUCTIONS", "STARTED"]
SERVER = GeminiServer
MODEL, PROVIDER = "gemini-2.5-flash", "google"
PATH = ("assistant",)
HANDLES_TOOL_ERRORS = False
TELLS_EVERY_REASON = False
TAKES_IMAGES = True
_model: list[Any] = []


class Trip(BaseModel):
    city: str
    days: int


def connect(server: GeminiServer) -> None:
    os.environ |= server.env
    _model[:] = [Gemini(model="gemini-2.5-flash", base_url=server.url)]


def get_model() -> Any:
    return _model[0]


def say_trip(trip: dict[str, Any]) -> Any:
    return json.dumps(trip)


def make_agent() -> Any:
    return LlmAgent(name="assistant", model=get_model(), instruction=INSTRUCTIONS, tools=TOOLS)


def make_approving_agent() -> Any:
    return LlmAgent(name="assistant", model=get_model(), tools=[FunctionTool(book, require_confirmation=True)])


def make_planning_agent() -> Any:
    return LlmAgent(name="assistant", model=get_model(), output_schema=Trip)

"""Agents and crews of CrewAI."""

import json
import os
import re
import tempfile
from typing import Any

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "CREWAI_TESTING": "true"}
os.environ |= {"CREWAI_DISABLE_VERSION_CHECK": "true", "CREWAI_STORAGE_DIR": tempfile.mkdtemp()}

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from pydantic import BaseModel

from apps.tools import BOOKED, INSTRUCTIONS, STARTED, TOOLS
from viva.testing import ModelRequest, OpenAIServer

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
    _model[:] = [LLM("gpt-4o-mini", base_url=server.url, api_key="k", max_retries=0)]


def get_model() -> Any:
    return _model[0]


def read_request(request: ModelRequest) -> tuple[str, list[str], int]:
    """What the user wrote last, the tools that were called since, and how often the user wrote."""
    users = [each.text for each in request.messages if each.role == "user"]
    found = re.search(r"Current Task: (.*?)(\n|$)", users[-1])
    return found[1] if found else users[-1], request.tool_results, len(users)


def say_trip(trip: dict[str, Any]) -> Any:
    return json.dumps(trip)


def make_agent() -> Any:
    return make_member("assistant", *TOOLS)


def make_member(role: str, *tools: Any) -> Any:
    texts = {"role": role, "goal": INSTRUCTIONS, "backstory": "You were made for tests."}
    return Agent(llm=_model[0], tools=[tool(each) for each in tools], **texts)


def make_planning_agent() -> Any:
    planner = make_member("assistant")
    task = Task(description="{message}", expected_output="a trip", agent=planner, output_pydantic=Trip)
    return Crew(agents=[planner], tasks=[task])

"""Agents of Strands."""

from typing import Any

from pydantic import BaseModel
from strands import Agent, tool
from strands.hooks import BeforeToolCallEvent
from strands.models.openai import OpenAIModel

from apps.tools import BOOKED, INSTRUCTIONS, STARTED, TOOLS, add, book
from viva.model.message import ToolCall
from viva.testing import OpenAIServer, Say

__all__ = ["BOOKED", "INSTRUCTIONS", "STARTED"]
SERVER = OpenAIServer
MODEL, PROVIDER = "gpt-4o-mini", "openai"
PATH = ("assistant",)
HANDLES_TOOL_ERRORS = True
TELLS_EVERY_REASON = False
TAKES_IMAGES = False
_model: list[Any] = []


class Trip(BaseModel):
    """A trip."""

    city: str
    days: int


def connect(server: OpenAIServer) -> None:
    arguments = {"base_url": server.url, "api_key": "k", "max_retries": 0}
    _model[:] = [OpenAIModel(client_args=arguments, model_id="gpt-4o-mini")]


def get_model() -> Any:
    return _model[0]


def say_trip(trip: dict[str, Any]) -> Any:
    return Say(tool_calls=[ToolCall("Trip", trip)])


def _make(tools: Any, **fields: Any) -> Any:
    quiet = {"callback_handler": None, "retry_strategy": None}
    return Agent(get_model(), name="assistant", tools=list(map(tool, tools)), **quiet, **fields)


def make_agent() -> Any:
    return _make(TOOLS, system_prompt=INSTRUCTIONS)


def _approve(event: BeforeToolCallEvent) -> None:
    response = event.interrupt("book", reason="May I book?")
    if response is not True and not str(response).startswith("yes"):
        event.cancel_tool = str(response)


def make_approving_agent() -> Any:
    agent = _make([book])
    agent.add_hook(_approve, BeforeToolCallEvent)
    return agent


def make_nesting_agent() -> Any:
    def research() -> str:
        """Asks another agent."""
        return str(_make([add])("call add 1 2")).strip()

    return _make([research])


def make_planning_agent() -> Any:
    return _make([], structured_output_model=Trip)
